//! What `roce run` is told of a process: counters, work requests that failed, devices that could not be opened.
//!
//! `ROCE_REPORT` names a file. When a device opens and when it closes, and for devices that are open when the process exits, whole
//! lines are appended to it: the number of the process, the device, a word, and a fact, with tabs between them.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use roce::device::fork::{Mutex, StaticMutex};
use roce::observe::advice;
use roce::verbs::{Cause, VerbsError, Wc, WcStatus};

use crate::answer::Errno;
use crate::context::Open;

/// Failures that are kept for each device.
const MOST_FAILURES: usize = 16;

/// The devices that are open. Those of a parent process are no concern of a child's.
static OPEN: StaticMutex<Vec<(u32, Weak<Open>)>> = StaticMutex::new(Vec::new());

/// The work requests and verbs of a device that failed, the first ones.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Vec<String>>);

impl Failures {
    /// Keeps a failure. What was flushed only follows from another one.
    #[cold]
    pub(crate) fn note(&self, wc: &Wc) {
        let Err(error) = wc.result() else { return };
        if wc.cause == Cause::Flushed || wc.status == WcStatus::WrFlushError {
            return;
        }
        self.keep(|| format!("{error}: {}", advice(wc.status, wc.cause)));
    }

    /// Keeps why a verb was refused, where programs print no more than the error number.
    #[cold]
    pub(crate) fn refused(&self, verb: &str, error: VerbsError) -> Errno {
        self.keep(|| format!("{verb}: {error}"));
        error.into()
    }

    fn keep(&self, text: impl FnOnce() -> String) {
        let mut failures = self.0.lock();
        if failures.len() < MOST_FAILURES {
            failures.push(text());
        }
    }
}

/// Reports that the device is open, and when the process exits, what became of it if it is still open then; its connections end before.
pub(crate) fn watch(open: &std::sync::Arc<Open>) {
    // A process that is killed says nothing later.
    if let Some(file) = file() {
        append(&file, &opened(open));
    }
    static AT_EXIT: AtomicBool = AtomicBool::new(false);
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        // SAFETY: the function is never unloaded, because the library cannot be, and unwinds into nothing.
        unsafe { libc::atexit(report_all) };
    }
    let mut devices = OPEN.lock();
    devices.retain(|(_, device)| device.strong_count() > 0);
    devices.push((std::process::id(), std::sync::Arc::downgrade(open)));
}

extern "C" fn report_all() {
    crate::answer::value((), || {
        // A thread that was killed in the middle of an `exit` may hold it.
        let Some(mut devices) = OPEN.try_lock() else { return };
        for (process, device) in std::mem::take(&mut *devices) {
            if process == std::process::id()
                && let Some(open) = device.upgrade()
            {
                crate::rdmacm::disconnect_all(&open);
                open.close();
            }
        }
    });
}

/// Appends what became of a device.
pub(crate) fn device(open: &Open, failures: &Failures) {
    let Some(file) = file() else { return };
    let (prefix, mut text) = (prefix(open.device.name()), opened(open));
    open.context.visit_counters(&mut |name, value| {
        let _ = writeln!(text, "{prefix}counter\t{name}\t{value}");
    });
    for failure in &*failures.0.lock() {
        let _ = writeln!(text, "{prefix}failed\t{}", one_line(failure));
    }
    append(&file, &text);
}

/// Appends why a device could not be opened.
pub(crate) fn refusal(device: &str, reason: &str) {
    if let Some(file) = file() {
        append(&file, &format!("{}refused\t{}\n", prefix(device), one_line(reason)));
    }
}

fn opened(open: &Open) -> String {
    format!("{}device\t{}\n", prefix(open.device.name()), one_line(open.device.specification()))
}

fn file() -> Option<std::ffi::OsString> {
    std::env::var_os("ROCE_REPORT").filter(|name| !name.is_empty())
}

fn prefix(device: &str) -> String {
    format!("{}\t{}\t", std::process::id(), one_line(device))
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\t'], " ")
}

/// One write for all, so that the lines of processes do not mix. A program does not fail because its report cannot be written.
fn append(file: &std::ffi::OsStr, text: &str) {
    let opened = OpenOptions::new().append(true).open(file);
    let _ = opened.and_then(|mut file| file.write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failures_are_kept_with_a_remedy_and_flushes_are_not() {
        let failures = Failures::default();
        let failed = Wc { status: WcStatus::RetryExceededError, cause: Cause::AckTimeout, ..Wc::default() };
        let flushed = Wc { status: WcStatus::WrFlushError, cause: Cause::Flushed, ..Wc::default() };
        for wc in [flushed, Wc::default(), failed] {
            failures.note(&wc);
        }
        assert_eq!(failures.0.lock().len(), 1);
        let refused = VerbsError::DeviceFailed("of a test".to_owned());
        assert_eq!(failures.refused("ibv_modify_qp", refused), Errno::IO);
        (0..100).for_each(|_| failures.note(&failed));
        let kept = failures.0.lock();
        assert_eq!(kept.len(), MOST_FAILURES);
        assert!(kept[1].starts_with("ibv_modify_qp: "), "{}", kept[1]);
        assert!(kept[0].contains("RETRY_EXC_ERR") && kept[0].contains("UDP port 4791"), "{}", kept[0]);
    }
}
