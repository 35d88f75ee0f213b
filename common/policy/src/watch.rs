//! Decides which thread watches the device: the only state of the policy outside the lock.
//!
//! Threads inside the library run the protocol, which hardware does elsewhere. At any time, threads of one
//! kind watch the device, which means that they receive packets and handle timers:
//!
//! | the application | watches the device | the background thread |
//! |---|---|---|
//! | polled in the last 50 µs, is inside a long poll, or yields the processor after a poll | the thread that polls | backs off |
//! | has a thread that waits | that thread | sleeps until a protocol deadline that no thread handled, but at most 250 µs while waits come and go |
//! | does neither | the background thread | serves peers and timers |
//!
//! A back-off lasts 250 µs. The time doubles up to 2 ms while the application keeps polling. The time halves
//! if the application has polled since the last check but does not poll now. A request for a notification
//! ends a back-off.
//!
//! Threads of the application and the background thread read each other's state without a lock. Each of them
//! first stores its own state and then reads the other's, with sequential consistency, so at least one of two
//! threads sees the other (`tests::loom`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roce_transport::Instant;

use crate::Timing;

/// After more than this many consecutive recorded polls, the background thread is told to back off. A thread
/// that polls briefly before it sleeps again would have to wake it at once.
const POLLS_BESIDE: u64 = 4;
/// After this many empty checks in a row, polls of an empty queue check the device once per
/// [`Timing::poll_interval`].
const EMPTY_CHECKS: u32 = 64;

/// A word that several threads read and write with sequential consistency.
pub trait Word {
    /// Creates a word with this value.
    fn new(value: u64) -> Self;
    /// Returns the value.
    fn load(&self) -> u64;
    /// Sets the value.
    fn store(&self, value: u64);
    /// Replaces the value if it is `old`. Returns whether it was.
    fn replace(&self, old: u64, new: u64) -> bool;
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Ordering::SeqCst);
    }

    #[inline]
    fn replace(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// The threads that watch the device.
#[derive(Debug)]
pub struct Watch<W = AtomicU64> {
    timing: Timing,
    /// A [`Polled`].
    polled: W,
    /// A [`Waiters`].
    waiters: W,
    /// A [`Background`] with a count of polls.
    background: W,
}

/// Which thread watches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// A thread of the application that polls.
    Poller,
    /// A thread of the application that waits.
    Waiter,
    /// The background thread.
    Background,
}

/// The consequences of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Whether a poll of an empty queue checks the device.
    pub checks: bool,
    /// Whether the caller wakes the background thread, which then backs off.
    pub wakes: bool,
}

/// The state of the background thread, as far as an application thread may have to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Background {
    /// The thread runs, or sleeps for a time that no other thread shortens.
    Awake,
    /// The thread backs off from the device because the application polls. A request for a notification wakes
    /// it.
    BackingOff,
    /// The thread sleeps until the device is readable or a deadline comes.
    Watching,
    /// The thread relies on waiting threads to watch the device. The last one that leaves wakes it.
    Relying,
}

/// The last poll of the application: its time in nanoseconds, of which the lowest bit tells whether polls of
/// an empty queue check the device rarely. 0 if the application never polled or announced that it stops. The
/// time is in the future while a polling thread yields its processor.
#[derive(Clone, Copy)]
struct Polled(u64);

impl Polled {
    const NEVER: Self = Self(0);

    fn new(time: Instant, is_rare: bool) -> Self {
        Self(time.as_nanos().max(2) & !1 | u64::from(is_rare))
    }

    fn time(self) -> Option<Instant> {
        (self.0 > 1).then(|| Instant::from_nanos(self.0 & !1))
    }

    fn is_rare(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns whether the last poll was less than `time` before `now`.
    fn is_within(self, now: Instant, time: Duration) -> bool {
        self.time().is_some_and(|last| now.since(last) < time)
    }
}

/// The threads that wait. A signal handler may jump out of a wait (`siglongjmp`), and then no destructor
/// runs. So threads count only until a time, which each extends before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiters {
    /// Changes when the last thread leaves, and when the time of threads that did not leave has passed.
    epoch: u8,
    count: u8,
    /// End of the time, in units of 1,024 ns.
    until: u64,
}

impl Waiters {
    /// The bits of the time. 2^48 units are nine years.
    const UNTIL: u64 = (1 << 48) - 1;

