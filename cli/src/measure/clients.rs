//! The server of several clients at once: `--clients`.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use roce::observe::with_causes;
use roce_measure::measure::{Clients, Ended, Event, Plan, Row, Served, Totals};
use serde::Serialize;

use super::table::test;
use crate::document;
use crate::errors;
use crate::network::device_options::DeviceArgs;
use crate::network::listen::Contexts;
use crate::terminal::Output;

/// One client of a document. A client that failed has a reason, and neither a plan nor rows.
#[derive(Serialize)]
struct Client {
    peer: String,
    error: Option<String>,
    plan: Option<Plan>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Document<'a> {
    clients: &'a [Client],
    totals: &'a Totals,
}

/// Serves clients, and prints a line for each and the totals. With `json`, which is the name of the command,
/// it prints documents instead.
pub(super) fn serve(
    mut clients: Clients,
    mut contexts: Contexts<'_>,
    device: &DeviceArgs,
    json: Option<&str>,
    output: &mut Output,
) -> anyhow::Result<ExitCode> {
    let (mut list, mut all, mut failed) = (Vec::new(), 0, 0);
    while let Some(event) = clients.event()? {
        match event {
            Event::Called(client) => match contexts.open(client.called()) {
                Ok(context) => clients.serve(&context, client),
                Err(error) => clients.refuse(client, errors::with_causes(&error)),
            },
            Event::Ended(ended) => {
                device.flush_captures();
                match json {
                    Some(_) => list.push(document_of(ended)),
                    None => print(output, &ended)?,
                }
            }
            Event::Totals(totals) => {
                (all, failed) = (all + totals.clients, failed + totals.failed);
                match json {
                    Some(command) => {
                        let name = format!("{command}-server");
                        document::print(output, &name, &Document { clients: &list, totals: &totals })?;
                        list.clear();
                    }
                    None => print_totals(output, &totals)?,
                }
                output.flush()?;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {all} clients failed; the reason of each is printed above");
    }
    Ok(ExitCode::SUCCESS)
}

fn document_of(ended: Ended) -> Client {
    let Ended { peer, outcome } = ended;
    match outcome {
        Ok(Served { plan, rows, .. }) => Client { peer, error: None, plan: Some(plan), rows },
        Err(error) => {
            Client { peer, error: Some(with_causes(&error).to_string()), plan: None, rows: Vec::new() }
        }
    }
}

fn print(output: &mut Output, ended: &Ended) -> std::io::Result<()> {
    let peer = &ended.peer;
    match &ended.outcome {
        Ok(served) => {
            let rates: Vec<String> =
                served.rows.iter().map(|row| format!("{:.2}", row.gigabits_per_s)).collect();
            let (messages, bytes) = (served.messages(), served.bytes());
            writeln!(
                output,
                "served {peer}: {}, {messages} messages, {bytes} bytes, {} Gb/s",
                test(&served.plan),
                rates.join(", ")
            )?;
        }
        Err(error) => writeln!(output, "{peer}: {}", with_causes(error))?,
    }
    output.flush()
}

fn print_totals(output: &mut Output, totals: &Totals) -> std::io::Result<()> {
    let Totals { clients, served, failed, messages, bytes, elapsed_s, gigabits_per_s } = totals;
    writeln!(
        output,
        "clients: {clients}, served: {served}, failed: {failed}; {messages} messages, {bytes} bytes in \
         {elapsed_s:.3} s, {gigabits_per_s:.2} Gb/s"
    )
}
