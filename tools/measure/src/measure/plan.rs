//! The plan of a measurement, which both sides share.

use roce_exchange::ToolError;
use roce_transport::{MAX_INLINE, QpCapabilities};
use serde::{Deserialize, Serialize};

/// Maximum number of sizes of a plan.
const MOST_SIZES: usize = 4096;

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// One message in each direction, in turn.
    Ping,
    /// Many messages in one direction.
    Blast,
}

/// Which operation carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Sends messages with SEND.
    Send,
    /// Writes messages with WRITE. ping writes, then reads the same bytes with READ.
    Write,
    /// Writes messages with WRITE with immediate data, which completes a receive of the other side.
    WriteImm,
    /// Reads messages with READ.
    Read,
}

/// How a side waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// Polls the completion queue.
    Poll,
    /// Waits for completion events.
    Event,
    /// ping with WRITE: polls memory for the last byte of the message; each side writes, and there is no
    /// READ.
    Memory,
}

/// How work requests are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Post {
    /// Posts each request alone.
    Single,
    /// Posts one list of requests for all free buffers.
    List,
}

/// Which send requests are signaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// Signals every request.
    Full,
    /// Signals one of N/2 requests, where N is the number of buffers.
    Periodic,
}

/// The parameters of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The kind of measurement.
    pub tool: Tool,
    /// The operation.
    pub op: Op,
    /// Message sizes in bytes, one row each.
    pub sizes: Vec<usize>,
    /// Messages or round trips per size.
    pub iterations: u64,
    /// Outstanding messages (blast).
    pub buffers: usize,
    /// Whether messages are posted inline.
    pub inline: bool,
    /// How both sides wait for completions.
    pub completion: Completion,
    /// How work requests are posted.
    pub post: Post,
    /// Which send requests are signaled.
    pub signal: Signal,
    /// Path MTU in bytes.
    pub path_mtu: usize,
    /// Exponent of the local ACK timeout.
    pub timeout: u8,
}

impl Plan {
    /// Returns the number of messages of each size. A round trip of ping has two.
    #[must_use]
    pub fn messages(&self) -> u64 {
        match self.tool {
            Tool::Ping => self.iterations.saturating_mul(2),
            Tool::Blast => self.iterations,
        }
    }

    /// Returns the size of the largest message.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the number of bytes from one buffer to the next.
    pub(super) fn stride(&self) -> usize {
        self.largest().max(8).next_multiple_of(64)
    }

    /// Returns the number of receives that the receiving side keeps posted. It is twice the number of
    /// outstanding messages, so that the sender gets no RNR NAKs while the receiver posts new ones.
    pub(super) fn receives(&self) -> usize {
        self.buffers * 2
    }

    /// Returns the number of messages per signaled one.
    pub(super) fn signal_every(&self) -> u64 {
        match self.signal {
            Signal::Full => 1,
            Signal::Periodic => (self.buffers as u64 / 2).max(1),
        }
    }

    /// Returns the bytes of memory that each side allocates for messages.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.stride().saturating_mul(self.receives())
    }

    pub(super) fn capabilities(&self) -> QpCapabilities {
        QpCapabilities {
            max_send_wr: self.buffers + 8,
            max_recv_wr: self.receives() + 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: if self.inline { self.largest() } else { 0 },
        }
    }

    /// Returns whether each side writes its messages and polls its memory for those of the other side.
    pub(super) fn watches_memory(&self) -> bool {
        self.completion == Completion::Memory && self.tool == Tool::Ping && self.op == Op::Write
    }

    /// Checks the plan. The server also checks the plan of its client.
    ///
    /// # Errors
    ///
    /// The first value that is out of range, and the range.
    pub fn check(&self) -> Result<(), ToolError> {
        let refuse = |text: String| Err(ToolError::Plan(text));
        if self.sizes.is_empty() {
            return refuse("no message size was given; use --size or --sizes".into());
        }
        if self.sizes.len() > MOST_SIZES {
            return refuse(format!("{} message sizes; at most {MOST_SIZES} are possible", self.sizes.len()));
        }
        if self.iterations == 0 || self.iterations > 1 << 40 {
            return refuse(format!("--iterations is {}; at least 1 is needed", self.iterations));
        }
        if self.buffers == 0 || self.buffers > 16_384 {
            return refuse(format!("--buffers is {}; 1 to 16384 are possible", self.buffers));
        }
        if self.largest() > 1 << 30 {
            return refuse(format!(
                "a message of {} bytes is too large; the maximum is 1073741824",
                self.largest()
            ));
        }
        if self.inline && self.op == Op::Read {
            return refuse("--inline with --op read: a READ request has no data that could be inline".into());
        }
        if self.inline && self.largest() > MAX_INLINE {
            return refuse(format!(
                "--inline with a message of {} bytes; at most {MAX_INLINE} bytes can be inline",
                self.largest()
            ));
        }
        if self.completion == Completion::Memory && !self.watches_memory() {
            return refuse("--completion memory is possible for ping with --op write only".into());
        }
        if self.completion == Completion::Memory && self.sizes.contains(&0) {
            return refuse("--completion memory with a message of 0 bytes, which changes no memory".into());
        }
        if self.tool == Tool::Ping && self.op == Op::Read {
            return refuse(
                "ping does not support --op read, because the server would not answer; --op write is a WRITE followed by a READ"
                    .into(),
            );
        }
        Ok(())
    }

    /// Checks that the memory for the messages is within a limit of this side.
    ///
    /// # Errors
    ///
    /// The memory exceeds the limit; the error names the values to change.
    pub fn check_memory(&self, limit: usize) -> Result<(), ToolError> {
        let memory = self.memory();
        if memory <= limit {
            return Ok(());
        }
        Err(ToolError::Plan(format!(
            "{} buffers of {} bytes need {memory} bytes of memory, the limit is {limit}; use fewer --buffers or a smaller \
             --size, or --max-memory {memory} on both sides",
            self.receives(),
            self.largest()
        )))
    }
}
