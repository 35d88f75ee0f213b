//! Work requests of a host: their memory, their PSNs, and what they left in memory.

use roce_analysis::words::thousands;
use roce_packet::{ImmDt, Psn};
use roce_sim::pair::{Host, MEMORY_BASE, Pair, Side};
use roce_transport::{RKey, SendOp, WcStatus};
use serde::Deserialize;

/// Bytes of the memory of each host.
pub(super) const MEMORY: usize = 8 << 20;
/// Longest message in bytes.
pub(super) const MOST_BYTES: u64 = 1 << 20;
/// Bytes that an atomic operation changes.
const ATOMIC: usize = 8;
/// The value that a FETCH ADD adds.
const ADDED: u64 = 1;

/// An operation that can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwap,
}

impl Op {
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch_add",
            Self::CmpSwap => "cmp_swap",
        }
    }

    /// Returns the operation in words, after "a".
    const fn words(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate data",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate data",
            Self::Read => "READ",
            Self::FetchAdd => "FETCH ADD",
            Self::CmpSwap => "CMP SWAP",
        }
    }

    /// Tells whether the request names memory of the peer, with its key.
    pub(super) const fn is_remote(self) -> bool {
        !matches!(self, Self::Send | Self::SendImm)
    }

    /// Tells whether the message uses up a receive of the peer.
    pub(super) const fn needs_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
}

/// A request as JSON gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    pub(super) side: usize,
    pub(super) op: Op,
    /// Length in bytes; 8 for an atomic operation, whatever is given.
    #[serde(default)]
    bytes: u64,
    /// Whether the key is wrong.
    #[serde(default)]
    pub(super) bad_key: bool,
    /// Whether the range exceeds the memory of the peer.
    #[serde(default)]
    pub(super) past_end: bool,
}

impl Order {
    /// Reads a request as JSON.
    pub(super) fn read(json: &str) -> Result<Self, String> {
        let order: Self =
            serde_json::from_str(json).map_err(|error| format!("the request is not valid: {error}"))?;
        if (order.bad_key || order.past_end) && !order.op.is_remote() {
            return Err(
                "a SEND names no memory of the peer; choose a WRITE, READ or atomic operation for a \
                        wrong key or range"
                    .to_owned(),
            );
        }
        Ok(order)
    }

    /// Returns the length of the message in bytes.
    pub(super) fn len(&self) -> Result<usize, String> {
        if self.op.is_atomic() { Ok(ATOMIC) } else { length(self.bytes) }
    }

    /// Returns the first remote address: that of the peer's range, or for a wrong range one so near to the
    /// end that it does not fit.
    pub(super) fn remote_addr(&self, remote: usize, len: usize) -> u64 {
        if !self.past_end {
            return MEMORY_BASE + remote as u64;
        }
        // Atomic operations must stay aligned.
        MEMORY_BASE + (MEMORY - ((len / 2) & !7)) as u64
    }
}

/// Checks the length of a message or of a receive.
pub(super) fn length(bytes: u64) -> Result<usize, String> {
    if bytes > MOST_BYTES {
        let (bytes, most) = (thousands(bytes), thousands(MOST_BYTES));
        return Err(format!("{bytes} bytes are too many; use at most {most}"));
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has no completion yet.
    Open,
    Done,
    Failed,
    Flushed,
}

/// A posted send request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) op: Op,
    pub(super) len: usize,
    pub(super) first_psn: Psn,
    /// Number of PSNs.
    pub(super) psns: u32,
    pub(super) progress: Progress,
    /// Offset of the range in the memory of its own host, and of the one in that of the peer.
    pub(super) local: usize,
    pub(super) remote: usize,
    /// The seed of its bytes.
    pub(super) seed: u64,
}

impl Request {
    pub(super) fn last_psn(&self) -> Psn {
        self.first_psn.add(self.psns.saturating_sub(1))
    }

    /// Returns the operation and the length in words, after "a".
    pub(super) fn words(&self) -> String {
        match self.op.is_atomic() {
            true => self.op.words().to_owned(),
            false => format!("{} of {}", self.op.words(), bytes(self.len)),
        }
    }

