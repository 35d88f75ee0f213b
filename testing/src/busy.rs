//! Time limits that hold on a busy machine.

use std::time::{Duration, Instant};

use crate::skip::say;

fn for_each_processor(processes: f64) -> f64 {
    let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    (processes / processors).max(1.0)
}

/// How many processes wanted to run on average over the last minute, and how many want to now; 1 where that is not known.
fn processes() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let fields: Vec<&str> = text.split([' ', '/']).collect();
    [0, 3].map(|index| fields.get(index).and_then(|field| field.parse().ok()).unwrap_or(1.0))
}

/// How many processes want each processor, at least 1: on average over the last minute, or now if those are more.
fn processes_for_each_processor() -> f64 {
    let [average, now] = processes();
    for_each_processor(average.max(now))
}

/// With more of them, two ends that share two processors with others are late for milliseconds at a time.
const MOST_PROCESSES_FOR_RATES: f64 = 6.0;

/// How long something that took this long would have taken on an idle machine, by an estimate: with four times as many processes
/// as processors, a quarter. For limits of tests.
pub fn on_idle(took: Duration) -> Duration {
    took.div_f64(processes_for_each_processor())
}

/// Whether the machine was too busy in the last minute for a test to judge rates. If so, prints which test leaves them out.
#[must_use]
pub fn is_too_busy_for_rates() -> bool {
    let processes = for_each_processor(processes()[0]);
    let too_busy = processes > MOST_PROCESSES_FOR_RATES;
    if too_busy {
        say("NOT COMPARED", &format!("rates, because there are {processes:.1} processes for each processor"));
    }
    too_busy
}

/// A time limit in seconds of an idle machine. On a busy one a second counts less, as [`on_idle`] says.
#[derive(Debug)]
pub(crate) struct Limit {
    left: f64,
    last: Instant,
}

impl Limit {
    pub(crate) fn new(seconds: u64) -> Self {
        Self { left: seconds as f64, last: Instant::now() }
    }

    /// Whether the time is over; to be called about once a second at least.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        // Time in which this process did not run was not at its disposal.
        let passed = (now - self.last).min(Duration::from_secs(2));
        self.last = now;
        self.left -= on_idle(passed).as_secs_f64();
        self.left < 0.0
    }
}
