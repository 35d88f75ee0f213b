//! The background thread, which makes progress while the application does not, see [`roce_policy`].

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use roce_policy::{Background, Duty, Shift, Spin, Watcher};

use super::{Runtime, crowding};
use crate::driver::wake::wait_readable;

/// Starts the thread. It ends when `stopped` is set, or when the last other owner drops the runtime.
pub(super) fn start(runtime: &Arc<Runtime>) -> io::Result<JoinHandle<()>> {
    let weak = Arc::downgrade(runtime);
    runtime.lock().nic.looks_every(runtime.timing.checks_every);
    std::thread::Builder::new().name("roce-progress".into()).spawn(move || run(&weak))
}

fn run(weak: &Weak<Runtime>) {
    let mut shift = Shift::default();
    while let Some(runtime) = weak.upgrade() {
        if runtime.stopped.load(Ordering::Acquire) {
            return;
        }
        match shift.next(&runtime.watch, runtime.clock.now(), || runtime.is_locked()) {
            Duty::BackOff(time) => runtime.back_off(time),
            Duty::Rely(time) => runtime.meet_deadlines(time),
            Duty::Serve => runtime.serve(),
        }
    }
}

impl Runtime {
    /// Leaves the device to the polling application for `time`, or until the application wakes the thread.
    fn back_off(&self, time: Duration) {
        match wait_readable([self.wake.as_fd()], Some(time)) {
            Ok(true) => self.wake.clear(),
            Ok(false) => {}
            Err(_) => std::thread::sleep(time),
        }
        self.watch.set_background(Background::Awake);
    }

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
            timeout = timeout.min(self.timing.back_off);
        }
        let descriptors = [Some(self.wake.as_fd()), device.map(AsFd::as_fd)];
        if device.is_some() {
            self.watch.set_background(Background::Watching);
        }
        match wait_readable(descriptors.into_iter().flatten(), Some(timeout)) {
            Ok(true) => self.wake.clear(),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "waiting for the device failed");
                std::thread::sleep(self.timing.longest_sleep);
            }
        }
        self.watch.set_background(Background::Awake);
        // Otherwise each call of the application would compare its deadlines with the end of a past sleep.
        self.lock_state().background_sleeps_until = None;
    }

    /// Leaves the device to threads of the application that wait, for `longest`, and handles deadlines that
    /// were set after those threads went to sleep.
    fn meet_deadlines(&self, longest: Duration) {
        self.suspend(longest, false);
        let mut state = self.lock();
        let now = state.nic.now();
        if state.deadline().is_some_and(|deadline| deadline <= now) {
            state.progress();
        }
    }

    /// Sleeps until there is something to do, and then makes progress while more keeps coming.
    fn serve(&self) {
        self.suspend(self.timing.longest_sleep, true);
        let mut spin = Spin::default();
        while self.watcher() == Watcher::Background && !self.stopped.load(Ordering::Acquire) {
            let has_more = { self.lock().progress() };
            self.yield_lock();
            if spin.checked(self.clock.now(), has_more, self.spin) {
                return;
            }
            if has_more {
                continue;
            }
            crowding::yield_if_needed();
            std::hint::spin_loop();
        }
    }
}
