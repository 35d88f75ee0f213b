//! Time limits that account for the load of the machine.

use std::time::{Duration, Instant};

use crate::skip::say;

fn for_each_processor(processes: f64) -> f64 {
    let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    (processes / processors).max(1.0)
}

/// Returns the number of runnable processes: the average of the last minute, and now. Both are 1 if unknown.
fn processes() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let fields: Vec<&str> = text.split([' ', '/']).collect();
    [0, 3].map(|index| fields.get(index).and_then(|field| field.parse().ok()).unwrap_or(1.0))
}

/// Returns the number of runnable processes per processor, at least 1: the larger of the last minute's
/// average and now.
fn processes_for_each_processor() -> f64 {
    let [average, now] = processes();
    for_each_processor(average.max(now))
}

/// Limit for judging rates. Above it, two ends that share two processors with others are late by
/// milliseconds.
const MOST_PROCESSES_FOR_RATES: f64 = 6.0;

/// Estimates the duration on an idle machine of something that took `took`: a quarter if there are four times
/// as many processes as processors. For time limits of tests.
pub fn on_idle(took: Duration) -> Duration {
    took.div_f64(processes_for_each_processor())
}

/// Returns whether the machine was too busy in the last minute to judge rates. Prints the test that skips the
/// comparison.
#[must_use]
pub fn is_too_busy_for_rates() -> bool {
    let processes = for_each_processor(processes()[0]);
    let too_busy = processes > MOST_PROCESSES_FOR_RATES;
    if too_busy {
        say("NOT COMPARED", &format!("rates, because there are {processes:.1} processes for each processor"));
    }
    too_busy
}

/// A time limit in seconds of an idle machine. On a busy machine, a second counts less, as in [`on_idle`].
#[derive(Debug)]
pub(crate) struct Limit {
    left: f64,
    last: Instant,
}

impl Limit {
    pub(crate) fn new(seconds: u64) -> Self {
        Self { left: seconds as f64, last: Instant::now() }
    }

    /// Returns whether the limit is exceeded. Must be called about once per second.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        // The process did not run for most of a longer interval, so at most 2 s of it count.
        let passed = (now - self.last).min(Duration::from_secs(2));
        self.last = now;
        self.left -= on_idle(passed).as_secs_f64();
        self.left < 0.0
    }
}
