//! The queue pairs of running processes, as `roce why --pid` and the page explain them.

use std::io::Write;

use anyhow::{Context as _, bail};
use roce::observe::{Published, PublishedExplanation, Survey, survey};
use serde_json::{Map, Value, json};

use super::terminal::{Output, Paint};

/// Reads the contexts of a process.
fn read(pid: u32) -> anyhow::Result<Vec<Published>> {
    let Survey { found, unanswered, .. } =
        survey(Some(pid)).context("cannot read the sockets of running processes")?;
    if let Some(process) = unanswered.first() {
        bail!(
            "process {pid} does not answer at {}; check whether it is stopped (`ps -o stat {pid}`)",
            process.path
        );
    }
    if found.is_empty() {
        bail!(
            "process {pid} publishes nothing; check that it is running and belongs to you, and that it was started \
             with ROCE_STAT=1 if it is not a `roce` command"
        );
    }
    Ok(found)
}

/// Explains the queue pairs of a process.
pub(crate) fn explain_process(pid: u32, output: &mut Output) -> anyhow::Result<()> {
    for published in read(pid)? {
        let title = format!("{} {}: {}", published.pid, published.command, published.addresses.join(", "));
        writeln!(output, "{}", output.style.paint(Paint::BOLD, title))?;
        for explanation in &published.explanations {
            writeln!(output, "{}", explanation.text)?;
        }
        if published.explanations.is_empty() {
            writeln!(output, "no queue pair exists")?;
        }
    }
    Ok(())
}

/// Returns the document about the contexts of a process.
pub(crate) fn document_of_process(pid: u32) -> anyhow::Result<Value> {
    Ok(json!({ "contexts": read(pid)?.iter().map(document_of_context).collect::<Vec<_>>() }))
}

fn document_of_context(published: &Published) -> Value {
    let Published { pid, command, version, device, addresses, explanations, .. } = published;
    json!({
        "pid": pid, "command": command, "version": version, "device": device, "addresses": addresses,
        "queue_pairs": explanations.iter().map(document_of_queue_pair).collect::<Vec<_>>(),
    })
}

/// Converts the facts of a queue pair. Facts with other keys than these, from a later version, are left out.
pub(super) fn document_of_queue_pair(explanation: &PublishedExplanation) -> Value {
    let mut fields = Map::new();
    let (mut packets, mut counters, mut likely) = (Vec::new(), Map::new(), Vec::new());
    for (key, value) in &explanation.facts {
        match key.as_str() {
            "qpn" | "peer_qpn" | "incomplete" | "wr_id" | "silence_ns" => {
                let key = if key == "incomplete" { "incomplete_requests" } else { key };
                fields.insert(key.to_owned(), value.parse::<u64>().map_or(Value::Null, Value::from));
            }
            "address" | "peer_address" | "state" | "status" | "vendor_err" | "check" => {
                fields.insert(key.clone(), json!(value));
            }
            "packet" => packets.push(json!(value)),
            "drop" => {
                let (name, count) = value.split_once(' ').unwrap_or((value, ""));
                counters.insert(name.to_owned(), count.parse::<u64>().map_or(Value::Null, Value::from));
            }
            "cause" => likely.push(json!({ "cause": value, "next_step": "" })),
            "next" => {
                if let Some(last) = likely.last_mut() {
                    last["next_step"] = json!(value);
                }
            }
            _ => {}
        }
    }
    fields.insert("packets".to_owned(), packets.into());
    fields.insert("counters".to_owned(), counters.into());
    fields.insert("likely".to_owned(), likely.into());
    fields.insert("text".to_owned(), json!(explanation.text));
    fields.into()
}
