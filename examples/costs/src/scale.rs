//! One point of a curve of `bench/scale`: the costs of an operation with N objects, and of each object.
//! Each function checks the content of what it transfers. Points have a process of their own, so that one
//! does not change the memory of another.

mod capture;
mod connections;
mod median;
mod networks;
mod objects;
mod processes;

use serde_json::Value;

use super::outcome::Outcome;
use objects::Kind;

pub(crate) const NAMES: &str = "queue-pairs|regions|completion-queues|connections|processes|hosts|flows N, capture PACKETS, hold ADDRESS";

/// Measures one point. Returns `None` if nothing is to be printed.
pub(crate) fn point(name: &str, argument: &str) -> Outcome<Option<Value>> {
    if name == "hold" {
        return processes::hold(argument.parse()?).map(|()| None);
    }
    let count: usize = argument.parse()?;
    if count == 0 {
        return Err("a curve begins at 1".into());
    }
    Ok(Some(match name {
        "queue-pairs" => objects::operations(Kind::QueuePairs, count)?,
        "regions" => objects::operations(Kind::Regions, count)?,
        "completion-queues" => objects::operations(Kind::CompletionQueues, count)?,
        "connections" => connections::establish(count)?,
        "processes" => processes::latency(count)?,
        "hosts" => networks::hosts(count)?,
        "flows" => networks::flows(count)?,
        // The packets are on standard output.
        "capture" => {
            eprintln!("{}", capture::write(count)?);
            return Ok(None);
        }
        other => return Err(format!("{other} is not one of {NAMES}").into()),
    }))
}
