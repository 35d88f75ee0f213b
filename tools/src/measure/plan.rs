//! The plan of a measurement, which both sides share.

use roce_transport::{MAX_INLINE, QpCapabilities};
use serde::{Deserialize, Serialize};

use crate::harness::ToolError;

/// The most memory that one side allocates.
const MAX_MEMORY: usize = 4 << 30;

/// Which of the two measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// A message there and one back.
    Ping,
    /// Many messages one way.
    Blast,
}

/// Which operation carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// SEND into a posted receive.
    Send,
    /// WRITE into the other side's memory. In ping: a WRITE, then a READ of the same bytes.
    Write,
    /// WRITE with immediate data, which the other side notices.
    WriteImm,
    /// READ from the other side's memory.
    Read,
}

/// How completions are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// By polling.
    Poll,
    /// By waiting for an event.
    Event,
}

/// How work requests are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Post {
    /// One at a time.
    Single,
    /// One list for all free buffers.
    List,
}

/// Which send requests complete visibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// Every one.
    Full,
    /// One of every N/2, N being the number of buffers.
    Periodic,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The measurement.
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
    /// How completions are noticed.
    pub completion: Completion,
    /// How work requests are posted.
    pub post: Post,
    /// Which send requests complete visibly.
    pub signal: Signal,
    /// Path MTU in bytes.
    pub path_mtu: usize,
    /// Local ACK timeout exponent.
    pub timeout: u8,
}

impl Plan {
    /// The largest message.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Bytes from one buffer to the next.
    pub(super) fn stride(&self) -> usize {
        self.largest().max(8).next_multiple_of(64)
    }

    /// Receives that the receiving side keeps posted: twice the number of outstanding messages, so that
    /// the sender does not run into RNR NAKs while the receiver posts new ones.
    pub(super) fn receives(&self) -> usize {
        self.buffers * 2
    }

    /// The number of messages for each signaled one.
    pub(super) fn signal_every(&self) -> u64 {
        match self.signal {
            Signal::Full => 1,
            Signal::Periodic => (self.buffers as u64 / 2).max(1),
        }
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

    /// Checks the plan. The server checks the plan of the client with this too.
    ///
    /// # Errors
    ///
    /// The first value that is out of range, and the range.
    pub fn check(&self) -> Result<(), ToolError> {
        let refuse = |text: String| Err(ToolError::Plan(text));
        if self.sizes.is_empty() {
            return refuse("no message size was given; use --size or --sizes".into());
        }
        if self.iterations == 0 || self.iterations > 1 << 40 {
            return refuse(format!("--iterations is {}; at least 1 is needed", self.iterations));
        }
        if self.buffers == 0 || self.buffers > 16_384 {
            return refuse(format!("--buffers is {}; 1 to 16384 are possible", self.buffers));
        }
        if self.largest() > 1 << 30 {
            return refuse(format!(
                "a message of {} bytes; up to 1073741824 are possible here",
                self.largest()
            ));
        }
        if self.inline && self.op == Op::Read {
            return refuse("--inline with --op read: a READ has no bytes of its own to put inline".into());
        }
        if self.inline && self.largest() > MAX_INLINE {
            return refuse(format!(
                "--inline with a message of {} bytes; at most {MAX_INLINE} bytes can be inline",
                self.largest()
            ));
        }
        if self.tool == Tool::Ping && self.op == Op::Read {
            return refuse(
                "ping does not support --op read, because the server would not answer; --op write is a WRITE followed by a READ"
                    .into(),
            );
        }
        let memory = self.stride().saturating_mul(self.receives());
        if memory > MAX_MEMORY {
            return refuse(format!(
                "{} buffers of {} bytes need {memory} bytes of memory, the limit is {MAX_MEMORY}; use fewer --buffers",
                self.receives(),
                self.largest()
            ));
        }
        Ok(())
    }
}
