//! Decides which thread makes progress, and how long a waiting thread sleeps.
//!
//! There is no hardware, so threads inside the library run the protocol. At any time, threads of one kind
//! watch the device, which means that they receive packets and handle timers:
//!
//! | the application | watches the device | the background thread |
//! |---|---|---|
//! | polled in the last 50 µs, is inside a long poll, or yields the processor after a poll | the thread that polls | backs off |
//! | has a thread in [`Runtime::wait`] | that thread | sleeps until a protocol deadline that no thread handled, but at most 250 µs while waits come and go |
//! | does neither | the background thread | serves peers and timers |
//!
//! A back-off lasts 250 µs. The time doubles up to 2 ms while the application keeps polling. The time halves
//! if the application has polled since the last check but does not poll now. A request for a notification
//! ends a back-off.
//!
//! A waiting thread spins for the context's spin time, and again each time something arrived, because a reply
//! often follows soon. Then it sleeps until the first of these events:
//!
//! - the descriptor of the device, or of the awaited event, becomes readable;
//! - the caller's timeout ends;
//! - a protocol deadline comes (retransmission, connection management, a device that delays packets);
//! - 500 ms pass, if the awaited event has a descriptor. Without one, another thread may receive the event
//!   unnoticed, so the limit is 1 ms, doubled up to 8 ms while no other thread makes progress;
//! - 1 ms passes, if the device has no descriptor that shows arriving packets.
//!
//! A thread that waits for a descriptor while another one polls ignores the device and rechecks after 250 µs.
//! A device failure ends a wait once the packets that arrived before it are handled.
//!
//! A thread that spins or polls yields the processor after each empty check while others need it
//! ([`crowding`]). A poll that found something may stay in the library for a moment ([`Runtime::linger`]). An
//! application that then only watches its memory for a peer's write would otherwise depend on the background
//! thread. The shorter of these times are longer on slow machines ([`pace`](super::pace)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roce_transport::Occupancy;

use super::pace::Pace;
use super::policy::Terms;
use super::turns::{LONGEST_TURN, Turns};
use super::waiters::{Waiters, Waiting};
use super::{Runtime, crowding};
use crate::device::Clock;
use crate::driver::wake::{Sleep, wait_readable};

/// The background thread backs off if the application polled within this time.
const POLLED_RECENTLY: Duration = Duration::from_micros(50);
/// [`POLLED_RECENTLY`] while a thread holds the lock; a poll receives up to 1 MiB and sends up to 256 KiB.
const POLLED_LATELY: Duration = Duration::from_millis(2);
/// [`POLLED_RECENTLY`] while the polling thread yields the processor, which other threads then use for some
/// time slices. The background thread would only take the processor from them.
const YIELDED_LATELY: Duration = Duration::from_millis(10);
/// Minimum interval, in nanoseconds, between two recorded poll times.
const POLL_NOTED_EVERY: u64 = 5_000;
/// After more than this many consecutive recorded polls, the background thread is told to back off. A thread
/// that polls briefly before it sleeps again would have to wake it at once.
const POLLS_BESIDE: u32 = 4;
/// After `LOOKS_IN_VAIN` empty checks in a row, polls of an empty queue check the device once per
/// `LOOKED_RECENTLY` nanoseconds. A check is a system call of about 0.5 µs; so late, latency matters less.
const LOOKED_RECENTLY: u64 = 4_000;
const LOOKS_IN_VAIN: u32 = 64;
/// Empty checks between two further tests whether other threads need the processor, see [`crowding`].
const LATE_LOOKS: u32 = 16;
/// First interval after which a waiting thread checks what another thread may have received.
pub(super) const FIRST_RECHECK: Duration = Duration::from_millis(1);
/// Longest such interval.
const LONGEST_RECHECK: Duration = Duration::from_millis(8);
/// Longest sleep of any thread. With 50 ms, an idle connection took 0.3 % of a processor.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Longest stay of a poll if staying has paid off: longer than a peer on this host or switch needs to reply.
const LINGER: Duration = Duration::from_micros(100);
/// Longest stay in a trial. After this time the poll yields the processor in each iteration, because the peer
/// may be a process of this host that needs it.
const LINGER_TRIAL: Duration = Duration::from_micros(20);
/// A poll stays if peers' requests often arrive meanwhile. One trial proves nothing: both ends must stay.
pub(super) const LINGERING: Terms = Terms {
    first_credit: 0,
    success: 4,
    failure: 4,
    most_credit: 64,
    trial: 16,
    first_interval: 0,
    interval: 512,
    longest_interval: 512 << 8,
};