    /// Returns the operation for the engine.
    pub(super) fn send_op(&self, remote_addr: u64, rkey: RKey) -> SendOp {
        let imm = ImmDt(u32::try_from(self.wr_id).unwrap_or(u32::MAX).to_be_bytes());
        match self.op {
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendWithImm(imm),
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::WriteImm => SendOp::WriteWithImm { remote_addr, rkey, imm },
            Op::Read => SendOp::Read { remote_addr, rkey },
            Op::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: ADDED },
            Op::CmpSwap => SendOp::CompareSwap { remote_addr, rkey, compare: self.seed, swap: !self.seed },
        }
    }

    /// Writes the bytes of the message where it starts, and other bytes where it ends. `side` has posted it.
    pub(super) fn fill(&self, pair: &mut Pair, side: Side) {
        let (message, zeros) = (pattern(self.seed, self.len), vec![0; self.len]);
        let (own, peer) = match self.op {
            // The receive of the peer takes the message.
            Op::Send | Op::SendImm => (message, Vec::new()),
            Op::Write | Op::WriteImm => (message, zeros),
            Op::Read => (zeros, message),
            Op::FetchAdd | Op::CmpSwap => (zeros, self.seed.to_ne_bytes().to_vec()),
        };
        pair.host_mut(side).write_memory(self.local, &own);
        pair.host_mut(side.other()).write_memory(self.remote, &peer);
    }

    /// Tells whether memory is right after the request has succeeded. A SEND is checked by its receive.
    pub(super) fn is_right(&self, pair: &Pair, side: Side) -> bool {
        let (own, peer) = (pair.host(side), pair.host(side.other()));
        let holds = |host: &Host, at, bytes: &[u8]| host.read_memory(at, bytes.len()) == bytes;
        match self.op {
            Op::Send | Op::SendImm => true,
            Op::Write | Op::WriteImm => holds(peer, self.remote, &pattern(self.seed, self.len)),
            Op::Read => holds(own, self.local, &pattern(self.seed, self.len)),
            // The old value has come back, and the operation was executed exactly once.
            Op::FetchAdd | Op::CmpSwap => {
                let new = if self.op == Op::FetchAdd { self.seed.wrapping_add(ADDED) } else { !self.seed };
                holds(own, self.local, &self.seed.to_ne_bytes())
                    && holds(peer, self.remote, &new.to_ne_bytes())
            }
        }
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Receive {
    /// Tells whether memory is right after this message has arrived.
    pub(super) fn is_right(&self, message: &Request, own: &Host) -> bool {
        let is_in_it = || own.read_memory(self.at, message.len) == pattern(message.seed, message.len);
        message.op == Op::WriteImm || is_in_it()
    }
}

/// A completion, for a table.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) op: &'static str,
    pub(super) status: WcStatus,
    pub(super) len: usize,
    pub(super) why: String,
    pub(super) rule: &'static str,
    /// Whether all bytes are right; `None` after an error.
    pub(super) is_right: Option<bool>,
}

/// The part of a host's memory that is not in use.
#[derive(Debug, Default)]
pub(super) struct Free {
    from: usize,
}

impl Free {
    /// Takes a range and returns its offset, or `None` if there is no room.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        let at = self.from;
        let end = at.checked_add(len.next_multiple_of(8)).filter(|end| *end <= MEMORY)?;
        self.from = end;
        Some(at)
    }
}

/// Returns a number of bytes in words.
pub(super) fn bytes(len: usize) -> String {
    match len {
        1 => "1 byte".to_owned(),
        _ => format!("{} bytes", thousands(len as u64)),
    }
}

/// Returns bytes that differ from those of every other request.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte = |index: u64| (seed.wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len as u64).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_past_the_end_never_fits_and_stays_aligned() {
        for len in [1, 7, 8, 9, 4_096, 1 << 20] {
            let order = Order { side: 0, op: Op::Read, bytes: len, bad_key: false, past_end: true };
            let first = order.remote_addr(0, len as usize);
            assert!(first + len > MEMORY_BASE + MEMORY as u64, "{len}");
            assert!(first.is_multiple_of(8), "{len}");
        }
    }

    #[test]
    fn memory_is_taken_once() {
        let mut free = Free::default();
        assert_eq!([free.take(1), free.take(8), free.take(0)], [Some(0), Some(8), Some(16)]);
        assert_eq!(free.take(MEMORY), None);
        assert_eq!(free.take(MEMORY - 16), Some(16));
        assert_eq!(free.take(1), None);
    }
}
