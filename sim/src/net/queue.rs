//! The event queue: what happens next, strictly by time, and at one time in the order of scheduling.
//!
//! Near events lie in a wheel of buckets, each a few nanoseconds wide; events beyond the wheel wait in a heap and are
//! moved in when the wheel has turned far enough. Putting an event in is a few stores; only the bucket that is being
//! worked on is sorted. A bucket is a list without holes, so that reading it does not wait for memory at each event, and
//! the room of emptied ones is used again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Time;

/// Buckets are 2^13 ps = 8.2 ns wide ...
const WIDTH_BITS: u32 = 13;
/// ... and there are so many of them: 134 µs lie in the wheel.
const BUCKETS: usize = 1 << 14;
const MASK: u64 = BUCKETS as u64 - 1;

/// Events of type `E` in the order in which they are to happen.
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
    /// In the order of scheduling.
    buckets: Box<[Vec<(Time, E)>]>,
    /// One bit per bucket that is not empty.
    occupied: Box<[u64]>,
    /// Room that emptied buckets have left.
    spare: Vec<Vec<(Time, E)>>,
    /// The bucket that is being worked on, sorted, and how far.
    current: Vec<(Time, E)>,
    done: usize,
    /// The number of that bucket since the beginning of time.
    turn: u64,
    far: BinaryHeap<Reverse<Far<E>>>,
    /// Counts what went into `far`, so that equal times stay in order there.
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
    /// An empty queue at time zero.
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

    /// Events that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is going to happen any more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `event` happen at `time`, after everything that was scheduled for this time before. What lies
    /// in the past comes out next.
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

    /// The next event, removed.
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

    /// When the next event happens.
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

    /// Goes on to the next bucket that holds something.
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
        // First what was scheduled long ago, so that it stays before later events of the same time.
        self.bring_in();
        let bucket = (turn & MASK) as usize;
        self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        let emptied = std::mem::replace(&mut self.current, std::mem::take(&mut self.buckets[bucket]));
        self.spare.push(emptied);
        // Stable: entries of one time are in the order in which they were scheduled.
        self.current.sort_by_key(|(time, _)| *time);
        true
    }

    /// Moves into the wheel what is no longer too far away.
    fn bring_in(&mut self) {
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

    /// The first turn after this one whose bucket holds something.
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
        /// So many picoseconds after the event that came out last.
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
    fn the_past_is_now() {
        let mut queue = EventQueue::new();
        queue.push(Time::from_us(1), 'a');
        queue.push(Time::from_us(1), 'b');
        assert_eq!(queue.pop(), Some((Time::from_us(1), 'a')));
        queue.push(Time::ZERO, 'c');
        assert_eq!(queue.pop().map(|(_, event)| event), Some('c'), "before what is later");
        assert_eq!(queue.pop().map(|(_, event)| event), Some('b'));
    }
}
