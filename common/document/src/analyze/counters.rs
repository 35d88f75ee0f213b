//! Changes of counters as JSON.

use roce_analysis::counters::{Change, Comparison, Kind};
use serde_json::{Value, json};

/// Returns what changed at a NIC as JSON, an element of `devices` in `roce/counters/1`.
#[must_use]
pub fn changes(comparison: &Comparison) -> Value {
    let counters: Vec<Value> = comparison.changes.iter().map(counter).collect();
    json!({
        "device": comparison.name, "driver": comparison.driver.map(|driver| driver.name()),
        "is_reset": comparison.is_reset, "counters": counters,
    })
}

fn counter(change: &Change) -> Value {
    let event = change.event;
    json!({
        "name": change.name, "before": change.before, "after": change.after,
        "outcome": change.outcome.name(), "growth": change.outcome.growth(),
        "kind": change.kind().map(Kind::name),
        "meaning": event.map(|event| event.meaning()),
        "cause": event.map(|event| event.cause()),
        "next_step": event.map(|event| event.next_step()),
    })
}
