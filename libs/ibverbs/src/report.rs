//! The report of a process to `roce run`: whether it listed devices, devices that could not be opened, failed
//! work requests and verbs, the explanation of the first failure of each device, and counters.
//!
//! `ROCE_REPORT` names a file. The library appends whole lines to it: process ID, device, a keyword and a
//! fact, separated by tabs. Counters follow when a device closes or the process exits. All other lines are
//! written at once, because a process that aborts or is killed cannot write them later.

use std::fmt::{Display, Write as _};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use roce::device::fork::Mutex;
use roce::observe::{Explanation, explain, with_causes};
use roce::verbs::{Cause, Context, VerbsError, Wc, WcStatus, WorkError};

use crate::answer::Errno;
use crate::counter_files;

/// Maximum number of failures to keep for each device.
const MOST_FAILURES: usize = 16;

/// The failed work requests and verbs of a device; the first ones are reported.
#[derive(Debug)]
pub(crate) struct Failures {
    device: String,
    kept: Mutex<Vec<String>>,
    /// Whether a failure was explained. A program often has many with one cause.
    is_explained: AtomicBool,
}

impl Failures {
    pub(crate) fn new(device: &str) -> Self {
        Self { device: device.to_owned(), kept: Mutex::default(), is_explained: AtomicBool::new(false) }
    }

    /// Records a failed request of a context; see [`note_error`](Self::note_error).
    #[cold]
    pub(crate) fn note(&self, wc: &Wc, context: &Context) {
        // Before the failures are locked: a query locks an engine, which may run code of the application.
        if let Err(error) = context.result(wc) {
            self.note_error(&error, || context.why(wc.qpn));
        }
    }

    /// Records a failure, and explains the first one. Ignores flushed requests, which only follow from
    /// another failure.
    fn note_error(&self, error: &WorkError, why: impl FnOnce() -> Option<Explanation>) {
        if error.wc.cause == Cause::Flushed || error.wc.status == WcStatus::WrFlushError {
            return;
        }
        let explanation = if self.is_explained.swap(true, Ordering::Relaxed) { None } else { why() };
        self.keep("failed", || explain(error));
        if let (Some(file), Some(explanation)) = (file(), explanation) {
            append(&file, &explained(&prefix(&self.device), &explanation));
        }
    }

    /// Records why a verb was refused, because programs print only the error number.
    #[cold]
    pub(crate) fn refused(&self, verb: &str, error: VerbsError) -> Errno {
        self.keep("refused", || format!("{verb}: {}", with_causes(&error)));
        error.into()
    }

    fn keep(&self, word: &str, text: impl FnOnce() -> String) {
        let mut kept = self.kept.lock();
        if kept.len() >= MOST_FAILURES {
            return;
        }
        let failure = text();
        if let Some(file) = file() {
            append(&file, &format!("{}{word}\t{}\n", prefix(&self.device), one_line(&failure)));
        }
        kept.push(failure);
    }
}

/// Appends that a device is open. A killed process cannot report this later.
pub(crate) fn opened(name: &str, specification: &str) {
    if let Some(file) = file() {
        append(&file, &device_line(name, specification));
    }
}

/// Appends the results of a device, and adds its counters to the files that `roce run` created.
pub(crate) fn device(name: &str, specification: &str, queue_pairs: u32, context: &Context) {
    let mut counters = Vec::new();
    context.visit_counters(&mut |name, value| counters.push((name, value)));
    counter_files::add(name, &counters);
    let Some(file) = file() else { return };
    let (prefix, mut text) = (prefix(name), device_line(name, specification));
    let _ = writeln!(text, "{prefix}queue_pairs\t{queue_pairs}");
    for (name, value) in counters {
        let _ = writeln!(text, "{prefix}counter\t{name}\t{value}");
    }
    append(&file, &text);
}

/// Appends the names of the devices that the application has listed, once per process.
pub(crate) fn listed<'a>(devices: impl Iterator<Item = &'a str>) {
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    if PROCESS.swap(process, Ordering::Relaxed) == process {
        return;
    }
    if let Some(file) = file() {
        let lines = devices.map(|device| format!("{}listed\t\n", prefix(device)));
        append(&file, &lines.collect::<String>());
    }
}

/// Appends a refused request of the application.
pub(crate) fn refusal(device: &str, reason: &str) {
    if let Some(file) = file() {
        append(&file, &format!("{}refused\t{}\n", prefix(device), one_line(reason)));
    }
}

/// Returns the lines of an explanation, each with a keyword.
fn explained(prefix: &str, explanation: &impl Display) -> String {
    let text = explanation.to_string();
    text.lines().map(|line| format!("{prefix}why\t{}\n", one_line(line))).collect()
}

fn device_line(name: &str, specification: &str) -> String {
    format!("{}device\t{}\n", prefix(name), one_line(specification))
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

/// Appends with a single write, so that the lines of several processes do not mix. Ignores errors, so that
/// the program does not fail.
fn append(file: &std::ffi::OsStr, text: &str) {
    let opened = OpenOptions::new().append(true).open(file);
    let _ = opened.and_then(|mut file| file.write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use roce::verbs::Ends;

    use super::*;

    #[test]
    fn the_first_failures_are_kept_with_a_remedy_and_flushes_are_not() {
        let failures = Failures::new("roce0");
        let failed = Wc { status: WcStatus::RetryExceededError, cause: Cause::AckTimeout, ..Wc::default() };
        let flushed = Wc { status: WcStatus::WrFlushError, cause: Cause::Flushed, ..Wc::default() };
        let ends = Ends { local: "198.18.0.1".parse().unwrap(), remote: "198.18.0.2".parse().unwrap() };
        for wc in [flushed, Wc::default(), failed] {
            if let Err(error) = wc.result() {
                failures.note_error(&error, || None);
            }
        }
        assert_eq!(failures.kept.lock().len(), 1);
        let refused = VerbsError::DeviceFailed("of a test".to_owned());
        assert_eq!(failures.refused("ibv_modify_qp", refused), Errno::IO);
        let error = WorkError { ends: Some(ends), ..failed.result().unwrap_err() };
        (0..100).for_each(|_| failures.note_error(&error, || None));
        let kept = failures.kept.lock();
        assert_eq!(kept.len(), MOST_FAILURES);
        assert!(kept[1].starts_with("ibv_modify_qp: "), "{}", kept[1]);
        assert!(kept[2].contains("at 198.18.0.1 towards queue pair 0 at 198.18.0.2"), "{}", kept[2]);
        assert!(kept[0].contains("RETRY_EXC_ERR") && kept[0].contains("UDP port 4791"), "{}", kept[0]);
    }
}
