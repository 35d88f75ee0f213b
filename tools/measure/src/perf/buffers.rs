//! The memory of one side, and the locations of messages in it.

use roce_exchange::content::{STAMP, stamp};
use roce_exchange::{GRH, put, take};
use roce_transport::{Access, RKey, Sge};

use super::content::{Areas, ping};
use super::{Plan, Test, Verb};
use crate::harness::Role;
use crate::perf::exchange::Agreement;
use roce::verbs::{MemoryRegion, ProtectionDomain, VerbsError};

/// Bytes behind the memory that a peer may write to. They must not change.
const GUARD: usize = 64;
/// The value of these bytes.
const GUARD_BYTE: u8 = 0xa5;
/// Bytes of the message that introduces a UD queue pair after rdma_cm.
const INTRODUCTION: usize = 4;
/// The memory limit for receives and READs, each of which has its own buffer.
const BUDGET: usize = 64 << 20;

/// The slots of messages of one size. Like the originals, it places small messages one after the other in a
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) size: usize,
    /// Bytes from one message to the next.
    step: usize,
    /// The number of slots, which are used in turn.
    pub(super) slots: usize,
}

impl Geometry {
    pub(super) fn new(plan: &Plan, agreement: &Agreement, size: usize) -> Self {
        let step = size.next_multiple_of(agreement.cache_line);
        let is_spread = plan.test == Test::Bandwidth && size <= agreement.cycle / 2;
        Self { size, step, slots: if is_spread { agreement.cycle / step } else { 1 } }
    }

    /// Returns the offset of message `number`.
    pub(super) fn offset(&self, number: u64) -> usize {
        (number % self.slots as u64) as usize * self.step
    }

    /// Returns the number of the last message of `count` that went to a slot.
    pub(super) fn last_in(&self, slot: usize, count: u64) -> Option<u64> {
        let (slot, slots) = (slot as u64, self.slots as u64);
        (slot < count).then(|| (count - 1 - slot) / slots * slots + slot)
    }
}

/// The memory regions of one side, for all queue pairs and sizes.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Bytes per queue pair in each of the regions below.
    area: usize,
    /// The bytes that are sent.
    body: MemoryRegion,
    /// The message numbers at the start of messages.
    stamps: MemoryRegion,
    tx_depth: usize,
    test: Test,
    role: Role,
    /// The memory that the peer accesses.
    pub(super) exposed: MemoryRegion,
    /// The memory that READs, atomics and receives write to.
    landing: MemoryRegion,
    num_qp: usize,
    depth: usize,
    skip: usize,
    pub(super) pattern: Areas,
}

impl Buffers {
    pub(super) fn new(
        pd: &ProtectionDomain,
        plan: &Plan,
        agreement: &Agreement,
        sizes: &[usize],
        role: Role,
    ) -> Result<Self, VerbsError> {
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let area = largest.max(agreement.cycle).next_multiple_of(agreement.cache_line);
        let stride = (area + GUARD).next_multiple_of(4096);
        let num_qp = plan.num_qp;
        let pattern = Areas::new(area);
        let is_posting = matches!(plan.verb, Verb::Write | Verb::Send);
        let body = pd.allocate(if is_posting { num_qp * area } else { 1 }, Access::LOCAL_WRITE)?;
        let stamps = pd.allocate(num_qp * plan.tx_depth * STAMP, Access::LOCAL_WRITE)?;
        let is_exposed = plan.verb != Verb::Send;
        let exposed =
            pd.allocate(if is_exposed { num_qp * stride } else { 1 }, plan.access() | Access::LOCAL_WRITE)?;
        let skip = plan.headroom();
        let depth = if plan.verb == Verb::Send { plan.rx_depth } else { plan.tx_depth };
        let landing =
            sizes.iter().map(|size| num_qp * depth_for(*size, skip, depth, num_qp) * room(*size, skip));
        let landing = pd
            .allocate(landing.max().filter(|_| plan.verb != Verb::Write).unwrap_or(1), Access::LOCAL_WRITE)?;
        let (tx_depth, test) = (plan.tx_depth, plan.test);
        let buffers =
            Self { area, body, stamps, tx_depth, test, role, exposed, landing, num_qp, depth, skip, pattern };
        for qp in 0..num_qp {
            let bytes = buffers.pattern.area(role, qp, area);
            if is_posting {
                put(&buffers.body, qp * area, &bytes);
            }
            if is_exposed {
                if plan.verb == Verb::Read {
                    put(&buffers.exposed, buffers.exposed_offset(qp), &bytes);
                }
                put(&buffers.exposed, buffers.exposed_offset(qp) + area, &[GUARD_BYTE; GUARD]);
            }
        }
        Ok(buffers)
    }

    /// Returns the bytes of memory that each queue pair of the other side must have, too.
    pub(super) const fn area(&self) -> usize {
        self.area
    }

