//! The egress side of a port: a queue for each priority, and the choice of the next queue.
//!
//! MAC control frames go first, then strict priorities from the highest down, then weighted priorities in
//! turn (deficit round robin, Shreedhar and Varghese 1995). The model has no clock and no buffer limit. The
//! caller specifies the paused priorities, and when a packet enters and leaves.

use std::collections::VecDeque;

use super::settings::{Class, PRIORITIES};

/// The queue of MAC control frames, which is served first, is never paused, and does not count for
/// [`Egress::bytes`].
pub const CONTROL: usize = PRIORITIES;
/// Bytes that a weight of one adds in a round. Even the longest frame requires only a few rounds.
const QUANTUM: u32 = 512;

/// Queued packets of one port, each of type `T`.
///
/// ```
/// use roce_sim::net::{Class, Egress, PRIORITIES};
///
/// let mut egress = Egress::default();
/// egress.push(0, 100, "low");
/// egress.push(6, 1_000, "high");
/// assert_eq!(egress.bytes(), 1_100);
/// let classes = [Class::Strict; PRIORITIES];
/// assert_eq!(egress.next(0, &classes), Some(6));
/// assert_eq!(egress.pop(6), Some("high"));
/// // Priority 0 is paused.
/// assert_eq!(egress.next(0b1, &classes), None);
/// ```
// `repr(C)` keeps the order of fields, so that the fields that every packet needs are adjacent.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Egress<T> {
    bytes: u64,
    most_bytes: u64,
    /// Non-empty queues, one bit each.
    waiting: u16,
    queues: [Queue<T>; PRIORITIES + 1],
    turns: Turns,
}

#[derive(Clone, Debug)]
struct Queue<T> {
    /// The packets, each with its length.
    entries: VecDeque<(u32, T)>,
    bytes: u64,
}

/// Deficit round robin: the bytes that each weighted queue may still send, and the next queue.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    deficit: [u32; PRIORITIES],
    next: u8,
    /// Whether the next queue has received its share of this round.
    granted: bool,
}

impl<T> Default for Egress<T> {
    fn default() -> Self {
        let queues = [const { Queue { entries: VecDeque::new(), bytes: 0 } }; PRIORITIES + 1];
        Self { queues, waiting: 0, bytes: 0, most_bytes: 0, turns: Turns::default() }
    }
}

impl<T> Egress<T> {
    /// Appends a packet of `len` bytes to a queue: a priority, or [`CONTROL`].
    #[inline]
    pub fn push(&mut self, queue: usize, len: u32, packet: T) {
        self.queues[queue].entries.push_back((len, packet));
        self.queues[queue].bytes += u64::from(len);
        self.waiting |= 1 << queue;
        if queue != CONTROL {
            self.bytes += u64::from(len);
            self.most_bytes = self.most_bytes.max(self.bytes);
        }
    }

    /// Removes the first packet of a queue.
    #[inline]
    pub fn pop(&mut self, queue: usize) -> Option<T> {
        let place = &mut self.queues[queue];
        let (len, packet) = place.entries.pop_front()?;
        place.bytes -= u64::from(len);
        if place.entries.is_empty() {
            self.waiting &= !(1 << queue);
        }
        if queue != CONTROL {
            self.bytes -= u64::from(len);
        }
        Some(packet)
    }

    /// Returns the first packet of a queue.
    #[must_use]
    pub fn front(&self, queue: usize) -> Option<&T> {
        self.queues[queue].entries.front().map(|(_, packet)| packet)
    }

    /// Returns the first packet of the highest non-empty queue.
    #[must_use]
    pub fn foremost(&self) -> Option<&T> {
        self.front(self.waiting.checked_ilog2()? as usize)
    }

    /// Returns the packets in a queue, first packet first.
    pub fn queued(&self, queue: usize) -> impl Iterator<Item = &T> {
        self.queues[queue].entries.iter().map(|(_, packet)| packet)
    }

    /// Returns the number of packets in a queue.
    #[must_use]
    pub fn len(&self, queue: usize) -> usize {
        self.queues[queue].entries.len()
    }

    /// Returns the number of bytes in a queue.
    #[must_use]
    pub fn bytes_of(&self, queue: usize) -> u64 {
        self.queues[queue].bytes
    }

    /// Returns the number of bytes of all priorities.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the largest value that [`bytes`](Self::bytes) has had.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Returns whether all queues are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the non-empty queues that are not paused, one bit each. `paused` has one bit for each
    /// priority.
    #[inline]
    #[must_use]
    pub fn sendable(&self, paused: u8) -> u16 {
        self.waiting & !u16::from(paused)
    }

