//! The background thread: it makes progress while the application does not.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::driver::wake::wait_readable;
use crate::verbs::context::Inner;

/// While the application polls, look again after so long.
const BACK_OFF: Duration = Duration::from_micros(250);
/// Look at least so often, whatever happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// Starts the thread. It ends when `stopped` is set.
pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let weak = Arc::downgrade(inner);
    std::thread::Builder::new().name("roce-progress".into()).spawn(move || run(&weak))
}

fn run(weak: &Weak<Inner>) {
    while let Some(inner) = weak.upgrade() {
        if inner.stopped.load(Ordering::Acquire) {
            return;
        }
        if inner.is_being_polled() {
            drop(inner);
            std::thread::sleep(BACK_OFF);
            continue;
        }
        if inner.is_being_waited_for() {
            stand_by(&inner);
        } else {
            serve(&inner);
        }
    }
}

/// Goes to bed, and says until when, and whether the device failed. Whoever makes an earlier deadline wakes this thread.
fn lie_down(inner: &Arc<Inner>) -> (Duration, bool) {
    let driver = inner.lock();
    let now = driver.now();
    let sleep = driver.deadline().map_or(LONGEST_SLEEP, |deadline| deadline.since(now).min(LONGEST_SLEEP));
    inner.lie_down(now.plus_nanos(sleep.as_nanos() as u64));
    (sleep, driver.failure().is_some())
}

/// While threads of the application wait, they watch the device. They do not know of deadlines that came
/// up after they had gone to sleep.
fn stand_by(inner: &Arc<Inner>) {
    let (timeout, _) = lie_down(inner);
    let waited = wait_readable(&[inner.wake_descriptor()], Some(timeout));
    inner.get_up();
    report(waited);
    let mut driver = inner.lock();
    let now = driver.now();
    if driver.deadline().is_some_and(|deadline| deadline <= now) {
        driver.progress();
        inner.deliver_events(&mut driver);
    }
}

fn report(waited: std::io::Result<bool>) {
    if let Err(error) = waited {
        tracing::error!(%error, "waiting for the device failed");
        std::thread::sleep(LONGEST_SLEEP);
    }
}

/// Sleeps until there is something to do and does it, for as long as more keeps coming.
fn serve(inner: &Arc<Inner>) {
    let (timeout, has_failed) = lie_down(inner);
    let waited = match inner.device_descriptor() {
        // It would be readable for ever, and there is nothing to be had.
        Some(_) if has_failed => wait_readable(&[inner.wake_descriptor()], Some(timeout)),
        Some(device) => wait_readable(&[device, inner.wake_descriptor()], Some(timeout)),
        None => wait_readable(&[inner.wake_descriptor()], Some(timeout.min(BACK_OFF))),
    };
    inner.get_up();
    report(waited);
    if inner.is_being_polled() || inner.is_being_waited_for() {
        return;
    }
    let spin_end = std::time::Instant::now() + inner.spin;
    loop {
        let arrived = inner.lock_and_progress();
        if !arrived && std::time::Instant::now() >= spin_end {
            return;
        }
        if inner.is_being_polled() || inner.is_being_waited_for() || inner.stopped.load(Ordering::Acquire) {
            return;
        }
        if !arrived {
            std::hint::spin_loop();
        }
    }
}
