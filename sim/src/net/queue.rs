//! The event queue. Events are ordered by time, then by rank, then by order of scheduling.
//!
//! The rank makes the order independent of the node that scheduled first: see [`Event`](super::event::Event).
//!
//! A timing wheel contains near events in buckets, each a few nanoseconds wide. Later events wait in a heap
//! until the wheel covers them. An insertion takes a few stores, and only the current bucket is sorted. A
//! bucket is contiguous, so reading it requires no pointer chasing. The memory of emptied buckets is reused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Time;

/// The width of a bucket: 2^13 ps = 8.2 ns.
const WIDTH_BITS: u32 = 13;
/// The number of buckets: the wheel covers 134 µs.
const BUCKETS: usize = 1 << 14;
const MASK: u64 = BUCKETS as u64 - 1;
/// The number of bits of an index in a bucket. A bucket with more events than indices is sorted directly.
const INDEX_BITS: u32 = if cfg!(test) { 4 } else { 20 };
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// The remaining bits, which contain the rank.
const RANK_BITS: u32 = 31;
const MOST_RANK: u32 = (1 << RANK_BITS) - 1;

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
    buckets: Box<[Vec<Entry<E>>; BUCKETS]>,
    /// One bit for each non-empty bucket.
    occupied: Box<[u64; BUCKETS / 64]>,
    /// The memory of emptied buckets.
    spare: Vec<Vec<Entry<E>>>,
    /// The events of the current bucket.
    current: Vec<Entry<E>>,
    /// The sorted order of `current`. Each number contains [`Entry::place`] in its upper bits and the index
    /// in `current` in its lower bits. Sorting numbers is much faster than sorting events.
    order: Vec<u64>,
    /// Whether `order` is in use. If not, `current` itself is sorted, because it has more events than
    /// indices.
    is_indexed: bool,
    /// The number of current events that have been removed.
    done: usize,
    /// The number of the current bucket, counted from time zero.
    turn: u64,
    far: BinaryHeap<Reverse<Far<E>>>,
    /// The number of events that were pushed to `far`, which keeps events of equal time and rank in order.
    sequence: u64,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    time: Time,
    rank: u32,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Time, u32) {
        (self.time, self.rank)
    }

    /// Returns the order of entries of one bucket as one number. The times of the entries differ in the lower
    /// bits only.
    #[inline]
    fn place(&self) -> u64 {
        let offset = self.time.as_ps() & ((1 << WIDTH_BITS) - 1);
        offset << RANK_BITS | u64::from(self.rank)
    }
}

