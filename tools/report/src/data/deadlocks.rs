//! Deadlocks of pauses in the summary of a run.

use roce_sim::net::{Deadlock, Results};
use serde::{Deserialize, Serialize};

/// Maximum number of deadlocks in the table.
const MOST_ROWS: usize = 5;

/// A cycle of paused ports. Each port waits for the next one, and the last port waits for the first.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct DeadlockSummary {
    /// The time when the cycle closed.
    pub begin_seconds: f64,
    /// The paused priority.
    pub priority: u8,
    /// The names of the ports.
    pub ports: Vec<String>,
    /// The time when the cycle opened again; `None` if it held until the end.
    pub end_seconds: Option<f64>,
    /// The reason why the cycle opened.
    pub ended_by: Option<String>,
}

impl DeadlockSummary {
    fn new(deadlock: &Deadlock, results: &Results) -> Self {
        let name = |port: &u32| results.ports.get(*port as usize).map_or("", |port| &port.name).to_owned();
        Self {
            begin_seconds: deadlock.begin.as_secs_f64(),
            priority: deadlock.priority,
            ports: deadlock.ports.iter().map(name).collect(),
            end_seconds: deadlock.end.map(|(time, _)| time.as_secs_f64()),
            ended_by: deadlock.end.map(|(_, end)| end.name().to_owned()),
        }
    }

    fn text(&self) -> String {
        let mut ports = self.ports.iter().chain(self.ports.first());
        let first = ports.next().map_or("", String::as_str);
        let others: Vec<&str> = ports.map(String::as_str).collect();
        let end = match (self.end_seconds, self.ended_by.as_deref()) {
            (Some(end), Some(what)) => {
                let what = match what {
                    "resume" => "a resume",
                    "expiry" => "the expiry of a pause",
                    _ => "the watchdog",
                };
                format!("opened at {:.1} us by {what}", end * 1e6)
            }
            _ => "held until the end".to_owned(),
        };
        let waits = others.join(", which waits for ");
        format!(
            "at {:.1} us: {first} waits for {waits}; priority {}; {end}",
            self.begin_seconds * 1e6,
            self.priority
        )
    }
}

pub(super) fn summaries(results: &Results) -> Vec<DeadlockSummary> {
    results.deadlocks.iter().map(|deadlock| DeadlockSummary::new(deadlock, results)).collect()
}

/// Returns rows for the table of a run.
pub(super) fn rows(deadlocks: &[DeadlockSummary]) -> Vec<(&'static str, String)> {
    let mut rows: Vec<_> =
        deadlocks.iter().take(MOST_ROWS).map(|deadlock| ("deadlock", deadlock.text())).collect();
    if let Some(more) = deadlocks.len().checked_sub(MOST_ROWS).filter(|more| *more > 0) {
        rows.push(("further deadlocks", format!("{more}, which summary.json and --json list")));
    }
    rows
}
