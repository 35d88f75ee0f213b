//! Faults on demand: the plan in `ROCE_VERBS_FAULT`, the number of calls so far, and the log.
//!
//! [`roce_fault::verbs`] decides about each call; this module reads the clock and the environment, and
//! writes one line for each fault. Without a plan, a call of a verb costs one relaxed load.

use std::ffi::OsString;
use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant as WallTime};

use roce::device::Instant;
use roce::device::fork::StaticMutex;
use roce_fault::verbs::{Verb, VerbsFaults, VerbsPlan};

use crate::errno::Errno;

/// The environment variable with the plan, or with `@` and the name of a file that contains it.
const VARIABLE: &str = "ROCE_VERBS_FAULT";
/// The environment variable with the name of the log file. Without it, the log goes to standard error.
const LOG_VARIABLE: &str = "ROCE_VERBS_FAULT_LOG";

/// Values of [`STATE`]: the environment was not read yet, there is no plan, there is one.
const UNREAD: u8 = 0;
const NONE: u8 = 1;
const ACTIVE: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNREAD);
static FAULTS: StaticMutex<Option<Result<Active, String>>> = StaticMutex::new(None);

/// The plan of this process and its state.
pub(crate) struct Active {
    pub(crate) faults: VerbsFaults,
    start: WallTime,
    log: Option<OsString>,
}

impl Active {
    /// Returns the time of the first verb of the process.
    pub(crate) fn start(&self) -> WallTime {
        self.start
    }

    /// Returns the time since the first verb of the process.
    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    /// Writes one line about a fault: the time, and what happened. Ignores errors, so that the program does
    /// not fail.
    pub(crate) fn log(&self, what: fmt::Arguments<'_>) {
        let time = self.start.elapsed().as_secs_f64();
        let Some(file) = &self.log else {
            let _ = std::io::stderr().write_all(format!("roce: verbs fault: {time:.6} {what}\n").as_bytes());
            return;
        };
        // The file is opened for each line, because a program may close all descriptors. Single writes keep
        // the lines of several processes apart.
        let line = format!("{} {time:.6} {what}\n", std::process::id());
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Returns the error with which the current call of a verb must fail, after the delay that the plan demands.
#[inline]
pub(crate) fn before(verb: Verb) -> Result<(), Errno> {
    if STATE.load(Ordering::Relaxed) == NONE { Ok(()) } else { decide(verb) }
}

#[cold]
#[inline(never)]
fn decide(verb: Verb) -> Result<(), Errno> {
    let decided = with(|active| {
        let now = active.now();
        let fault = active.faults.on_call(verb, now)?;
        let delay = Duration::from_nanos(fault.delay_ns);
        match fault.errno {
            Some(errno) if delay.is_zero() => active.log(format_args!("{verb} {} {errno}", fault.call)),
            Some(errno) => active.log(format_args!("{verb} {} delay={delay:?} {errno}", fault.call)),
            None => active.log(format_args!("{verb} {} delay={delay:?}", fault.call)),
        }
        Some((delay, fault.errno))
    });
    let Some((delay, errno)) = decided.flatten() else { return Ok(()) };
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    errno.map_or(Ok(()), |errno| Err(Errno(errno.get())))
}

/// Returns whether the process has a plan. The first verb of the process reads it.
#[inline]
pub(crate) fn is_active() -> bool {
    STATE.load(Ordering::Relaxed) == ACTIVE
}

/// Runs `work` if the process has a plan. `work` must not call a verb.
pub(crate) fn with<T>(work: impl FnOnce(&mut Active) -> T) -> Option<T> {
    if STATE.load(Ordering::Relaxed) == NONE {
        return None;
    }
    let mut faults = FAULTS.lock();
    if STATE.load(Ordering::Relaxed) == UNREAD {
        *faults = read();
        let state = if matches!(*faults, Some(Ok(_))) { ACTIVE } else { NONE };
        STATE.store(state, Ordering::Relaxed);
    }
    match &mut *faults {
        Some(Ok(active)) => Some(work(active)),
        _ => None,
    }
}

/// Returns why the text in the environment is not a plan.
pub(crate) fn problem() -> Option<String> {
    FAULTS.lock().as_ref()?.as_ref().err().cloned()
}

fn read() -> Option<Result<Active, String>> {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())?;
    let read = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}")),
        None => Ok(text.clone()),
    };
    let plan = read.and_then(|text| text.parse::<VerbsPlan>().map_err(|error| error.to_string()));
    let active = |plan| Active {
        faults: VerbsFaults::new(plan),
        start: WallTime::now(),
        log: std::env::var_os(LOG_VARIABLE).filter(|file| !file.is_empty()),
    };
    Some(plan.map(active).map_err(|error| format!("{VARIABLE}={text}: {error}")))
}