#[derive(Clone, Copy, Debug)]
struct Far<E> {
    key: (Time, u32, u64),
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
            buckets: boxed(Vec::new()),
            occupied: boxed(0),
            spare: Vec::new(),
            current: Vec::new(),
            order: Vec::new(),
            is_indexed: true,
            done: 0,
            turn: 0,
            far: BinaryHeap::new(),
            sequence: 0,
            len: 0,
        }
    }

    /// Returns the number of scheduled events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no event is scheduled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules `event` at `time`, after the events already scheduled for this time. An event in the past
    /// comes out next.
    #[inline(always)]
    pub fn push(&mut self, time: Time, event: E) {
        self.push_ranked(time, MOST_RANK, event);
    }

    /// Schedules `event` at `time`, before events of this time with a higher rank and after the others.
    /// [`push`](Self::push) uses the highest rank, 2^31 - 1, which also limits `rank`.
    // Inlined, so that the entry is written to its final place. Writing it to the stack first would take half
    // of the time.
    #[inline(always)]
    pub fn push_ranked(&mut self, time: Time, rank: u32, event: E) {
        self.len += 1;
        let (turn, rank) = (time.as_ps() >> WIDTH_BITS, rank.min(MOST_RANK));
        if turn.wrapping_sub(self.turn).wrapping_sub(1) < BUCKETS as u64 - 1 {
            self.bucket(turn).push(Entry { time, rank, event });
        } else {
            self.push_elsewhere(turn, Entry { time, rank, event });
        }
    }

    #[cold]
    #[inline(never)]
    fn push_elsewhere(&mut self, turn: u64, entry: Entry<E>) {
        if turn <= self.turn {
            return self.push_current(entry);
        }
        self.sequence += 1;
        let key = (entry.time, entry.rank, self.sequence);
        self.far.push(Reverse(Far { key, event: entry.event }));
    }

    fn push_current(&mut self, entry: Entry<E>) {
        if self.is_indexed && self.current.len() as u64 > INDEX_MASK {
            let left = self.order.get(self.done..).unwrap_or_default();
            self.current = left.iter().map(|place| self.current[(place & INDEX_MASK) as usize]).collect();
            (self.is_indexed, self.done) = (false, 0);
        }
        if self.is_indexed {
            let is_past = entry.time.as_ps() >> WIDTH_BITS < self.turn;
            let place = if is_past { 0 } else { entry.place() };
            let place = place << INDEX_BITS | self.current.len() as u64;
            let waiting = self.order.get(self.done..).unwrap_or_default();
            let behind = waiting.partition_point(|queued| *queued <= place);
            self.current.push(entry);
            return self.order.insert(self.done + behind, place);
        }
        let waiting = self.current.get(self.done..).unwrap_or_default();
        let behind = waiting.partition_point(|queued| queued.key() <= entry.key());
        self.current.insert(self.done + behind, entry);
    }

    /// Returns the bucket of a turn within the wheel, for an event that is pushed next.
    #[inline(always)]
    fn bucket(&mut self, turn: u64) -> &mut Vec<Entry<E>> {
        let number = (turn & MASK) as usize;
        let bucket = &mut self.buckets[number];
        if bucket.is_empty() {
            self.occupied[number / 64] |= 1 << (number % 64);
            if let Some(room) = self.spare.pop() {
                *bucket = room;
            }
        }
        bucket
    }

    /// Removes and returns the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.pop_until(Time::NEVER)
    }

    /// Removes and returns the next event if its time is not after `last`.
    #[inline]
    pub fn pop_until(&mut self, last: Time) -> Option<(Time, E)> {
        loop {
            let next = self.pop_current(last);
            if next.is_some() || !self.advance(last) {
                return next;
            }
        }
    }

    /// Returns the next event of the current bucket.
    #[inline]
    fn front(&self) -> Option<&Entry<E>> {
        if !self.is_indexed {
            return self.current.get(self.done);
        }
        let place = self.order.get(self.done)?;
        self.current.get((place & INDEX_MASK) as usize)
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        if let Some(entry) = self.front() {
            return Some(entry.time);
        }
        let near = self.next_occupied().and_then(|turn| {
            let bucket = &self.buckets[(turn & MASK) as usize];
            bucket.iter().map(|entry| entry.time).min()
        });
        let far = self.far.peek().map(|far| far.0.key.0);
        near.into_iter().chain(far).min()
    }

    /// Returns the events of the current bucket in arbitrary order, including removed events.
    pub(super) fn current(&self) -> impl Iterator<Item = &E> {
        self.current.iter().map(|entry| &entry.event)
    }

    /// Removes and returns the next event of the current bucket if its time is not after `last`.
    #[inline]
    pub(super) fn pop_current(&mut self, last: Time) -> Option<(Time, E)> {
        let entry = self.front().filter(|entry| entry.time <= last)?;
        let next = (entry.time, entry.event);
        self.done += 1;
        self.len -= 1;
        Some(next)
    }

    /// Moves on to the next non-empty bucket, unless it begins after `last`, because events may still be
    /// pushed before it. Does nothing while the current bucket contains events.
    #[inline(never)]
    pub(super) fn advance(&mut self, last: Time) -> bool {
        if self.front().is_some() {
            return false;
        }
        let near = self.next_occupied();
        let far = self.far.peek().map(|entry| entry.0.key.0.as_ps() >> WIDTH_BITS);
        let turn = match (near, far) {
            (None, None) => return false,
            (Some(near), None) => near,
            (None, Some(far)) => far,
            // Far events enter the wheel as soon as the wheel covers them, so no far event precedes a near
            // event.
            (Some(near), Some(far)) => near.min(far),
        };
        if turn > last.as_ps() >> WIDTH_BITS {
            return false;
        }
        self.current.clear();
        self.done = 0;
        self.turn = turn;
        // Events from the heap come first, because they were scheduled before other events of the same time.
        self.move_far_events();
        let bucket = (turn & MASK) as usize;
        self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        let emptied = std::mem::replace(&mut self.current, std::mem::take(&mut self.buckets[bucket]));
        self.spare.push(emptied);
        self.order.clear();
        self.is_indexed = self.current.len() as u64 <= INDEX_MASK + 1;
        if self.is_indexed {
            // Entries of equal time and rank are ordered by their indices, which follow the order of
            // scheduling.
            let places = (0..).zip(&self.current);
            self.order.extend(places.map(|(index, entry)| entry.place() << INDEX_BITS | index));
            self.order.sort_unstable();
        } else {
            self.current.sort_by_key(Entry::place);
        }
        true
    }

    /// Moves events from the heap into the wheel if the wheel covers them now.
    fn move_far_events(&mut self) {
        while let Some(Reverse(entry)) = self.far.peek() {
            let Far { key: (time, rank, _), event } = *entry;
            let turn = time.as_ps() >> WIDTH_BITS;
            if turn - self.turn >= BUCKETS as u64 {
                return;
            }
            self.bucket(turn).push(Entry { time, rank, event });
            self.far.pop();
        }
    }

    /// Returns the first turn after the current one whose bucket is not empty.
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

