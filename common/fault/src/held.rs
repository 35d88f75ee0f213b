//! Queue of datagrams that are held until a time, or until others have overtaken them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Delivery;
use roce_transport::Instant;

/// Copies of held datagrams with their metadata, ordered by due time. Storage is reused: after the peak
/// number of held datagrams was reached once, nothing is allocated.
pub struct Held<M> {
    places: Vec<Place<M>>,
    free: Vec<usize>,
    /// Due time, sequence number of the arrival, and index in `places`.
    due: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    waiting: Vec<Waiting>,
    next_sequence: u64,
}

struct Place<M> {
    bytes: Vec<u8>,
    meta: M,
    /// Whether the datagram was reordered on purpose. Such a datagram does not overtake others itself.
    reordered: bool,
}

/// A datagram that waits for others to overtake it.
struct Waiting {
    place: usize,
    /// Number of datagrams that still have to overtake it.
    behind: u16,
    not_before: Instant,
    at_latest: Instant,
}

impl<M: Copy> Default for Held<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Copy> Held<M> {
    /// Creates an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            waiting: Vec::new(),
            next_sequence: 0,
        }
    }

    /// Keeps a copy as `delivery` describes. Returns `false` if [`MAX_HELD`] datagrams are held.
    pub fn hold(&mut self, now: Instant, delivery: &Delivery, meta: M, parts: [&[u8]; 2]) -> bool {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < MAX_HELD => {
                self.places.push(Place { bytes: Vec::new(), meta, reordered: false });
                self.places.len() - 1
            }
            None => return false,
        };
        let Some(Place { bytes, meta: kept, reordered }) = self.places.get_mut(place) else { return false };
        bytes.clear();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        delivery.flips.apply(bytes);
        *kept = meta;
        *reordered = delivery.reorder.is_some();
        let not_before = now.plus_nanos(delivery.delay_ns);
        match delivery.reorder {
            Some(reorder) => self.waiting.push(Waiting {
                place,
                behind: reorder.behind,
                not_before,
                at_latest: not_before.plus_nanos(reorder.hold_ns),
            }),
            None => self.schedule(not_before, place),
        }
        true
    }

    /// Records that another datagram has left, and has thus overtaken the waiting ones.
    pub fn overtake(&mut self) {
        let Self { waiting, due, next_sequence, .. } = self;
        waiting.retain_mut(|one| {
            one.behind = one.behind.saturating_sub(1);
            if one.behind == 0 {
                due.push(Reverse((one.not_before, *next_sequence, one.place)));
                *next_sequence += 1;
            }
            one.behind > 0
        });
    }

    /// Passes the due datagrams to `deliver`, in order. Stops when `deliver` returns `false`.
    pub fn release(&mut self, now: Instant, mut deliver: impl FnMut(&M, &[u8]) -> bool) {
        self.end_waiting(now);
        while let Some(Reverse((time, _, index))) = self.due.peek().copied() {
            if time > now {
                return;
            }
            let Some(place) = self.places.get(index) else { return };
            let reordered = place.reordered;
            if !deliver(&place.meta, &place.bytes) {
                return;
            }
            self.due.pop();
            self.free.push(index);
            if !reordered {
                self.overtake();
            }
        }
    }

    /// Returns the time at which the next datagram is due.
    pub fn next_due(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|one| one.at_latest).min();
        let due = self.due.peek().map(|Reverse((time, ..))| *time);
        [waiting, due].into_iter().flatten().min()
    }

    /// Returns whether a due datagram could not be delivered yet. New datagrams must then queue behind it.
    pub fn has_due(&self, now: Instant) -> bool {
        self.due.peek().is_some_and(|Reverse((time, ..))| *time <= now)
    }

    fn end_waiting(&mut self, now: Instant) {
        let Self { waiting, due, next_sequence, .. } = self;
        waiting.retain(|one| {
            let stays = one.at_latest > now;
            if !stays {
                due.push(Reverse((one.at_latest, *next_sequence, one.place)));
                *next_sequence += 1;
            }
            stays
        });
    }

    fn schedule(&mut self, time: Instant, place: usize) {
        self.due.push(Reverse((time, self.next_sequence, place)));
        self.next_sequence += 1;
    }
}

/// Largest number of datagrams held at once in one direction: a millisecond at 500 Gb/s, and 64 MiB.
pub const MAX_HELD: usize = 1 << 14;