    fn from_word(word: u64) -> Self {
        Self { epoch: (word >> 56) as u8, count: (word >> 48) as u8, until: word & Self::UNTIL }
    }

    fn word(self) -> u64 {
        u64::from(self.epoch) << 56 | u64::from(self.count) << 48 | self.until & Self::UNTIL
    }

    fn unit(time: Instant) -> u64 {
        time.as_nanos() >> 10
    }

    fn are_any(self, now: Instant) -> bool {
        self.count > 0 && self.until > Self::unit(now)
    }

    /// Returns the time until which the threads count.
    fn end(self) -> Instant {
        Instant::from_nanos(self.until << 10)
    }
}

/// The part of a waiting thread in [`Watch`].
#[derive(Debug, Default)]
pub struct Waiting {
    /// The epoch in which the thread counts, if it does.
    epoch: Option<u8>,
}

impl<W: Word> Watch<W> {
    /// Creates the state of a context whose background thread is awake, and which no thread has polled.
    #[must_use]
    pub fn new(timing: &Timing) -> Self {
        let [polled, waiters, background] = [(); 3].map(|()| W::new(0));
        Self { timing: *timing, polled, waiters, background }
    }

    /// Returns the times of the policy.
    pub const fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns the time until which polls of an empty queue do not check the device, if they check rarely.
    pub fn until_next_check(&self, now: Instant) -> Duration {
        let last = Polled(self.polled.load()).time();
        last.map_or(Duration::ZERO, |last| (last + self.timing.poll_interval).since(now))
    }

    /// Returns which thread watches the device. `is_locked` returns whether a thread has the lock.
    pub fn watcher(&self, now: Instant, is_locked: impl FnOnce() -> bool) -> Watcher {
        let polled = Polled(self.polled.load());
        if polled.is_within(now, self.timing.polled_recently)
            || polled.is_within(now, self.timing.polled_lately) && is_locked()
        {
            Watcher::Poller
        } else if Waiters::from_word(self.waiters.load()).are_any(now) {
            Watcher::Waiter
        } else {
            Watcher::Background
        }
    }

    /// Records a poll. It is written rarely, because threads that poll side by side would contend for the
    /// cache line.
    #[inline]
    pub fn polls(&self, now: Instant) -> Poll {
        let last = Polled(self.polled.load());
        let Some(time) = last.time() else { return self.note_poll(now, last, Duration::MAX) };
        if time > now {
            // Another thread yields.
            return Poll { checks: true, wakes: false };
        }
        let ago = now.since(time);
        if ago < self.timing.poll_interval {
            return Poll { checks: !last.is_rare(), wakes: false };
        }
        self.note_poll(now, last, ago)
    }

    fn note_poll(&self, now: Instant, last: Polled, ago: Duration) -> Poll {
        self.polled.store(Polled::new(now, last.is_rare()).0);
        Poll { checks: true, wakes: self.polls_beside_background(ago) }
    }

    /// Records a poll, `ago` after the last one, while the background thread may sleep until the device is
    /// readable. Each packet wakes that thread, but it sleeps again without noticing polls if the application
    /// has taken the packet by then. So an application that keeps polling makes it back off. Returns whether
    /// the caller wakes it.
    fn polls_beside_background(&self, ago: Duration) -> bool {
        let word = self.background.load();
        let (state, polls) = (word & 0xff, word >> 8);
        if state != Background::Watching as u64 {
            return false;
        }
        if ago >= self.timing.polled_recently {
            self.background.replace(word, state);
            return false;
        }
        if polls >= POLLS_BESIDE {
            return self.background.replace(word, Background::Awake as u64);
        }
        self.background.replace(word, (polls + 1) << 8 | state);
        false
    }

    /// Records the outcome of a check of the device by a poll. `empty` is the number of consecutive checks
    /// that found nothing, which the lock protects. Returns whether checks are rare.
    #[inline]
    pub fn checked(&self, empty: &mut u32, found: bool) -> bool {
        *empty = if found { 0 } else { empty.saturating_add(1) };
        let is_rare = *empty >= EMPTY_CHECKS;
        let last = Polled(self.polled.load());
        if last.is_rare() != is_rare
            && let Some(time) = last.time()
        {
            // If another thread has polled meanwhile, the next check changes it.
            self.polled.replace(last.0, Polled::new(time, is_rare).0);
        }
        is_rare
    }

