//! The live data: one event after the other, each a document about all running processes and the capture.

use std::collections::BTreeMap;
use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use roce::observe::{Published, Survey, survey};
use serde_json::{Map, Value, json};

use super::packets::Followed;
use crate::document;
use crate::network::{processes, stat};

/// Reads what processes publish, and compares it with the last time.
pub(super) struct Sampler {
    followed: Option<Followed>,
    before: Vec<Published>,
    /// The time of the last event.
    at: Option<Instant>,
}

impl Sampler {
    pub(super) fn new(followed: Option<Followed>) -> Self {
        Self { followed, before: Vec::new(), at: None }
    }

    /// Forgets the last event, which nobody has seen. The next one has no rates.
    pub(super) fn forget(&mut self) {
        self.before.clear();
        self.at = None;
    }

    /// Returns the next event in its form on the wire.
    pub(super) fn event(&mut self) -> io::Result<String> {
        let (survey, problem) = match survey(None) {
            Ok(survey) => (survey, None),
            Err(error) => {
                let text = format!("cannot read the sockets of running processes: {error}");
                (Survey::default(), Some(text))
            }
        };
        let now = Instant::now();
        let interval_s = self.at.replace(now).map(|before| now.duration_since(before).as_secs_f64());
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        let Survey { found, unanswered, .. } = survey;
        let mut body = json!({
            "time_s": time_s, "interval_s": interval_s, "problem": problem,
            "processes": found.iter().map(|published| self.process(published)).collect::<Vec<_>>(),
            "unanswered": unanswered.iter().map(|process| process.pid).collect::<Vec<_>>(),
        });
        if let Some(followed) = &self.followed {
            body["capture"] = followed.take(interval_s);
        }
        self.before = found;
        Ok(format!("data: {}\n\n", document::line("explore", &body)?))
    }

    fn process(&self, published: &Published) -> Value {
        let mut document = stat::document(published);
        document["queue_pairs"] =
            published.explanations.iter().map(processes::document_of_queue_pair).collect();
        let before = self.before.iter().find(|before| stat::is_same(before, published));
        if let Some(rates) = before.and_then(|before| rates(before, published)) {
            document["counters_per_second"] = rates.into();
        }
        document
    }
}

/// Returns the growth of counters per second, by the clock of the process itself. Counters that did not grow
/// are left out.
fn rates(before: &Published, now: &Published) -> Option<Map<String, Value>> {
    let seconds = now.uptime_s - before.uptime_s;
    if seconds <= 0.0 {
        return None;
    }
    let before: BTreeMap<&str, u64> =
        before.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let growth = now.counters.iter().map(|(name, value)| {
        let earlier = before.get(name.as_str()).copied().unwrap_or(0);
        (name, value.saturating_sub(earlier))
    });
    let rate = |growth: u64| Value::from(growth as f64 / seconds);
    Some(
        growth.filter(|(_, growth)| *growth > 0).map(|(name, growth)| (name.clone(), rate(growth))).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(uptime_s: f64, counters: &[(&str, u64)]) -> Published {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Published { uptime_s, counters, ..Published::default() }
    }

    #[test]
    fn rates_are_those_of_the_clock_of_the_process() {
        let before = published(1.0, &[("tx_packets", 10), ("rx_packets", 5), ("cm_connections", 3)]);
        let now = published(1.5, &[("tx_packets", 20), ("rx_packets", 5), ("cm_connections", 2), ("new", 1)]);
        assert_eq!(Value::from(rates(&before, &now).unwrap()), json!({ "tx_packets": 20.0, "new": 2.0 }));
        assert_eq!(rates(&now, &before), None, "another context with the same number");
        assert_eq!(rates(&now, &now), None);
    }
}