/// Creates a boxed array without placing it on the stack.
fn boxed<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    vec![value; N]
        .into_boxed_slice()
        .try_into()
        .unwrap_or_else(|_| unreachable!("the vector has this length"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// Schedules an event of a rank, this number of picoseconds after the last removed event.
        Push(u64, u32),
        Pop,
        /// Removes the next event if it is at most this number of picoseconds away.
        PopUntil(u64),
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
        let rank = prop_oneof![Just(MOST_RANK), 0_u32..3];
        let step = prop_oneof![
            6 => (delay, rank).prop_map(|(delay, rank)| Step::Push(delay, rank)),
            3 => Just(Step::Pop),
            1 => (0_u64..300_000_000).prop_map(Step::PopUntil),
        ];
        prop::collection::vec(step, 0..600)
    }

    proptest! {
        /// The queue gives the same order as a map by time, rank and sequence.
        #[test]
        fn as_a_sorted_map(steps in steps()) {
            let mut queue = EventQueue::new();
            let mut model = BTreeMap::new();
            let (mut now, mut sequence) = (0, 0_u32);
            for step in steps {
                match step {
                    Step::Push(delay, rank) => {
                        queue.push_ranked(Time::from_ps(now + delay), rank, sequence);
                        model.insert((now + delay, rank, sequence), ());
                        sequence += 1;
                    }
                    Step::Pop | Step::PopUntil(_) => {
                        let last = match step {
                            Step::PopUntil(span) => now + span,
                            _ => u64::MAX,
                        };
                        let first = model.first_key_value().map(|(key, ())| *key);
                        let first = first.map(|(time, _, event)| (Time::from_ps(time), event));
                        prop_assert_eq!(queue.next_time(), first.map(|(time, _)| time));
                        let expected = first.filter(|(time, _)| time.as_ps() <= last);
                        prop_assert_eq!(queue.pop_until(Time::from_ps(last)), expected);
                        if expected.is_some() {
                            model.pop_first();
                        }
                        now = expected.map_or(now, |(time, _)| time.as_ps());
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            while let Some(((time, _, event), ())) = model.pop_first() {
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
