//! What an injector remembers of the datagrams it saw, in bounded memory.

use std::collections::BTreeMap;

use roce_packet::{Bth, Direction, Psn, Qpn};

/// Which queue pairs exist and where their sequence numbers began.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// The number of each queue pair in the order of appearance, from 1.
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

/// What [`Sightings`] knows about a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The place of its destination queue pair in the order of their appearance, from 1. `None` for queue pair 1 and
    /// those beyond the 65,536 that are tracked.
    pub relative_qp: Option<u32>,
    /// Its sequence number, counted from the first one seen.
    pub relative_psn: Option<u32>,
    /// Which time this sequence number is seen, from 1.
    pub pass: u32,
}

impl Default for Sightings {
    fn default() -> Self {
        Self { flows: Flows::default(), passes: Passes::new() }
    }
}

impl Sightings {
    /// Takes in the next datagram of one direction.
    pub fn observe(&mut self, bth: &Bth) -> Sighting {
        let Relative { qp, psn } = self.flows.observe(bth);
        Sighting { relative_qp: qp, relative_psn: psn, pass: self.passes.observe(bth) }
    }
}

/// The kinds of traffic to one queue pair that count their sequence numbers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Request,
    Response,
    Notification,
}

impl Class {
    /// Unassigned opcodes count as requests.
    pub(super) fn of(bth: &Bth) -> Self {
        match bth.opcode.info().map(|info| info.direction) {
            Some(Direction::Response) => Self::Response,
            Some(Direction::Cnp) => Self::Notification,
            Some(Direction::Request) | None => Self::Request,
        }
    }
}

/// What [`Flows`] knows about a datagram; `None` where the table was full when it appeared.
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

/// How often each sequence number was seen, for the [`Passes::CAPACITY`] or so that were seen last.
///
/// One that fell out counts from 1 again. Retransmissions follow within a window of packets, so what
/// falls out does not come back in practice until the 24-bit number has gone round, and then it must
/// count from 1.
#[derive(Debug)]
pub(super) struct Passes {
    /// Each set is ordered by use, the latest first.
    sets: Vec<[Seen; WAYS]>,
}

/// A sequence number and its count, 0 where nothing is stored.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    key: u64,
    count: u32,
}

impl Passes {
    /// Sequence numbers that are remembered.
    #[cfg(test)]
    pub(super) const CAPACITY: usize = SETS * WAYS;

    pub(super) fn new() -> Self {
        Self { sets: vec![[Seen::default(); WAYS]; SETS] }
    }

    /// Counts the datagram and returns which time it is, from 1.
    pub(super) fn observe(&mut self, bth: &Bth) -> u32 {
        let class = Class::of(bth) as u64;
        let key = class << 48 | u64::from(bth.dest_qp.get()) << 24 | u64::from(bth.psn.get());
        // Neighbouring sequence numbers fall into neighbouring sets, so that one flow fills the table
        // evenly; the flows start at places scattered by the multiplication.
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

/// The most queue pairs and flows that are tracked.
pub(super) const MAX_FLOWS: usize = 1 << 16;
const SETS: usize = 1 << 12;
const WAYS: usize = 4;