    /// Records that a polling thread yields its processor. The background thread still backs off, because
    /// the polling thread polls again once it has the processor back.
    pub fn yields(&self, now: Instant) {
        let ahead = self.timing.yielded.saturating_sub(self.timing.polled_recently);
        let is_rare = Polled(self.polled.load()).is_rare();
        self.polled.store(Polled::new(now + ahead, is_rare).0);
    }

    /// Records that the polling thread has its processor back, which it left at `began`. The yield does not
    /// count as a check of the device.
    pub fn returns(&self, began: Instant, now: Instant) {
        let is_rare = Polled(self.polled.load()).is_rare();
        let ago = now.as_nanos().saturating_sub(self.timing.poll_interval.as_nanos() as u64);
        self.polled.store(Polled::new(began.max(Instant::from_nanos(ago)), is_rare).0);
    }

    /// Records that the application is about to sleep. Returns whether the caller wakes the background
    /// thread, which then watches the device at once.
    pub fn stops_polling(&self) -> bool {
        self.polled.store(Polled::NEVER.0);
        self.takes_background_out_of(Background::BackingOff)
    }

    /// Marks a thread as waiting for `time` from now on, at most [`Timing::longest_sleep`]. A thread beyond
    /// the 255th does not count; then the background thread serves as well, which only costs time.
    pub fn waits(&self, now: Instant, waiting: &mut Waiting, time: Duration) {
        let end = now + time.min(self.timing.longest_sleep) + self.timing.margin;
        let until = Waiters::unit(end) + 1;
        loop {
            let word = self.waiters.load();
            let known = Waiters::from_word(word);
            let new = if known.count == 0 {
                Waiters { count: 1, until, ..known }
            } else if !known.are_any(now) {
                Waiters { epoch: known.epoch.wrapping_add(1), count: 1, until }
            } else if waiting.epoch == Some(known.epoch) {
                Waiters { until: until.max(known.until), ..known }
            } else if known.count < u8::MAX {
                Waiters { count: known.count + 1, until: until.max(known.until), ..known }
            } else {
                waiting.epoch = None;
                return;
            };
            if new == known || self.waiters.replace(word, new.word()) {
                waiting.epoch = Some(new.epoch);
                return;
            }
        }
    }

    /// Marks a thread as no longer waiting. Returns whether the caller wakes the background thread.
    ///
    /// While threads wait for long, the background thread sleeps and does not watch the device. Otherwise it
    /// checks soon by itself, and waking it after each short wait would cost more than the waits.
    pub fn leaves(&self, waiting: &mut Waiting) -> bool {
        let Some(epoch) = waiting.epoch.take() else { return false };
        loop {
            let word = self.waiters.load();
            let known = Waiters::from_word(word);
            if known.epoch != epoch || known.count == 0 {
                return false;
            }
            let is_last = known.count == 1;
            let new = if is_last {
                Waiters { epoch: epoch.wrapping_add(1), count: 0, until: 0 }
            } else {
                Waiters { count: known.count - 1, ..known }
            };
            if self.waiters.replace(word, new.word()) {
                return is_last && self.takes_background_out_of(Background::Relying);
            }
        }
    }

    /// Returns whether the background thread was in this state, and marks it awake; the caller wakes it.
    fn takes_background_out_of(&self, state: Background) -> bool {
        let word = self.background.load();
        word & 0xff == state as u64 && self.background.replace(word, Background::Awake as u64)
    }

    /// Records the state of the background thread. It then sleeps only if the reason for its sleep still
    /// exists, because a thread that ended the reason before the call does not wake it.
    pub fn set_background(&self, state: Background) {
        self.background.store(state as u64);
    }
}

/// The next action of the background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Leaves the device to the polling application for this time, or until it is woken.
    BackOff(Duration),
    /// Relies on waiting threads for this time, or until it is woken, and handles deadlines that were set
    /// after those threads went to sleep.
    Rely(Duration),
    /// Watches the device.
    Serve,
}

/// The knowledge of the background thread about the application.
#[derive(Debug, Default)]
pub struct Shift {
    /// The last back-off, if the application has polled since.
    last: Option<Duration>,
    /// The epoch of the waiting threads at the last check, and when it last changed.
    epoch: u8,
    left: Option<Instant>,
}

