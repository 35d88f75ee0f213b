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
        serve(&inner);
    }
}

/// Sleeps until there is something to do and does it, for as long as more keeps coming.
fn serve(inner: &Arc<Inner>) {
    let timeout = {
        let driver = inner.lock();
        let now = driver.now();
        driver.deadline().map_or(LONGEST_SLEEP, |deadline| deadline.since(now).min(LONGEST_SLEEP))
    };
    let waited = match inner.device_descriptor() {
        Some(device) => wait_readable(&[device, inner.wake_descriptor()], Some(timeout)),
        None => wait_readable(&[inner.wake_descriptor()], Some(timeout.min(BACK_OFF))),
    };
    inner.clear_wake();
    if let Err(error) = waited {
        tracing::error!(%error, "waiting for the device failed");
        std::thread::sleep(LONGEST_SLEEP);
    }
    if inner.is_being_polled() {
        return;
    }
    let spin_end = std::time::Instant::now() + inner.spin;
    loop {
        let arrived = inner.lock_and_progress();
        if !arrived && std::time::Instant::now() >= spin_end {
            return;
        }
        if inner.is_being_polled() || inner.stopped.load(Ordering::Acquire) {
            return;
        }
        if !arrived {
            std::hint::spin_loop();
        }
    }
}