    /// Returns the room for one message before the test, with the header in front of it on UD.
    pub(super) fn introduction(&self) -> Sge {
        self.landing.element(0..GRH + INTRODUCTION)
    }

    /// Returns the message before the test, whose content is ignored.
    pub(super) fn introduction_to_send(&self) -> Sge {
        self.stamps.element(0..INTRODUCTION)
    }

    /// Returns the offset in `exposed` of the memory that a peer accesses through this queue pair.
    pub(super) fn exposed_offset(&self, qp: usize) -> usize {
        qp * (self.area + GUARD).next_multiple_of(4096)
    }

    /// Returns the address and the key of the exposed memory, for the peer.
    pub(super) fn advertised(&self, qp: usize) -> (u64, RKey) {
        (self.exposed.addr() + self.exposed_offset(qp) as u64, self.exposed.rkey())
    }

    /// Writes the number of a message, and returns the elements of the message.
    pub(super) fn message(&self, qp: usize, geometry: &Geometry, number: u64) -> ([Sge; 2], usize) {
        if self.test == Test::Latency {
            put(&self.body, 0, &self.message_bytes(qp, geometry, number));
            return ([self.body.element(0..geometry.size), Sge::default()], 1);
        }
        let stamp = (qp * self.tx_depth + (number % self.tx_depth as u64) as usize) * STAMP;
        put(&self.stamps, stamp, &number.to_le_bytes());
        let (first, start) = (geometry.size.min(STAMP), qp * self.area + geometry.offset(number));
        let stamp = self.stamps.element(stamp..stamp + first);
        if geometry.size <= STAMP {
            return ([stamp, Sge::default()], 1);
        }
        ([stamp, self.body.element(start + first..start + geometry.size)], 2)
    }

    /// Returns the bytes of message `number`.
    pub(super) fn message_bytes(&self, qp: usize, geometry: &Geometry, number: u64) -> Vec<u8> {
        if self.test == Test::Latency {
            return ping(self.role, number, geometry.size);
        }
        let mut bytes = vec![0; geometry.size];
        take(&self.body, qp * self.area + geometry.offset(number), &mut bytes);
        stamp(&mut bytes, number);
        bytes
    }

    /// Returns how many messages of this size each queue pair can hold at once.
    pub(super) fn landing_slots(&self, size: usize) -> usize {
        depth_for(size, self.skip, self.depth, self.num_qp)
    }

    fn landing_offset(&self, qp: usize, size: usize, number: u64) -> usize {
        let slots = self.landing_slots(size);
        (qp * slots + (number % slots as u64) as usize) * room(size, self.skip)
    }

    /// Returns the memory that message `number` is received into, with the header in front of it on UD.
    pub(super) fn landing(&self, qp: usize, size: usize, number: u64) -> Sge {
        let start = self.landing_offset(qp, size, number);
        self.landing.element(start..start + self.skip + size)
    }

    /// Reads the received message from offset `start`.
    pub(super) fn landed(&self, qp: usize, size: usize, number: u64, start: usize, out: &mut [u8]) {
        take(&self.landing, self.landing_offset(qp, size, number) + self.skip + start, out);
    }

    /// Changes a message that has been checked, so that the check does not accept it as the next one.
    pub(super) fn invalidate(&self, qp: usize, size: usize, number: u64) {
        let start = self.landing_offset(qp, size, number) + self.skip;
        let mut bytes = [0; STAMP];
        let bytes = &mut bytes[..size.min(STAMP)];
        take(&self.landing, start, bytes);
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        put(&self.landing, start, bytes);
    }

    /// Zeroes the memory that peers write to.
    pub(super) fn clear_exposed(&self, qp: usize) {
        put(&self.exposed, self.exposed_offset(qp), &vec![0; self.area]);
    }

    /// Returns the first overwritten guard byte of this queue pair, and its value.
    pub(super) fn broken_guard(&self, qp: usize) -> Option<(usize, u8)> {
        let mut guard = [0; GUARD];
        take(&self.exposed, self.exposed_offset(qp) + self.area, &mut guard);
        let at = guard.iter().position(|byte| *byte != GUARD_BYTE)?;
        Some((self.area + at, guard[at]))
    }
}

fn room(size: usize, skip: usize) -> usize {
    (size + skip).next_multiple_of(64)
}

fn depth_for(size: usize, skip: usize, depth: usize, num_qp: usize) -> usize {
    (BUDGET / room(size, skip) / num_qp).clamp(2, depth.max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_of_each_slot() {
        let geometry = Geometry { size: 64, step: 64, slots: 4 };
        assert_eq!(
            (0..4).map(|slot| geometry.last_in(slot, 6)).collect::<Vec<_>>(),
            [Some(4), Some(5), Some(2), Some(3)]
        );
        assert_eq!(geometry.last_in(2, 2), None);
        assert_eq!((geometry.offset(5), geometry.offset(4)), (64, 0));
    }
}