/// Time for which a thread that waits for a descriptor leaves the device to a polling thread.
pub(super) const WHILE_POLLED: Duration = Duration::from_micros(250);
/// While waits end within this time of each other, their ends do not wake the background thread.
const LEFT_RECENTLY: Duration = Duration::from_micros(2_500);

/// The reason why a wait ended without a result.
#[derive(Debug)]
pub(crate) enum WaitFailure {
    TimedOut,
    /// The operating system refused to wait.
    Io(io::Error),
    /// The device failed with this kind and text.
    Device(io::ErrorKind, String),
}

impl From<WaitFailure> for io::Error {
    fn from(failure: WaitFailure) -> Self {
        match failure {
            WaitFailure::TimedOut => io::ErrorKind::TimedOut.into(),
            WaitFailure::Io(error) => error,
            WaitFailure::Device(kind, text) => Self::new(kind, text),
        }
    }
}

/// The activity of the application's threads, which the background thread depends on.
#[derive(Debug)]
pub(super) struct Activity {
    /// The clock of the NIC.
    clock: Clock,
    pub(super) pace: Pace,
    /// Time of the application's last poll, in nanoseconds. 0 if it never polled or announced that it stops;
    /// in the future while a polling thread yields its processor, see [`Runtime::share_processor`].
    last_poll: AtomicU64,
    /// Time at which the last check of the device by a poll began, in nanoseconds.
    last_look: AtomicU64,
    /// Consecutive checks of the device that found nothing.
    vain_looks: AtomicU32,
    /// Whether the device failed, which every poll reports.
    has_failed: AtomicBool,
    /// State of the background thread, a [`Background`].
    background: AtomicU8,
    /// Consecutive recorded polls while the background thread watches the device.
    polls_beside: AtomicU32,
    /// Threads in [`Runtime::wait`].
    pub(super) waiters: Waiters,
}

/// The state of the background thread, as far as an application thread may have to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Background {
    /// The thread runs, or sleeps for a time that no other thread shortens.
    Awake,
    /// The thread backs off from the device because the application polls.
    BackingOff,
    /// The thread sleeps until the device is readable or a deadline comes.
    Watching,
    /// The thread relies on waiting threads to watch the device, without a check every 250 µs.
    Relying,
}

/// Which thread watches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
    /// A thread of the application that polls.
    Poller,
    /// A thread of the application that waits.
    Waiter,
    /// The background thread.
    Background,
}

