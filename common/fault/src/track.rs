//! The memory of an injector about previous datagrams, bounded in size.

use std::collections::BTreeMap;

use roce_packet::{Bth, Direction, Psn, Qpn};

/// The known queue pairs and the first sequence number of each.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Index of each queue pair in the order of first appearance, from 1.
    order: BTreeMap<Qpn, u32>,
    /// The first sequence number of each kind of traffic to each queue pair.
    first: BTreeMap<(Qpn, Class), Psn>,
}

/// Numbers queue pairs and sequence numbers as rules do (`rqp`, `rpsn`, `pass`), for reports.
#[derive(Debug)]
pub struct Sightings {
    flows: Flows,
    passes: Passes,
}

/// The numbers of a datagram in [`Sightings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Index of the destination queue pair in the order of first appearance, from 1. `None` for queue pair 1
    /// and for queue pairs beyond the 65,536 that are tracked.
    pub relative_qp: Option<u32>,
    /// Sequence number relative to the first one seen.
    pub relative_psn: Option<u32>,
    /// Number of times that this sequence number was seen, from 1.
    pub pass: u32,
}

impl Default for Sightings {
    fn default() -> Self {
        Self { flows: Flows::default(), passes: Passes::new() }
    }
}

impl Sightings {
    /// Records the next datagram of one direction.
    pub fn observe(&mut self, bth: &Bth) -> Sighting {
        let Relative { qp, psn } = self.flows.observe(bth);
        Sighting { relative_qp: qp, relative_psn: psn, pass: self.passes.observe(bth) }
    }
}

/// Kinds of traffic to one queue pair whose sequence numbers are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Request,
    Response,
    Notification,
}

impl Class {
    /// Returns the class of a packet. Unassigned opcodes count as requests.
    pub(super) fn of(bth: &Bth) -> Self {
        match bth.opcode.info().map(|info| info.direction) {
            Some(Direction::Response) => Self::Response,
            Some(Direction::Cnp) => Self::Notification,
            Some(Direction::Request) | None => Self::Request,
        }
    }
}

/// The numbers of a datagram in [`Flows`]; `None` if the table was full when its queue pair appeared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Relative {
    pub(super) qp: Option<u32>,
    pub(super) psn: Option<u32>,
}

impl Flows {
    pub(super) fn observe(&mut self, bth: &Bth) -> Relative {
        let class = Class::of(bth);
        let (known, flows) = (self.order.len(), self.first.len());
        let qp = match self.order.get(&bth.dest_qp) {
            Some(number) => Some(*number),
            None if known < MAX_FLOWS && bth.dest_qp != Qpn::GSI => {
                let number = u32::try_from(known).unwrap_or(u32::MAX).saturating_add(1);
                self.order.insert(bth.dest_qp, number);
                Some(number)
            }
            None => None,
        };
        let first = match self.first.get(&(bth.dest_qp, class)) {
            Some(first) => Some(*first),
            None if flows < MAX_FLOWS => {
                self.first.insert((bth.dest_qp, class), bth.psn);
                Some(bth.psn)
            }
            None => None,
        };
        Relative { qp, psn: first.map(|first| first.distance_to(bth.psn)) }
    }
}

/// Number of times that each sequence number was seen, for about the last [`Passes::CAPACITY`] different
/// ones.
///
/// An entry that was evicted counts from 1 again. Retransmissions follow within a window of packets, so an
/// evicted number does not return in practice until the 24-bit sequence numbers have wrapped around. It must
/// then count from 1.
#[derive(Debug)]
pub(super) struct Passes {
    /// The sets. Each is ordered by time of use, the latest first.
    sets: Vec<[Seen; WAYS]>,
}

/// A sequence number and its count. The count is 0 if the entry is empty.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    key: u64,
    count: u32,
}

impl Passes {
    /// Number of sequence numbers that fit.
    #[cfg(test)]
    pub(super) const CAPACITY: usize = SETS * WAYS;

    pub(super) fn new() -> Self {
        Self { sets: vec![[Seen::default(); WAYS]; SETS] }
    }

    /// Counts the datagram and returns the number of times that it was seen, from 1.
    pub(super) fn observe(&mut self, bth: &Bth) -> u32 {
        let class = Class::of(bth) as u64;
        let key = class << 48 | u64::from(bth.dest_qp.get()) << 24 | u64::from(bth.psn.get());
        // Neighbouring sequence numbers belong to neighbouring sets, so one flow fills the table evenly. The
        // multiplication scatters the first sets of the flows.
        let start = (key >> 24).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let index = (start + u64::from(bth.psn.get())) as usize % SETS;
        let Some(set) = self.sets.get_mut(index) else { return 1 };
        let place = set.iter().position(|seen| seen.count != 0 && seen.key == key);
        let count = match place.and_then(|place| set.get(place)) {
            Some(seen) => seen.count.saturating_add(1),
            None => 1,
        };
        if let Some(moved) = set.get_mut(..=place.unwrap_or(WAYS - 1)) {
            moved.rotate_right(1);
        }
        set[0] = Seen { key, count };
        count
    }
}

/// Largest number of queue pairs and flows that are tracked.
pub(super) const MAX_FLOWS: usize = 1 << 16;
const SETS: usize = 1 << 12;
const WAYS: usize = 4;
