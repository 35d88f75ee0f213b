//! Checks of memory that a peer has accessed.

use roce_exchange::content::{STAMP, mismatch};
use roce_exchange::{ToolError, take};

use super::buffers::Geometry;
use super::content::{Learned, pieces, ping};
use super::end::End;
use super::{AtomicOp, Size, Test, Verb};

impl End {
    /// Checks that all messages of the other side, which runs this program, have arrived. It sent `sent`
    /// messages of `size` bytes on each queue pair, and this side noticed `received` of them itself. Prepares
    /// for the next size.
    pub(super) fn check_tally(&self, size: usize, sent: &[u64], received: &[u64]) -> Result<(), ToolError> {
        let geometry = Geometry::new(&self.plan, &self.agreement, size);
        for (qp, &sent) in sent.iter().enumerate() {
            match self.plan.verb {
                Verb::Send => {
                    let received = received.get(qp).copied().unwrap_or(0);
                    if received != sent {
                        return Err(lost(qp, sent, received));
                    }
                }
                Verb::Write if self.plan.test == Test::Bandwidth => {
                    self.check_written(qp, &geometry, sent)?;
                    self.check_guard(qp, &geometry)?;
                    self.buffers.clear_exposed(qp);
                }
                Verb::Write => self.check_guard(qp, &geometry)?,
                Verb::Atomic => {
                    let found = self.sum(qp, &geometry);
                    let expected = if self.plan.atomic == AtomicOp::FetchAdd { sent } else { 0 };
                    if found != expected {
                        return Err(wrong_sum(qp, expected, found));
                    }
                    self.buffers.clear_exposed(qp);
                }
                Verb::Read => {}
            }
        }
        Ok(())
    }

    /// Checks that each slot contains the last message for that slot. On UC, it may contain an earlier
    /// message, or pieces.
    fn check_written(&self, qp: usize, geometry: &Geometry, sent: u64) -> Result<(), ToolError> {
        if !self.plan.is_reliable() && self.plan.size == Size::All {
            // Messages that are still on the wire would be mistaken for messages of the next size.
            return Ok(());
        }
        let size = geometry.size;
        let mut bytes = vec![0; size];
        let start = self.buffers.exposed_offset(qp);
        for slot in 0..geometry.slots {
            let Some(message) = geometry.last_in(slot, sent) else { break };
            let offset = geometry.offset(message);
            take(&self.buffers.exposed, start + offset, &mut bytes);
            let at = if self.plan.is_reliable() {
                self.buffers.pattern.mismatch((self.role.other(), qp), offset, Some(message), 0, &bytes)
            } else {
                self.mismatch_of_partial(qp, offset, &bytes)
            };
            if let Some(at) = at {
                return Err(ToolError::Content { qp, message, size, at, found: bytes[at] });
            }
        }
        Ok(())
    }

    /// Returns the position of the first wrong byte; some bytes may never have arrived. All messages of a
    /// slot differ only in their number.
    fn mismatch_of_partial(&self, qp: usize, offset: usize, bytes: &[u8]) -> Option<usize> {
        let expected = self.buffers.pattern.area(self.role.other(), qp, offset + bytes.len());
        let pairs = bytes.iter().zip(expected.get(offset..)?);
        let (at, _) =
            pairs.enumerate().skip(STAMP).find(|(_, (found, expected))| **found != 0 && found != expected)?;
        Some(at)
    }

    fn check_guard(&self, qp: usize, geometry: &Geometry) -> Result<(), ToolError> {
        let Some((at, found)) = self.buffers.broken_guard(qp) else { return Ok(()) };
        Err(ToolError::Content { qp, message: 0, size: geometry.size, at, found })
    }

    /// Returns the sum of everything that was added to memory that was 0.
    fn sum(&self, qp: usize, geometry: &Geometry) -> u64 {
        let start = self.buffers.exposed_offset(qp);
        let one = |slot: usize| {
            let mut value = [0; 8];
            take(&self.buffers.exposed, start + geometry.offset(slot as u64), &mut value);
            u64::from_ne_bytes(value)
        };
        (0..geometry.slots).map(one).fold(0, u64::wrapping_add)
    }

    /// Checks the memory of this side as far as possible after an original has executed `count` measured
    /// operations on it, on all queue pairs together.
    pub(super) fn check_foreign(&self, count: u64) -> Result<(), ToolError> {
        let geometry = Geometry::new(&self.plan, &self.agreement, 8);
        let mut sum = 0_u64;
        for qp in 0..self.lanes.len() {
            if self.plan.verb != Verb::Read {
                self.check_guard(qp, &geometry)?;
            }
            if self.plan.verb == Verb::Atomic {
                sum = sum.wrapping_add(self.sum(qp, &geometry));
            }
        }
        // The original may use CMP_AND_SWAP, which changes nothing. It may also add more before it begins to
        // count.
        if self.plan.verb == Verb::Atomic && sum != 0 && sum < count {
            return Err(wrong_sum(0, count, sum));
        }
        Ok(())
    }