impl Activity {
    pub(super) fn new(clock: Clock, pace: Pace) -> Self {
        Self {
            clock,
            pace,
            last_poll: AtomicU64::new(0),
            last_look: AtomicU64::new(0),
            vain_looks: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
            background: AtomicU8::new(Background::Awake as u8),
            polls_beside: AtomicU32::new(0),
            waiters: Waiters::default(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Returns whether a poll of an empty queue must check the device.
    #[inline]
    pub(super) fn is_look_due(&self, now: u64) -> bool {
        self.vain_looks.load(Ordering::Relaxed) < LOOKS_IN_VAIN
            || now.saturating_sub(self.last_look.load(Ordering::Relaxed)) >= LOOKED_RECENTLY
            || self.has_failed()
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Records that a poll begins a check. While checks are rare, other polls then do not take the lock.
    #[inline]
    pub(super) fn begin_look(&self, now: u64) {
        self.last_look.store(now, Ordering::Relaxed);
    }

    /// Records the failure of the device, which every poll reports from now on.
    pub(super) fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Returns which thread watches the device. `is_locked` returns whether a thread has the lock.
    fn watcher(&self, is_locked: impl FnOnce() -> bool) -> Watcher {
        let (last, now) = (self.last_poll.load(Ordering::Relaxed), self.now());
        let ago = now.saturating_sub(last);
        let is_within = |time: Duration| last != 0 && ago < time.as_nanos() as u64;
        if is_within(self.pace.time(POLLED_RECENTLY)) || is_within(POLLED_LATELY) && is_locked() {
            Watcher::Poller
        } else if self.waiters.are_any(now) {
            Watcher::Waiter
        } else {
            Watcher::Background
        }
    }

    /// Returns whether a thread has left [`Runtime::wait`] within [`LEFT_RECENTLY`], and so may be back soon.
    fn has_left_recently(&self) -> bool {
        self.waiters.have_left_within(self.now(), LEFT_RECENTLY)
    }

    fn is_background(&self, state: Background) -> bool {
        self.background.load(Ordering::SeqCst) == state as u8
    }

    fn set_background(&self, state: Background) {
        self.background.store(state as u8, Ordering::SeqCst);
    }

    /// Returns whether the background thread was in this state, and marks it awake; the caller wakes it.
    fn takes_background_out_of(&self, state: Background) -> bool {
        let (old, awake) = (state as u8, Background::Awake as u8);
        self.background.compare_exchange(old, awake, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// A thread that waits for something of one engine.
struct Waiter<'a> {
    runtime: &'a Runtime,
    /// A descriptor that becomes readable when another thread receives the awaited event.
    event: Option<BorrowedFd<'a>>,
    /// The completion queue that the thread checks.
    queue: Option<&'a Occupancy>,
    recheck: Recheck,
    waiting: Waiting,
}

impl<'a> Waiter<'a> {
    fn new(runtime: &'a Runtime, event: Option<BorrowedFd<'a>>, queue: Option<&'a Occupancy>) -> Self {
        let recheck = Recheck { after: FIRST_RECHECK, polls: 0 };
        Self { runtime, event, queue, recheck, waiting: Waiting::default() }
    }
}

impl Turns for Waiter<'_> {
    fn begin(&mut self) {
        self.waiting.renew(self.runtime, Some(LONGEST_TURN));
    }

    fn leave(&mut self) {
        self.waiting.leave(self.runtime);
    }

    fn spin(&self) -> Duration {
        self.runtime.spin
    }

    fn transmit_postponed(&self) {
        self.runtime.lock().transmit_postponed();
    }

    fn progress(&self) -> (bool, Option<WaitFailure>) {
        self.runtime.progress_once(self.queue)
    }

    fn yield_lock(&self) {
        self.runtime.yield_lock();
    }

    fn plan(&mut self, remaining: Option<Duration>) -> Sleep<'_> {
        let sleep = self.runtime.plan_sleep(remaining, self.event, &mut self.recheck);
        self.waiting.renew(self.runtime, sleep.timeout());
        sleep
    }
}

/// The interval at which a waiting thread checks what another thread may have received.
struct Recheck {
    after: Duration,
    /// Number of progress calls of all threads at the last check.
    polls: u64,
}

impl Recheck {
    /// Returns how long to sleep now. Between two sleeps the thread itself makes progress once.
    fn next(&mut self, polls: u64) -> Duration {
        let is_alone = polls == self.polls.wrapping_add(1);
        self.after = if is_alone { (2 * self.after).min(LONGEST_RECHECK) } else { FIRST_RECHECK };
        self.polls = polls;
        self.after
    }
}

impl Runtime {
    /// Returns which thread watches the device. The caller must not hold the lock.
    pub(super) fn watcher(&self) -> Watcher {
        self.activity.watcher(|| self.state.try_lock().is_none())
    }

    /// Records that the application polls, so that the background thread backs off. `goes_on` is `false` for
    /// the last poll before a sleep. Returns the time, for [`try_look`](Self::try_look).
    #[inline]
    pub(crate) fn note_poll(&self, goes_on: bool) -> u64 {
        let now = self.activity.now();
        // Written rarely: threads that poll side by side would contend for the cache line.
        let last = &self.activity.last_poll;
        let ago = now.saturating_sub(last.load(Ordering::Relaxed));
        if goes_on && ago >= POLL_NOTED_EVERY {
            last.store(now, Ordering::Relaxed);
            if self.activity.background.load(Ordering::Relaxed) == Background::Watching as u8 {
                self.note_poll_beside_watcher(ago);
            }
        }
        now
    }

    /// Records a poll, `ago` nanoseconds after the last one, while the background thread sleeps until the
    /// device is readable. Each packet wakes that thread, but it sleeps again without noticing polls if the
    /// application has taken the packet by then. So an application that keeps polling makes it back off.
    #[cold]
    fn note_poll_beside_watcher(&self, ago: u64) {
        let Activity { polls_beside, pace, .. } = &self.activity;
        // For the first poll, `ago` is the time since the start of the clock.
        if ago >= pace.time(POLLED_RECENTLY).as_nanos() as u64 {
            polls_beside.store(0, Ordering::Relaxed);
        } else if polls_beside.fetch_add(1, Ordering::Relaxed) >= POLLS_BESIDE
            && self.activity.takes_background_out_of(Background::Watching)
        {
            self.wake_background();
        }
    }

    /// Records that the background thread is about to sleep until the device is readable.
    pub(super) fn note_watching(&self) {
        self.activity.polls_beside.store(0, Ordering::Relaxed);
        self.activity.set_background(Background::Watching);
    }

    /// Records that the background thread runs again.
    pub(super) fn note_awake(&self) {
        self.activity.set_background(Background::Awake);
    }

    /// Records the outcome of a check of the device by a poll.
    #[inline]
    pub(crate) fn note_look(&self, has_arrived: bool) {
        let vain_looks = &self.activity.vain_looks;
        let vain = if has_arrived { 0 } else { vain_looks.load(Ordering::Relaxed).wrapping_add(1) };
        vain_looks.store(vain, Ordering::Relaxed);
        if vain >= LOOKS_IN_VAIN && vain.is_multiple_of(LATE_LOOKS) {
            crowding::try_soon();
        }
    }

    /// Makes progress for an application that keeps checking its memory, so the background thread backs off.
    pub(crate) fn progress_for_memory(&self) {
        self.note_poll(true);
        self.lock().progress_for_memory();
    }

    /// Yields the processor after an empty poll if other threads need it; the caller holds no lock. The
    /// background thread still backs off, because this thread polls again once it has the processor back.
    #[inline]
    pub(crate) fn share_processor(&self) {
        if crowding::looked_in_vain() {
            self.note_yield();
            crowding::share();
            self.activity.last_poll.store(self.activity.now(), Ordering::SeqCst);
        }
    }

    /// Records that a polling thread yields its processor: it counts as polling for [`YIELDED_LATELY`].
    fn note_yield(&self) {
        let ahead = YIELDED_LATELY.saturating_sub(self.activity.pace.time(POLLED_RECENTLY));
        self.activity.last_poll.store(self.activity.now() + ahead.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Records that the application is about to sleep. The background thread watches the device at once,
    /// unless a thread left [`wait`](Self::wait) recently: that thread probably waits, and watches, again.
    pub(crate) fn note_end_of_polling(&self) {
        self.activity.last_poll.store(0, Ordering::SeqCst);
        if self.activity.is_background(Background::BackingOff) && !self.activity.has_left_recently() {
            self.wake_background();
        }
    }

    /// Records that a thread has left its wait.
    pub(super) fn note_leave(&self) {
        // While threads wait for long, the background thread sleeps and does not watch the device. Otherwise
        // it checks soon by itself, and waking it after each short wait would cost more than the waits.
        if self.activity.is_background(Background::Relying)
            && self.activity.takes_background_out_of(Background::Relying)
        {
            self.wake_background();
        }
    }

    /// Returns how long the background thread may rely on waiting threads: `short` if a thread left its wait
    /// recently, otherwise up to `longest`. Returns `None` if no thread waits.
    pub(super) fn rely(&self, longest: Duration, short: Duration) -> Option<Duration> {
        // A thread that jumped out of its wait does not wake this one.
        let longest = longest.min(self.activity.waiters.longest(self.activity.now()));
        let time = if self.activity.has_left_recently() { short } else { longest };
        self.activity.set_background(if time > short { Background::Relying } else { Background::Awake });
        // Checked after the store, because the last thread may have left just before it.
        (self.watcher() == Watcher::Waiter).then_some(time)
    }

    /// Stays in a poll that found something until a peer accesses memory here, something else arrives, or a
    /// short time ends. `pays` is `false` for a trial.
    ///
    /// An application that waits for a peer by reading its memory (`ib_write_lat`) polls for the completion
    /// of its request, then calls no verb. A few polls try whether staying helps; all stay while requests
    /// arrive in time.
    #[cold]
    pub(crate) fn linger(&self, pays: bool) {
        let begin = Instant::now();
        let pace = self.activity.pace;
        let trial = pace.time(LINGER_TRIAL);
        let longest = if pays { pace.time(LINGER) } else { trial };
        loop {
            self.note_poll(true);
            let has_arrived = {
                let mut state = self.lock();
                let has_arrived = state.progress_for_memory();
                if state.is_accessed_since_post() {
                    return state.lingering.succeeded();
                }
                has_arrived
            };
            if has_arrived || begin.elapsed() >= longest {
                break;
            }
            if begin.elapsed() >= trial {
                std::thread::yield_now();
            } else {
                self.share_processor();
            }
            std::hint::spin_loop();
        }
        self.lock().lingering.failed();
        if pays {
            // The background thread must handle the next request, but would back off for a while.
            self.note_end_of_polling();
        }
    }

    /// Returns whether the application polled within this time and has not announced that it stops.
    pub(super) fn has_polled_within(&self, time: Duration) -> bool {
        let last = self.activity.last_poll.load(Ordering::SeqCst);
        last != 0 && self.activity.now().saturating_sub(last) < time.as_nanos() as u64
    }

    /// Leaves the device to the polling application for `time`, or until it announces that it stops.
    pub(super) fn back_off(&self, time: Duration) {
        self.activity.set_background(Background::BackingOff);
        // Checked again, because the application may have stopped just before the store.
        if self.has_polled_within(time.max(YIELDED_LATELY)) {
            match wait_readable([self.wake.as_fd()], Some(time)) {
                Ok(true) => self.wake.clear(),
                Ok(false) => {}
                Err(_) => std::thread::sleep(time),
            }
        }
        self.note_awake();
    }

    /// Calls `attempt` until it returns a value, and makes progress in between, see the module. `event` is a
    /// descriptor that becomes readable when another thread receives the awaited event.
    pub(crate) fn wait<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        event: Option<BorrowedFd<'_>>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        Waiter::new(self, event, None).wait(timeout, attempt)
    }

    /// Waits like [`wait`](Self::wait), for completions of the queue with this occupancy.
    pub(crate) fn wait_for_completions<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        occupancy: &Occupancy,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        Waiter::new(self, None, Some(occupancy)).wait(timeout, attempt)
    }

    /// Makes progress once, for a thread that checks `queue` next if it is given. Returns whether more may be
    /// ready at once, and the failure of the device.
    pub(super) fn progress_once(&self, queue: Option<&Occupancy>) -> (bool, Option<WaitFailure>) {
        let mut state = self.lock();
        let has_more = match queue {
            Some(queue) => {
                let now = state.nic.now();
                state.progress_for(now, queue)
            }
            None => state.progress(),
        };
        let failure = state.nic.failure().map(|error| WaitFailure::Device(error.kind(), error.to_string()));
        (has_more, failure)
    }

    /// Plans the next sleep of a waiting thread, see the module.
    fn plan_sleep<'a>(
        &'a self,
        remaining: Option<Duration>,
        event: Option<BorrowedFd<'a>>,
        recheck: &mut Recheck,
    ) -> Sleep<'a> {
        let device = self.device_descriptor.as_ref().map(AsFd::as_fd);
        // A device that another thread polls is left out, because it would wake this thread at every packet.
        let is_polled = event.is_some() && self.watcher() == Watcher::Poller;
        let device = device.filter(|_| !is_polled);
        let timeout = {
            let mut state = self.lock();
            let now = state.nic.now();
            let deadline = state.deadline().map(|deadline| deadline.since(now));
            let longest = match (device, event) {
                _ if is_polled => WHILE_POLLED,
                (None, _) => FIRST_RECHECK,
                (Some(_), Some(_)) => LONGEST_SLEEP,
                (Some(_), None) => recheck.next(state.polls()),
            };
            let timeout = [remaining, deadline].into_iter().flatten().fold(longest, Duration::min);
            if device.is_some() {
                state.nic.watched_until(now, now + timeout);
            }
            timeout
        };
        Sleep::new([device, event].into_iter().flatten(), Some(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use crate::device::memory::MemoryDevice;
    use crate::runtime::EventQueue;

    /// A runtime without a background thread.
    fn runtime() -> Runtime {
        let [a, b] = [1, 2].map(|last| std::net::Ipv4Addr::new(192, 0, 2, last).into());
        let (device, _peer) = MemoryDevice::pair(a, b).unwrap();
        let config = roce_transport::EngineConfig::from_number(1);
        let shared = (Clock::start(), Arc::new(EventQueue::new(16).unwrap()));
        Runtime::new(config, Box::new(device), fastrand::Rng::with_seed(1), Duration::ZERO, shared).unwrap()
    }

    /// Regression: the back-off went on after a request for a notification, and no thread watched the device.
    #[test]
    fn a_thread_that_backed_off_comes_back_when_a_notification_is_asked_for() {
        let runtime = runtime();
        let started = Instant::now();
        let end = started + Duration::from_secs(30);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                // Until the thread was really asleep.
                let mut slept = Duration::ZERO;
                while slept < Duration::from_millis(20) && Instant::now() < end {
                    runtime.note_poll(true);
                    let before = Instant::now();
                    runtime.back_off(Duration::from_secs(20));
                    slept = before.elapsed();
                }
            });
            while !sleeper.is_finished() {
                std::thread::sleep(Duration::from_millis(50));
                runtime.note_end_of_polling();
            }
        });
        assert!(
            roce_testing::on_idle(started.elapsed()) < Duration::from_secs(20),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(runtime.watcher(), Watcher::Background);
    }

    #[test]
    fn the_last_poll_before_a_sleep_keeps_nobody_away() {
        let runtime = runtime();
        runtime.note_poll(true);
        runtime.note_end_of_polling();
        runtime.note_poll(false);
        assert_eq!(runtime.watcher(), Watcher::Background);
    }

    /// Regression: each packet woke the background thread, which took the processor from the polling thread.
    #[test]
    fn an_application_that_goes_on_polling_sends_the_background_thread_away() {
        let runtime = runtime();
        let is_woken = || wait_readable([runtime.wake.as_fd()], Some(Duration::ZERO)).unwrap();
        let polls = || {
            let end = Instant::now() + 20 * POLLED_RECENTLY;
            while Instant::now() < end && !is_woken() {
                runtime.note_poll(true);
            }
            is_woken()
        };
        assert!(!polls(), "it is not there");
        runtime.note_watching();
        for _ in 0..4 * POLLS_BESIDE {
            std::thread::sleep(2 * POLLED_RECENTLY);
            runtime.note_poll(true);
            assert!(!is_woken(), "now and then");
        }
        // A thread that loses the processor polls now and then as well.
        assert!((0..1_000).any(|_| polls()));
        runtime.wake.clear();
        assert!(!polls(), "once");
    }

    /// Regression: the poll stayed for its full time.
    #[test]
    fn a_poll_does_not_stay_for_a_request_that_came_with_its_completion() {
        let runtime = runtime();
        let mut state = runtime.lock();
        state.note_access_since_post();
        assert_eq!(state.begin_to_linger(), None);
        assert!(state.lingering.pays());
    }

    /// Regression: the end of each wait woke the background thread, which cost more than the wait.
    #[test]
    fn the_background_thread_is_woken_by_the_end_of_a_long_wait_and_not_of_each_short_one() {
        let runtime = runtime();
        let [long, short] = [Duration::from_secs(1), Duration::from_micros(250)];
        let is_woken = || wait_readable([runtime.wake.as_fd()], Some(Duration::ZERO)).unwrap();
        assert_eq!(runtime.rely(long, short), None, "nobody waits");
        let mut waiting = Waiting::default();
        let relies_for_long = || runtime.rely(long, short).is_some_and(|time| time > long / 4);
        waiting.renew(&runtime, None);
        assert!(relies_for_long());
        waiting.leave(&runtime);
        assert!(is_woken());
        runtime.wake.clear();
        // The next wait begins at once.
        waiting.renew(&runtime, None);
        assert_eq!(runtime.rely(long, short), Some(short));
        waiting.leave(&runtime);
        assert!(!is_woken());
        assert_eq!(runtime.rely(long, short), None, "it takes over by itself");
        std::thread::sleep(2 * LEFT_RECENTLY);
        waiting.renew(&runtime, None);
        assert!(relies_for_long(), "long ago");
    }

    /// Regression: after a signal handler had jumped out of a wait, no thread watched the device any more.
    #[test]
    fn a_thread_that_jumped_out_of_its_wait_is_forgotten() {
        let runtime = runtime();
        let time = Duration::from_millis(50);
        let mut left = Waiting::default();
        left.renew(&runtime, Some(time));
        assert_eq!(runtime.watcher(), Watcher::Waiter);
        let relies = runtime.rely(LONGEST_SLEEP, Duration::ZERO);
        assert!(relies.is_some_and(|relies| relies <= 2 * time), "{relies:?}");
        let end = Instant::now() + Duration::from_secs(20);
        while runtime.watcher() != Watcher::Background {
            assert!(Instant::now() < end);
            std::thread::sleep(time / 10);
        }
        // Its place belongs to the next thread, which it does not disturb.
        let mut next = Waiting::default();
        next.renew(&runtime, None);
        left.leave(&runtime);
        assert_eq!(runtime.watcher(), Watcher::Waiter);
        left.renew(&runtime, None);
        next.leave(&runtime);
        assert_eq!(runtime.watcher(), Watcher::Waiter);
        left.leave(&runtime);
        assert_eq!(runtime.watcher(), Watcher::Background);
        // There are more threads than places; those without a place are not counted.
        let mut many = [(); 40].map(|()| Waiting::default());
        many.iter_mut().for_each(|waiting| waiting.renew(&runtime, None));
        many.iter_mut().for_each(|waiting| waiting.leave(&runtime));
        assert_eq!(runtime.watcher(), Watcher::Background);
    }

    /// Regression: the background thread waited for the lock and took the processor from the polling thread.
    #[test]
    fn a_thread_in_the_middle_of_a_long_poll_watches_the_device() {
        let runtime = runtime();
        let polled_ago = |time: Duration| {
            // The clock begins with the runtime.
            std::thread::sleep(time.saturating_sub(Duration::from_nanos(runtime.activity.now())));
            let then = runtime.activity.now() - time.as_nanos() as u64;
            runtime.activity.last_poll.store(then.max(1), Ordering::Relaxed);
        };
        polled_ago(2 * POLLED_RECENTLY);
        assert_eq!(runtime.watcher(), Watcher::Background);
        let held = runtime.lock();
        polled_ago(2 * POLLED_RECENTLY);
        assert_eq!(runtime.watcher(), Watcher::Poller);
        polled_ago(2 * POLLED_LATELY);
        assert_eq!(runtime.watcher(), Watcher::Background, "another use of the context");
        drop(held);
    }

    /// Regression: the background thread took the processor back from a process to which a poll had yielded.
    #[test]
    fn the_background_thread_stays_away_while_a_thread_that_polls_leaves_the_processor_to_others() {
        let runtime = runtime();
        let (before, mut polls) = (runtime.activity.now(), 0);
        runtime.note_yield();
        let yielded = runtime.activity.now();
        while runtime.watcher() == Watcher::Poller {
            polls += 1;
            std::thread::yield_now();
        }
        let time = YIELDED_LATELY.as_nanos() as u64;
        assert!(runtime.activity.now() >= before + time, "too early");
        assert!(polls > 0 || runtime.activity.now() > yielded + time);
        assert_eq!(runtime.watcher(), Watcher::Background, "something keeps it from polling");
    }

    #[test]
    fn a_device_with_nothing_for_a_while_is_looked_at_now_and_then_only() {
        let runtime = runtime();
        let held = runtime.try_look(0);
        assert!(held.is_some());
        assert!(runtime.try_look(0).is_none(), "another thread has the lock");
        drop(held);
        let is_due = |now| runtime.try_look(now).is_some();
        for look in 0..LOOKS_IN_VAIN {
            assert!(is_due(1_000), "{look}");
            runtime.note_look(false);
        }
        let next = 1_000 + LOOKED_RECENTLY;
        assert!(!is_due(next - 1) && is_due(next), "when the last look began");
        assert!(!is_due(next), "the look that has begun just now");
        runtime.activity.note_failure();
        assert!(is_due(next), "a device that failed is reported by every poll");
        runtime.activity.has_failed.store(false, Ordering::Relaxed);
        assert!(!is_due(next));
        // Until something arrives.
        runtime.note_look(true);
        assert!(is_due(next));
    }

    /// Regression: the poll found the queue empty and did not report the failure.
    #[test]
    fn a_poll_of_a_failed_device_waits_for_the_lock() {
        let runtime = runtime();
        for has_failed in [false, true] {
            runtime.activity.has_failed.store(has_failed, Ordering::Relaxed);
            let held = runtime.lock();
            let is_polling = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let poller = scope.spawn(|| {
                    is_polling.store(true, Ordering::SeqCst);
                    runtime.try_look(u64::MAX).is_some()
                });
                while !is_polling.load(Ordering::SeqCst) || !has_failed && !poller.is_finished() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(10));
                drop(held);
                assert_eq!(poller.join().unwrap(), has_failed);
            });
        }
    }

    #[test]
    fn a_poll_that_found_something_stays_only_where_that_pays_off() {
        let runtime = runtime();
        let stays = || {
            let pays = runtime.lock().begin_to_linger();
            if let Some(pays) = pays {
                let before = runtime.lock().polls();
                runtime.linger(pays);
                assert!(runtime.lock().polls() > before);
            }
            pays
        };
        let Terms { trial, interval, .. } = LINGERING;
        assert!((0..trial).all(|_| stays() == Some(false)), "the first ones try it");
        assert!((0..interval).all(|_| stays().is_none()), "nothing came");
        assert!((0..trial).all(|_| stays() == Some(false)), "the next trial");
        assert!((0..4 * interval).all(|_| stays().is_none()), "nothing came again");
        (0..2).for_each(|_| runtime.lock().lingering.succeeded());
        assert_eq!([(); 3].map(|()| stays()), [Some(true), Some(true), None], "it pays off no longer");
    }

    #[test]
    fn rechecks_are_rare_only_while_no_other_thread_makes_progress() {
        let mut recheck = Recheck { after: FIRST_RECHECK, polls: 0 };
        let mut after = |polls| recheck.next(polls).as_millis();
        assert_eq!([7, 8, 9, 10, 11, 12].map(&mut after), [1, 2, 4, 8, 8, 8]);
        // Another thread made progress as well, or this one spun.
        assert_eq!([14, 15, 17, 20].map(&mut after), [1, 2, 1, 1]);
    }
}