impl Shift {
    /// Decides what the background thread does now, and records its state. `is_locked` returns whether a
    /// thread has the lock.
    pub fn next<W: Word>(
        &mut self,
        watch: &Watch<W>,
        now: Instant,
        is_locked: impl FnOnce() -> bool,
    ) -> Duty {
        let timing = &watch.timing;
        let watcher = watch.watcher(now, is_locked);
        let polled = Polled(watch.polled.load());
        let has_polled_within = |time| polled.is_within(now, time);
        let comes_and_goes = self.comes_and_goes(watch, now);
        self.last = back_off_time(timing, watcher, self.last, has_polled_within);
        match (self.last, watcher) {
            (Some(time), _) => {
                // An application that polls between short waits soon waits again. Waking this thread for
                // each of its sleeps would cost more than the sleeps.
                let state = if comes_and_goes { Background::Awake } else { Background::BackingOff };
                watch.set_background(state);
                // Checked after the store, because the application may have stopped just before it.
                if Polled(watch.polled.load()).is_within(now, time.max(timing.yielded)) {
                    return Duty::BackOff(time);
                }
                self.last = None;
                self.rely(watch, now, comes_and_goes)
            }
            (None, Watcher::Waiter) => self.rely(watch, now, comes_and_goes),
            (None, _) => self.serve(watch),
        }
    }

    /// Returns whether a wait has ended within [`Timing::left_recently`].
    fn comes_and_goes<W: Word>(&mut self, watch: &Watch<W>, now: Instant) -> bool {
        let epoch = Waiters::from_word(watch.waiters.load()).epoch;
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.left = Some(now);
        }
        self.left.is_some_and(|left| now.since(left) <= watch.timing.left_recently)
    }

    fn rely<W: Word>(&mut self, watch: &Watch<W>, now: Instant, comes_and_goes: bool) -> Duty {
        let state = if comes_and_goes { Background::Awake } else { Background::Relying };
        watch.set_background(state);
        // Checked after the store, because the last thread may have left just before it.
        let waiters = Waiters::from_word(watch.waiters.load());
        if !waiters.are_any(now) {
            return self.serve(watch);
        }
        // A thread that jumped out of its wait does not wake this one.
        let longest = waiters.end().since(now).min(watch.timing.longest_sleep);
        Duty::Rely(if comes_and_goes { watch.timing.back_off } else { longest })
    }

    fn serve<W: Word>(&mut self, watch: &Watch<W>) -> Duty {
        watch.set_background(Background::Awake);
        Duty::Serve
    }
}

