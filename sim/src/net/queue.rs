//! The event queue: events in the order of their time, and events of one time in the order of scheduling.
//!
//! A timing wheel holds near events in buckets, each a few nanoseconds wide; later events wait in a heap until the wheel
//! has turned far enough. An insertion is a few stores; only the current bucket is sorted. A bucket is contiguous, so
//! that reading it needs no pointer chasing, and the memory of emptied buckets is reused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Time;

/// The width of a bucket: 2^13 ps = 8.2 ns.
const WIDTH_BITS: u32 = 13;
/// The number of buckets: the wheel covers 134 µs.
const BUCKETS: usize = 1 << 14;
const MASK: u64 = BUCKETS as u64 - 1;

/// Scheduled events of type `E`.
///
/// ```
/// use roce_sim::net::{EventQueue, Time};
///
/// let mut queue = EventQueue::new();
/// queue.push(Time::from_us(3), "third");
/// queue.push(Time::from_us(1), "first");
/// queue.push(Time::from_us(1), "second");
/// assert_eq!(queue.pop(), Some((Time::from_us(1), "first")));
/// assert_eq!(queue.pop(), Some((Time::from_us(1), "second")));
/// assert_eq!(queue.pop(), Some((Time::from_us(3), "third")));
/// assert_eq!(queue.pop(), None);
/// ```
#[derive(Debug)]
pub struct EventQueue<E> {
    /// The events of each bucket in the order of scheduling.
    buckets: Box<[Vec<(Time, E)>]>,
    /// One bit per bucket that is not empty.
    occupied: Box<[u64]>,
    /// The memory of emptied buckets.
    spare: Vec<Vec<(Time, E)>>,
    /// The events of the current bucket, sorted, and the number of those that are done.
    current: Vec<(Time, E)>,
    done: usize,
    /// The number of that bucket since time zero.
    turn: u64,
    far: BinaryHeap<Reverse<Far<E>>>,
    /// The number of events that went into `far`, so that events of one time stay in order there.
    sequence: u64,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Far<E> {
    key: (Time, u64),
    event: E,
}

impl<E> PartialEq for Far<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Far<E> {}

impl<E> PartialOrd for Far<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Far<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Copy> EventQueue<E> {
    /// Creates an empty queue at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buckets: vec![Vec::new(); BUCKETS].into_boxed_slice(),
            occupied: vec![0; BUCKETS / 64].into_boxed_slice(),
            spare: Vec::new(),
            current: Vec::new(),
            done: 0,
            turn: 0,
            far: BinaryHeap::new(),
            sequence: 0,
            len: 0,
        }
    }

    /// The number of scheduled events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no event is scheduled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules `event` at `time`, after the events already scheduled for this time. An event in the past comes
    /// out next.
    #[inline]
    pub fn push(&mut self, time: Time, event: E) {
        self.len += 1;
        let turn = time.as_ps() >> WIDTH_BITS;
        if turn <= self.turn {
            self.push_current(time, event);
        } else if turn - self.turn < BUCKETS as u64 {
            self.push_bucket(turn, time, event);
        } else {
            self.sequence += 1;
            self.far.push(Reverse(Far { key: (time, self.sequence), event }));
        }
    }

    fn push_current(&mut self, time: Time, event: E) {
        let waiting = self.current.get(self.done..).unwrap_or_default();
        let behind = waiting.partition_point(|(queued, _)| *queued <= time);
        self.current.insert(self.done + behind, (time, event));
    }

    #[inline]
    fn push_bucket(&mut self, turn: u64, time: Time, event: E) {
        let number = (turn & MASK) as usize;
        let bucket = &mut self.buckets[number];
        if bucket.is_empty() {
            self.occupied[number / 64] |= 1 << (number % 64);
            if let Some(room) = self.spare.pop() {
                *bucket = room;
            }
        }
        bucket.push((time, event));
    }

    /// Removes and returns the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, E)> {
        loop {
            if let Some(entry) = self.current.get(self.done) {
                self.done += 1;
                self.len -= 1;
                return Some(*entry);
            }
            if !self.advance() {
                return None;
            }
        }
    }

    /// The time of the next event.
    pub fn next_time(&mut self) -> Option<Time> {
        loop {
            if let Some((time, _)) = self.current.get(self.done) {
                return Some(*time);
            }
            if !self.advance() {
                return None;
            }
        }
    }

    /// Moves on to the next bucket that is not empty.
    fn advance(&mut self) -> bool {
        self.current.clear();
        self.done = 0;
        let near = self.next_occupied();
        let far = self.far.peek().map(|entry| entry.0.key.0.as_ps() >> WIDTH_BITS);
        let turn = match (near, far) {
            (None, None) => return false,
            (Some(near), None) => near,
            (None, Some(far)) => far,
            // Far events come in as soon as the wheel reaches them, so they are never before the near ones
            // by more than the turn that follows now.
            (Some(near), Some(far)) => near.min(far),
        };
        self.turn = turn;
        // Events from the heap come first: they were scheduled before other events of the same time.
        self.move_far_events();
        let bucket = (turn & MASK) as usize;
        self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        let emptied = std::mem::replace(&mut self.current, std::mem::take(&mut self.buckets[bucket]));
        self.spare.push(emptied);
        // Stable: entries of one time are in the order in which they were scheduled.
        self.current.sort_by_key(|(time, _)| *time);
        true
    }

    /// Moves events from the heap into the wheel that it covers now.
    fn move_far_events(&mut self) {
        while let Some(Reverse(entry)) = self.far.peek() {
            let (time, event) = (entry.key.0, entry.event);
            let turn = time.as_ps() >> WIDTH_BITS;
            if turn - self.turn >= BUCKETS as u64 {
                return;
            }
            self.push_bucket(turn, time, event);
            self.far.pop();
        }
    }

    /// The first turn after this one whose bucket is not empty.
    fn next_occupied(&self) -> Option<u64> {
        let start = self.turn + 1;
        let first = (start & MASK) as usize;
        let words = self.occupied.len();
        let (word, bit) = (first / 64, first % 64);
        for step in 0..=words {
            let at = (word + step) % words;
            let mut bits = self.occupied[at];
            if step == 0 {
                bits &= u64::MAX << bit;
            } else if step == words {
                bits &= !(u64::MAX << bit);
            }
            if bits != 0 {
                let bucket = at * 64 + bits.trailing_zeros() as usize;
                let distance = (bucket + BUCKETS - first) as u64 & MASK;
                return Some(start + distance);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// Schedules an event so many picoseconds after the last one that came out.
        Push(u64),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let delay = prop_oneof![
            4 => 0_u64..20_000,
            4 => 0_u64..2_000_000,
            2 => 100_000_000_u64..200_000_000,
            1 => 0_u64..1_000_000_000_000,
            1 => Just(0_u64),
            1 => Just((BUCKETS as u64) << WIDTH_BITS),
            1 => Just(((BUCKETS as u64) << WIDTH_BITS) - 1),
        ];
        let step = prop_oneof![3 => delay.prop_map(Step::Push), 2 => Just(Step::Pop)];
        prop::collection::vec(step, 0..600)
    }

    proptest! {
        /// The queue gives the same order as a map by time and sequence.
        #[test]
        fn as_a_sorted_map(steps in steps()) {
            let mut queue = EventQueue::new();
            let mut model = BTreeMap::new();
            let (mut now, mut sequence) = (0, 0_u32);
            for step in steps {
                match step {
                    Step::Push(delay) => {
                        queue.push(Time::from_ps(now + delay), sequence);
                        model.insert((now + delay, sequence), ());
                        sequence += 1;
                    }
                    Step::Pop => {
                        let expected = model.pop_first().map(|((time, event), ())| (Time::from_ps(time), event));
                        prop_assert_eq!(queue.next_time(), expected.map(|(time, _)| time));
                        prop_assert_eq!(queue.pop(), expected);
                        now = expected.map_or(now, |(time, _)| time.as_ps());
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            while let Some(((time, event), ())) = model.pop_first() {
                prop_assert_eq!(queue.pop(), Some((Time::from_ps(time), event)));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn an_event_in_the_past_comes_next() {
        let mut queue = EventQueue::new();
        queue.push(Time::from_us(1), 'a');
        queue.push(Time::from_us(1), 'b');
        assert_eq!(queue.pop(), Some((Time::from_us(1), 'a')));
        queue.push(Time::ZERO, 'c');
        assert_eq!(queue.pop().map(|(_, event)| event), Some('c'), "before what is later");
        assert_eq!(queue.pop().map(|(_, event)| event), Some('b'));
    }
}
