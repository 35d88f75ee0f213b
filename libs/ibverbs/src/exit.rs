//! The exit of the process while devices are open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use roce::device::fork::StaticMutex;

use crate::answer::guarded;
use crate::context::Open;
use crate::report;

/// The open devices. A child process ignores those of its parent.
static OPEN: StaticMutex<Vec<(u32, Weak<Open>)>> = StaticMutex::new(Vec::new());
/// A function that ends the connections of a device.
type EndConnections = fn(&Arc<Open>);
/// Ends the connections of a device; connection management sets it before it uses a device.
static END_CONNECTIONS: StaticMutex<Option<EndConnections>> = StaticMutex::new(None);

/// Reports that the device is open. If it is still open when the process exits, reports its results then,
/// after its connections have ended.
pub(crate) fn watch(open: &Arc<Open>) {
    report::opened(open.device.name(), open.device.specification());
    static AT_EXIT: AtomicBool = AtomicBool::new(false);
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        // SAFETY: the library cannot be unloaded, so the function stays valid; it does not unwind.
        unsafe { libc::atexit(report_all) };
    }
    let mut devices = OPEN.lock();
    devices.retain(|(_, device)| device.strong_count() > 0);
    devices.push((std::process::id(), Arc::downgrade(open)));
}

/// Sets the function that ends the connections of a device before the device reports its results.
pub(crate) fn set_end_of_connections(end: EndConnections) {
    *END_CONNECTIONS.lock() = Some(end);
}

extern "C" fn report_all() {
    let _ = guarded(|| {
        // A thread that was killed during an `exit` may hold the lock.
        let Some(mut devices) = OPEN.try_lock() else { return Ok(()) };
        let end = END_CONNECTIONS.try_lock().and_then(|end| *end);
        for (process, device) in std::mem::take(&mut *devices) {
            if process == std::process::id()
                && let Some(open) = device.upgrade()
            {
                if let Some(end) = end {
                    end(&open);
                }
                open.close();
            }
        }
        Ok(())
    });
}