/// Returns how long the background thread backs off now: while the application polls, twice as long as the
/// last time.
///
/// An application that works between polls, or polls several engines in turn, is often not polling when this
/// thread checks. If it has polled since the last check, the thread still backs off, for half the time: two
/// threads that share a processor halve the rate of an application.
fn back_off_time(
    timing: &Timing,
    watcher: Watcher,
    last: Option<Duration>,
    has_polled_within: impl FnOnce(Duration) -> bool,
) -> Option<Duration> {
    match (watcher, last) {
        (Watcher::Poller, None) => Some(timing.back_off),
        (Watcher::Poller, Some(last)) => Some((2 * last).min(timing.longest_back_off)),
        (Watcher::Background, Some(last)) if has_polled_within(last) => Some((last / 2).max(timing.back_off)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::Ordering::SeqCst;

    const TIMING: Timing = Timing::USUAL;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn watch() -> Watch {
        Watch::new(&TIMING)
    }

    impl Watch {
        fn watcher_at(&self, micros: u64) -> Watcher {
            self.watcher(at(micros), || false)
        }

        /// Polls every 10 µs in this time. Returns whether one of them wakes the background thread.
        fn polls_until(&self, micros: std::ops::Range<u64>) -> bool {
            micros.step_by(10).any(|micros| self.polls(at(micros)).wakes)
        }
    }

    #[test]
    fn a_thread_watches_the_device_for_a_while_after_its_poll() {
        let watch = watch();
        assert_eq!(watch.watcher_at(100), Watcher::Background, "nobody polled");
        watch.polls(at(100));
        assert_eq!(
            [100, 149, 150].map(|now| watch.watcher_at(now)),
            [Watcher::Poller, Watcher::Poller, Watcher::Background]
        );
        watch.polls(at(200));
        assert!(!watch.stops_polling(), "the background thread is awake");
        assert_eq!(watch.watcher_at(201), Watcher::Background);
    }

    /// Regression: the background thread waited for the lock and took the processor from the polling thread.
    #[test]
    fn a_thread_in_the_middle_of_a_long_poll_watches_the_device() {
        let watch = watch();
        watch.polls(at(100));
        assert_eq!(watch.watcher(at(2_000), || false), Watcher::Background);
        assert_eq!(watch.watcher(at(2_000), || true), Watcher::Poller);
        assert_eq!(watch.watcher(at(2_100), || true), Watcher::Background, "another use of the context");
    }

    /// Regression: the background thread took the processor back from a process to which a poll had yielded.
    #[test]
    fn the_background_thread_stays_away_while_a_polling_thread_yields_the_processor() {
        let watch = watch();
        watch.polls(at(100));
        watch.yields(at(110));
        assert_eq!([110, 10_109].map(|now| watch.watcher_at(now)), [Watcher::Poller; 2]);
        assert_eq!(watch.watcher_at(10_110), Watcher::Background, "something keeps it from polling");
        assert!(watch.polls(at(120)).checks, "another thread");
        assert_eq!(watch.watcher_at(10_109), Watcher::Poller);
        watch.returns(at(110), at(5_000));
        assert_eq!([5_000, 5_060].map(|now| watch.watcher_at(now)), [Watcher::Poller, Watcher::Background]);
        assert!(watch.polls(at(5_000)).checks);
    }

    /// Regression: each packet woke the background thread, which took the processor from the polling thread.
    #[test]
    fn an_application_that_goes_on_polling_sends_the_background_thread_away() {
        let watch = watch();
        assert!(!watch.polls_until(0..1_000), "it does not watch");
        watch.set_background(Background::Watching);
        assert!(!(1..100).any(|poll| watch.polls(at(1_000 + 60 * poll)).wakes), "now and then");
        assert!(watch.polls_until(10_000..10_070), "again and again");
        assert!(!watch.polls_until(10_070..11_000), "once");
    }

    #[test]
    fn a_device_that_had_nothing_for_a_while_is_checked_rarely() {
        let watch = watch();
        let now = std::cell::Cell::new(1_000_000_u64);
        let at_now = |after| Instant::from_nanos(now.get() + after);
        let mut empty = 0;
        let mut poll_after = |nanos, found| {
            now.set(now.get() + nanos);
            let checks = watch.polls(at_now(0)).checks;
            if checks {
                watch.checked(&mut empty, found);
            }
            checks
        };
        assert!((0..EMPTY_CHECKS).all(|_| poll_after(500, false)));
        let checked = (0..80).filter(|_| poll_after(500, false)).count();
        assert_eq!(checked, 10, "once per 4 µs");
        // Regression: each yield was followed by a check.
        watch.yields(at_now(0));
        watch.returns(at_now(0), at_now(1_000));
        assert!(!poll_after(1_500, false), "a short yield changes nothing");
        assert!(poll_after(4_000, true), "something arrived");
        assert!((0..EMPTY_CHECKS).all(|_| poll_after(500, false)));
    }

    #[test]
    fn a_waiting_thread_watches_the_device_until_it_leaves() {
        let watch = watch();
        let [mut one, mut two] = [(); 2].map(|()| Waiting::default());
        watch.waits(at(0), &mut one, TIMING.longest_turn);
        watch.waits(at(0), &mut two, TIMING.longest_turn);
        watch.waits(at(10), &mut one, TIMING.longest_turn);
        watch.set_background(Background::Relying);
        assert!(!watch.leaves(&mut two), "the other thread still waits");
        assert_eq!(watch.watcher_at(100), Watcher::Waiter);
        assert!(watch.leaves(&mut one), "the last one wakes the background thread");
        assert!(!watch.leaves(&mut one));
        assert_eq!(watch.watcher_at(100), Watcher::Background);
    }

    /// Regression: after a signal handler had jumped out of a wait, no thread watched the device any more.
    #[test]
    fn a_thread_that_jumped_out_of_its_wait_is_forgotten() {
        let watch = watch();
        let [mut left, mut next] = [(); 2].map(|()| Waiting::default());
        watch.waits(at(0), &mut left, Duration::from_millis(50));
        assert_eq!(watch.watcher_at(69_000), Watcher::Waiter);
        assert_eq!(watch.watcher_at(71_000), Watcher::Background);
        // It does not disturb the next thread.
        watch.waits(at(80_000), &mut next, Duration::from_millis(50));
        assert!(!watch.leaves(&mut left));
        assert_eq!(watch.watcher_at(81_000), Watcher::Waiter);
        watch.waits(at(81_000), &mut left, Duration::from_millis(50));
        watch.leaves(&mut next);
        assert_eq!(watch.watcher_at(82_000), Watcher::Waiter);
        watch.leaves(&mut left);
        assert_eq!(watch.watcher_at(82_000), Watcher::Background);
    }

    #[test]
    fn more_threads_may_wait_than_are_counted() {
        let watch = watch();
        let mut many: Vec<_> = (0..300).map(|_| Waiting::default()).collect();
        many.iter_mut().for_each(|waiting| watch.waits(at(0), waiting, TIMING.longest_turn));
        assert_eq!(watch.watcher_at(100), Watcher::Waiter);
        let wakes = many.iter_mut().filter_map(|waiting| watch.leaves(waiting).then_some(())).count();
        assert_eq!(wakes, 0, "the background thread is awake");
        assert_eq!(watch.watcher_at(100), Watcher::Background);
    }

    fn next(shift: &mut Shift, watch: &Watch, micros: u64) -> Duty {
        shift.next(watch, at(micros), || false)
    }

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn the_background_thread_stays_away_for_longer_from_an_application_that_goes_on_polling() {
        let (watch, mut shift) = (watch(), Shift::default());
        let mut now = 1_000;
        let mut after_poll = |time: u64, polls: bool| {
            now += time;
            if polls {
                watch.polls(at(now - 1));
            }
            next(&mut shift, &watch, now)
        };
        let away = [0, 250, 500, 1_000, 2_000, 2_000].map(|time| after_poll(time, true));
        assert_eq!(away, [250, 500, 1_000, 2_000, 2_000, 2_000].map(|time| Duty::BackOff(micros(time))));
        assert_eq!(after_poll(2_000, false), Duty::Serve, "not since the last check");
    }

    /// Regression: the thread kept taking the processor from an application that drove two engines in turn.
    #[test]
    fn the_background_thread_stays_away_from_an_application_that_polls_now_and_then() {
        let (watch, mut shift) = (watch(), Shift::default());
        (0..4).for_each(|poll| {
            watch.polls(at(1_000 + 10_000 * poll));
            next(&mut shift, &watch, 1_000 + 10_000 * poll);
        });
        let mut now = 100_000;
        let mut away = |ago: u64| {
            now += 10_000;
            watch.polls(at(now - ago));
            next(&mut shift, &watch, now)
        };
        assert_eq!([away(100), away(900)], [1_000, 500].map(|time| Duty::BackOff(micros(time))));
        assert_eq!(away(499), Duty::BackOff(micros(250)));
        assert_eq!(away(249), Duty::BackOff(micros(250)));
        assert_eq!(away(251), Duty::Serve);
    }

    /// Regression: the back-off went on after a request for a notification, and no thread watched the device.
    #[test]
    fn a_request_for_a_notification_ends_a_back_off() {
        let (watch, mut shift) = (watch(), Shift::default());
        watch.polls(at(1_000));
        assert!(matches!(next(&mut shift, &watch, 1_001), Duty::BackOff(_)));
        assert!(watch.stops_polling());
        assert!(!watch.stops_polling(), "once");
        assert_eq!(next(&mut shift, &watch, 1_002), Duty::Serve);
    }

    /// Regression: the end of each wait woke the background thread, which cost more than the wait.
    #[test]
    fn the_end_of_a_long_wait_wakes_the_background_thread_and_that_of_each_short_one_does_not() {
        let (watch, mut shift) = (watch(), Shift::default());
        let mut waiting = Waiting::default();
        watch.waits(at(1_000), &mut waiting, TIMING.longest_sleep);
        assert_eq!(next(&mut shift, &watch, 1_000), Duty::Rely(TIMING.longest_sleep));
        assert!(watch.leaves(&mut waiting));
        // The next wait begins at once.
        watch.waits(at(1_100), &mut waiting, TIMING.longest_sleep);
        assert_eq!(next(&mut shift, &watch, 1_100), Duty::Rely(TIMING.back_off));
        assert!(!watch.leaves(&mut waiting), "it checks soon by itself");
        assert_eq!(next(&mut shift, &watch, 1_200), Duty::Serve);
        watch.waits(at(10_000), &mut waiting, TIMING.longest_sleep);
        assert_eq!(next(&mut shift, &watch, 10_000), Duty::Rely(TIMING.longest_sleep), "long ago");
    }

    #[test]
    fn the_background_thread_relies_on_no_thread_that_may_have_jumped_out_of_its_wait() {
        let (watch, mut shift) = (watch(), Shift::default());
        watch.waits(at(1_000), &mut Waiting::default(), micros(50_000));
        let Duty::Rely(time) = next(&mut shift, &watch, 1_000) else { panic!() };
        assert!(time > micros(50_000) && time < 2 * micros(50_000), "{time:?}");
        assert_eq!(next(&mut shift, &watch, 1_001 + time.as_micros() as u64), Duty::Serve);
    }

    /// loom treats sequentially consistent accesses as acquiring and releasing ones, but knows fences.
    impl Word for loom::sync::atomic::AtomicU64 {
        fn new(value: u64) -> Self {
            Self::new(value)
        }

        fn load(&self) -> u64 {
            loom::sync::atomic::fence(SeqCst);
            self.load(SeqCst)
        }

        fn store(&self, value: u64) {
            self.store(value, SeqCst);
            loom::sync::atomic::fence(SeqCst);
        }

        fn replace(&self, old: u64, new: u64) -> bool {
            let is_replaced = self.compare_exchange(old, new, SeqCst, SeqCst).is_ok();
            loom::sync::atomic::fence(SeqCst);
            is_replaced
        }
    }

    type LoomWatch = Watch<loom::sync::atomic::AtomicU64>;

    /// Runs `application` beside the background thread in all interleavings. `application` returns whether it
    /// wakes that thread, which must not sleep otherwise.
    fn in_all_interleavings(
        prepare: fn(&LoomWatch) -> Waiting,
        application: fn(&LoomWatch, &mut Waiting) -> bool,
    ) {
        loom::model(move || {
            let watch = loom::sync::Arc::new(LoomWatch::new(&TIMING));
            let mut waiting = prepare(&watch);
            let other = watch.clone();
            let background = loom::thread::spawn(move || Shift::default().next(&other, at(1_000), || false));
            let wakes = application(&watch, &mut waiting);
            let duty = background.join().unwrap();
            assert!(wakes || duty == Duty::Serve, "{duty:?} without an end");
        });
    }

    #[test]
    fn no_wake_up_is_lost_when_the_application_stops_polling() {
        let prepare = |watch: &LoomWatch| {
            watch.polls(at(1_000));
            Waiting::default()
        };
        in_all_interleavings(prepare, |watch, _| watch.stops_polling());
    }

    #[test]
    fn no_wake_up_is_lost_when_the_last_waiting_thread_leaves() {
        let prepare = |watch: &LoomWatch| {
            let mut waiting = Waiting::default();
            watch.waits(at(1_000), &mut waiting, TIMING.longest_sleep);
            waiting
        };
        in_all_interleavings(prepare, |watch, waiting| watch.leaves(waiting));
    }

    #[test]
    fn no_wake_up_is_lost_when_two_threads_leave_at_once() {
        loom::model(|| {
            let watch = loom::sync::Arc::new(LoomWatch::new(&TIMING));
            let [mut one, mut two] = [(); 2].map(|()| Waiting::default());
            watch.waits(at(1_000), &mut one, TIMING.longest_sleep);
            watch.waits(at(1_000), &mut two, TIMING.longest_sleep);
            watch.set_background(Background::Relying);
            let other = watch.clone();
            let leaver = loom::thread::spawn(move || other.leaves(&mut two));
            let wakes = watch.leaves(&mut one);
            assert!(wakes != leaver.join().unwrap(), "the last one wakes it");
            assert_eq!(watch.watcher(at(1_000), || false), Watcher::Background);
        });
    }
}
