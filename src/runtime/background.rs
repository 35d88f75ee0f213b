//! The background thread, which makes progress while the application does not, see [`wait`](super::wait).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Runtime;
use super::crowding;
use super::wait::{LONGEST_SLEEP, Watcher};
use crate::driver::wake::wait_readable;

/// First back-off while the application polls, and longest sleep if the device has no descriptor.
const BACK_OFF: Duration = Duration::from_micros(250);
/// Longest back-off while the application keeps polling. Each check takes the processor from the polling
/// thread if all processors are busy: with one check every 250 µs, the rate was 10 % lower.
const LONGEST_BACK_OFF: Duration = Duration::from_millis(2);

/// Longest time without a check of the device while the process runs. Four times the longest back-off,
/// because the thread may back off twice before it notices that the application has stopped polling.
const LOOKS_EVERY: Duration = Duration::from_millis(8);

/// Starts the thread. It ends when `stopped` is set, or when the last other owner drops the runtime.
pub(super) fn start(runtime: &Arc<Runtime>) -> io::Result<JoinHandle<()>> {
    let weak = Arc::downgrade(runtime);
    runtime.lock().nic.looks_every(runtime.activity.pace.time(LOOKS_EVERY));
    std::thread::Builder::new().name("roce-progress".into()).spawn(move || run(&weak))
}

fn run(weak: &Weak<Runtime>) {
    let mut last = None;
    while let Some(runtime) = weak.upgrade() {
        if runtime.stopped.load(Ordering::Acquire) {
            return;
        }
        let watcher = runtime.watcher();
        let pace = runtime.activity.pace;
        last = back_off_time(watcher, last, |time| runtime.has_polled_within(pace.time(time)));
        match (last, watcher) {
            (Some(time), _) => runtime.back_off(pace.time(time)),
            (None, Watcher::Waiter) => runtime.meet_deadlines(),
            (None, _) => runtime.serve(),
        }
    }
}

/// Returns how long the thread backs off now: while the application polls, twice as long as the last time.
///
/// An application that works between polls, or polls several engines in turn, is often not polling when this
/// thread checks. If it has polled since the last check, the thread still backs off, for half the time: two
/// threads that share a processor halve the rate of an application.
fn back_off_time(
    watcher: Watcher,
    last: Option<Duration>,
    has_polled_within: impl FnOnce(Duration) -> bool,
) -> Option<Duration> {
    match (watcher, last) {
        (Watcher::Poller, None) => Some(BACK_OFF),
        (Watcher::Poller, Some(last)) => Some((2 * last).min(LONGEST_BACK_OFF)),
        (Watcher::Background, Some(last)) if has_polled_within(last) => Some((last / 2).max(BACK_OFF)),
        _ => None,
    }
}

/// How long the thread checks for more packets before it sleeps. Otherwise a peer that sends a stream would
/// have to wake it often, which costs the peer more than a packet.
struct Patience {
    spin: Duration,
    /// Time of the first check in a row that found nothing.
    idle_since: Option<Instant>,
}

impl Patience {
    /// Returns whether to sleep after a check. `has_more` tells whether the check found something.
    fn is_over(&mut self, has_more: bool) -> bool {
        if has_more {
            self.idle_since = None;
            return false;
        }
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= self.spin
    }
}