    /// Returns the queue that sends next. A weighted queue is charged for its first packet, so the caller
    /// must send that packet.
    #[inline]
    pub fn next(&mut self, paused: u8, classes: &[Class; PRIORITIES]) -> Option<usize> {
        let sendable = self.sendable(paused);
        let mut rest = sendable;
        while rest != 0 {
            let queue = (u16::BITS - 1 - rest.leading_zeros()) as usize;
            if queue == CONTROL || classes[queue] == Class::Strict {
                return Some(queue);
            }
            rest &= !(1 << queue);
        }
        if sendable == 0 { None } else { self.next_weighted(classes, sendable) }
    }

    /// Returns the next weighted queue. `sendable` contains no strict queue.
    fn next_weighted(&mut self, classes: &[Class; PRIORITIES], sendable: u16) -> Option<usize> {
        let turns = &mut self.turns;
        for queue in 0..PRIORITIES {
            // An empty queue loses its deficit.
            if self.waiting >> queue & 1 == 0 {
                turns.deficit[queue] = 0;
            }
        }
        // Every round adds at least one quantum to each queue, so the longest frame requires few rounds.
        for _ in 0..PRIORITIES * 64 {
            let queue = usize::from(turns.next);
            let front = self.queues[queue].entries.front().filter(|_| sendable >> queue & 1 == 1);
            if let (Some((len, _)), Class::Weighted(weight)) = (front, classes[queue]) {
                if !turns.granted {
                    turns.granted = true;
                    turns.deficit[queue] += weight.max(1).saturating_mul(QUANTUM);
                }
                if turns.deficit[queue] >= *len {
                    turns.deficit[queue] -= len;
                    return Some(queue);
                }
            }
            turns.next = (turns.next + 1) % PRIORITIES as u8;
            turns.granted = false;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: [Class; PRIORITIES] = [Class::Strict; PRIORITIES];

    fn drain(egress: &mut Egress<u32>, paused: u8, classes: &[Class; PRIORITIES], most: usize) -> Vec<usize> {
        let mut order = Vec::new();
        while order.len() < most
            && let Some(queue) = egress.next(paused, classes)
        {
            egress.pop(queue).unwrap();
            order.push(queue);
        }
        order
    }

    #[test]
    fn strict_from_the_highest_down_and_control_frames_first() {
        let mut egress = Egress::default();
        for queue in [0, 3, 6, CONTROL, 3] {
            egress.push(queue, 100, 0);
        }
        assert_eq!(drain(&mut egress, 0, &STRICT, 9), [CONTROL, 6, 3, 3, 0]);
        egress.push(3, 100, 0);
        egress.push(CONTROL, 100, 0);
        assert_eq!(drain(&mut egress, 0xff, &STRICT, 9), [CONTROL], "control frames are never paused");
        assert_eq!(drain(&mut egress, 0xf7, &STRICT, 9), [3]);
        assert!(egress.is_empty());
    }

    #[test]
    fn weights_share_bytes_and_not_frames() {
        let mut classes = STRICT;
        (classes[1], classes[2]) = (Class::Weighted(3), Class::Weighted(1));
        let mut egress = Egress::default();
        for _ in 0..4_000 {
            egress.push(1, 1_086, 0);
            egress.push(2, 4_158, 0);
        }
        let order = drain(&mut egress, 0, &classes, 1_300);
        let small = order.iter().filter(|queue| **queue == 1).count() as f64 * 1_086.0;
        let large = order.iter().filter(|queue| **queue == 2).count() as f64 * 4_158.0;
        assert!((small / large - 3.0).abs() < 0.1, "{}", small / large);
    }

    #[test]
    fn a_queue_keeps_order_and_counts_bytes() {
        let mut egress = Egress::default();
        (0..3).for_each(|number| egress.push(5, 66, number));
        egress.push(2, 10, 9);
        egress.push(CONTROL, 64, 8);
        assert_eq!((egress.len(5), egress.bytes_of(5), egress.bytes()), (3, 198, 208));
        assert_eq!((egress.front(5), egress.bytes_of(CONTROL)), (Some(&0), 64));
        assert_eq!([(); 4].map(|()| egress.pop(5)), [Some(0), Some(1), Some(2), None]);
        assert_eq!(
            (egress.bytes(), egress.most_bytes(), egress.sendable(0)),
            (10, 208, 1 << CONTROL | 1 << 2)
        );
    }
}