    /// Checks the result of a completed READ of message `number` of the other side's memory.
    pub(super) fn check_read(
        &self,
        qp: usize,
        geometry: &Geometry,
        number: u64,
        learned: &mut Learned,
    ) -> Result<(), ToolError> {
        let read = |start: usize, out: &mut [u8]| self.buffers.landed(qp, geometry.size, number, start, out);
        self.check_message((qp, number), geometry, None, &read, learned)?;
        self.buffers.invalidate(qp, geometry.size, number);
        Ok(())
    }

    /// Checks the result of atomic operation `number`.
    pub(super) fn check_atomic(
        &self,
        qp: usize,
        number: u64,
        atomics: &mut Atomics,
    ) -> Result<(), ToolError> {
        let mut value = [0; 8];
        self.buffers.landed(qp, 8, number, 0, &mut value);
        let found = u64::from_ne_bytes(value);
        match atomics.unexpected(number, found) {
            None => Ok(()),
            Some(expected) => Err(ToolError::Verification(format!(
                "atomic operation {number} on queue pair {qp} returned {found} instead of {expected}: it was not executed \
                 exactly once"
            ))),
        }
    }

    /// Checks message `message` of queue pair `qp`, whose bytes `read` returns. If the other side runs this
    /// program, the message must have the content for `number` (READs have none). If it is an original, the
    /// message must equal an earlier one.
    pub(super) fn check_message(
        &self,
        (qp, message): (usize, u64),
        geometry: &Geometry,
        number: Option<u64>,
        read: &dyn Fn(usize, &mut [u8]),
        learned: &mut Learned,
    ) -> Result<(), ToolError> {
        let (size, is_ours) = (geometry.size, self.agreement.is_ours);
        let is_new = !is_ours && learned.wants();
        let is_ping = self.plan.test == Test::Latency && number.is_some();
        // The originals count in the last byte of a WRITE, and do not change the other bytes.
        let len = if is_ping && !is_ours && self.plan.verb == Verb::Write { size - 1 } else { size };
        let pieces = if is_new || is_ping { [0..len, 0..0] } else { pieces(len, message) };
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let mut bytes = vec![0; piece.len()];
            read(piece.start, &mut bytes);
            let at = match number {
                Some(number) if is_ours && is_ping => {
                    mismatch(&bytes, &ping(self.role.other(), number, size))
                }
                _ if is_ours => {
                    let (from, offset) = (self.role.other(), geometry.offset(number.unwrap_or(message)));
                    self.buffers.pattern.mismatch((from, qp), offset, number, piece.start, &bytes)
                }
                _ if is_new => learned.learn(message, &bytes),
                _ => learned.mismatch(message, piece.start, &bytes),
            };
            if let Some(at) = at {
                let found = bytes.get(at.wrapping_sub(piece.start)).copied().unwrap_or(0);
                return Err(ToolError::Content { qp, message, size, at, found });
            }
        }
        Ok(())
    }
}

pub(super) fn lost(qp: usize, sent: u64, received: u64) -> ToolError {
    ToolError::Verification(format!("{received} of {sent} messages arrived on queue pair {qp}"))
}

fn wrong_sum(qp: usize, expected: u64, found: u64) -> ToolError {
    ToolError::Verification(format!(
        "the operations of queue pair {qp} add {expected} and memory shows {found}: an operation was lost or executed twice"
    ))
}

/// Expected results of atomic operations. The first value is unknown; each operation on the same slot adds.
#[derive(Debug)]
pub(super) struct Atomics {
    first: Vec<Option<u64>>,
    added: u64,
}

impl Atomics {
    pub(super) fn new(op: AtomicOp, slots: usize) -> Self {
        Self { first: vec![None; slots], added: u64::from(op == AtomicOp::FetchAdd) }
    }

    /// Returns the expected result of operation `number` if `found` is a different value.
    pub(super) fn unexpected(&mut self, number: u64, found: u64) -> Option<u64> {
        let slots = self.first.len() as u64;
        let place = self.first.get_mut((number % slots) as usize)?;
        let change = (number / slots).wrapping_mul(self.added);
        let first = *place.get_or_insert(found.wrapping_sub(change));
        let expected = first.wrapping_add(change);
        (expected != found).then_some(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_was_done_twice_or_not_at_all_is_seen() {
        let mut atomics = Atomics::new(AtomicOp::FetchAdd, 2);
        assert_eq!(atomics.unexpected(0, 10), None);
        assert_eq!(atomics.unexpected(1, u64::MAX), None);
        assert_eq!(atomics.unexpected(2, 11), None);
        assert_eq!(atomics.unexpected(3, 0), None);
        assert_eq!(atomics.unexpected(4, 13), Some(12));
        assert_eq!(atomics.unexpected(4, 11), Some(12));
        let mut swaps = Atomics::new(AtomicOp::CompareSwap, 1);
        assert_eq!(swaps.unexpected(0, 5), None);
        assert_eq!(swaps.unexpected(1, 5), None);
        assert_eq!(swaps.unexpected(2, 6), Some(5));
    }
}