impl Runtime {
    /// Sleeps until the next deadline or, if `watch_device` is set, until the device is readable. Another
    /// thread that sets an earlier deadline ends the sleep.
    fn suspend(&self, longest: Duration, watch_device: bool) {
        let (mut timeout, has_failed) = {
            let mut state = self.lock();
            let now = state.nic.now();
            let timeout = state.deadline().map_or(longest, |deadline| deadline.since(now).min(longest));
            let until = now.plus_nanos(timeout.as_nanos() as u64);
            state.background_sleeps_until = Some(until);
            if watch_device && self.device_descriptor.is_some() {
                state.nic.watched_until(now, until);
            }
            (timeout, state.nic.failure().is_some())
        };
        // The descriptor of a failed device may stay readable although there is nothing to receive.
        let device = self.device_descriptor.as_ref().filter(|_| watch_device && !has_failed);
        if watch_device && self.device_descriptor.is_none() {
            timeout = timeout.min(BACK_OFF);
        }
        let descriptors = [Some(self.wake.as_fd()), device.map(AsFd::as_fd)];
        if device.is_some() {
            self.note_watching();
        }
        match wait_readable(descriptors.into_iter().flatten(), Some(timeout)) {
            Ok(true) => self.wake.clear(),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "waiting for the device failed");
                std::thread::sleep(LONGEST_SLEEP);
            }
        }
        self.note_awake();
        // Otherwise each call of the application would compare its deadlines with the end of a past sleep.
        self.lock_state().background_sleeps_until = None;
    }

    /// Leaves the device to threads of the application that wait, and handles deadlines that were set after
    /// those threads went to sleep.
    fn meet_deadlines(&self) {
        let Some(longest) = self.rely(LONGEST_SLEEP, BACK_OFF) else { return };
        self.suspend(longest, false);
        let mut state = self.lock();
        let now = state.nic.now();
        if state.deadline().is_some_and(|deadline| deadline <= now) {
            state.progress();
        }
    }

    /// Sleeps until there is something to do, and then makes progress while more keeps coming.
    fn serve(&self) {
        self.suspend(LONGEST_SLEEP, true);
        let mut patience = Patience { spin: self.spin, idle_since: None };
        while self.watcher() == Watcher::Background && !self.stopped.load(Ordering::Acquire) {
            let has_more = { self.lock().progress() };
            self.yield_lock();
            if patience.is_over(has_more) {
                return;
            }
            if has_more {
                continue;
            }
            if crowding::looked_in_vain() {
                crowding::share();
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stays_away_for_longer_from_an_application_that_goes_on_polling() {
        let mut last = None;
        let mut micros_after = |watcher, polled_ago: u64| {
            last = back_off_time(watcher, last, |time| Duration::from_micros(polled_ago) < time);
            last.map(|time| time.as_micros())
        };
        let poller = [(); 6].map(|()| micros_after(Watcher::Poller, 1));
        assert_eq!(poller, [250, 500, 1_000, 2_000, 2_000, 2_000].map(Some));
        assert_eq!(micros_after(Watcher::Waiter, 1), None);
        assert_eq!(micros_after(Watcher::Background, 1), None, "it has begun to serve");
        assert_eq!(micros_after(Watcher::Poller, 1), Some(250));
    }

    /// Regression: the thread kept taking the processor from an application that drove two engines in turn.
    #[test]
    fn the_thread_stays_away_from_an_application_that_polls_now_and_then() {
        let after = |last, polled_ago: u64| {
            let has_polled = |time| Duration::from_micros(polled_ago) < time;
            let last = Some(Duration::from_micros(last));
            back_off_time(Watcher::Background, last, has_polled).map(|time| time.as_micros())
        };
        assert_eq!([after(2_000, 100), after(1_000, 900)], [Some(1_000), Some(500)]);
        assert_eq!([after(500, 499), after(250, 249)], [Some(250), Some(250)]);
        assert_eq!([after(2_000, 2_000), after(250, 251)], [None, None], "not since the last look");
    }

    /// Regression: after a stream had lasted for the spin time, the thread slept at the first check without a
    /// packet.
    #[test]
    fn the_thread_looks_for_more_as_long_after_each_packet() {
        let spin = Duration::from_millis(20);
        let mut patience = Patience { spin, idle_since: None };
        for _ in 0..3 {
            assert!(!patience.is_over(true));
            std::thread::sleep(2 * spin);
        }
        assert!(!patience.is_over(true) && !patience.is_over(false));
        std::thread::sleep(spin);
        assert!(patience.is_over(false));
        assert!(!patience.is_over(true), "and once more");
    }
}
