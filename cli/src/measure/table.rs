//! The table of `roce ping` and `roce blast`, which `roce demo` also prints, and the line of their servers.

use std::io::Write as _;

use crate::terminal::{Output, Paint};
use roce_measure::measure::{Plan, Row, Tool};

/// Returns what a server has served.
pub(crate) fn test(plan: &Plan) -> String {
    let (tool, op, sizes) = (plan.tool, plan.op, plan.sizes.len());
    let test = format!("{tool:?} by {op:?}").to_lowercase();
    format!("{test}, message sizes: {sizes}")
}

/// Prints the column titles.
pub(crate) fn print_columns(output: &mut Output, tool: Tool) -> std::io::Result<()> {
    let line = match tool {
        Tool::Ping => format!(
            "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>6} {:>6}",
            "bytes", "one-way", "min", "median", "99%", "max", "round trips", "client", "server"
        ),
        Tool::Blast => format!(
            "{:>9} {:>9} {:>9} {:>11} {:>9} {:>7} {:>6} {:>6}",
            "bytes", "messages", "Gb/s", "messages/s", "one-way", "resent", "client", "server"
        ),
    };
    writeln!(output, "{}", output.style.paint(Paint::BOLD, line))?;
    let units = match tool {
        Tool::Ping => format!(
            "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>6} {:>6}",
            "", "us", "us", "us", "us", "us", "per second", "cpu %", "cpu %"
        ),
        Tool::Blast => format!(
            "{:>9} {:>9} {:>9} {:>11} {:>9} {:>7} {:>6} {:>6}",
            "", "", "", "", "us", "packets", "cpu %", "cpu %"
        ),
    };
    writeln!(output, "{}", output.style.paint(Paint::DIM, units))
}

/// Prints one row of the table.
pub(crate) fn print_row(output: &mut Output, tool: Tool, row: &Row) -> std::io::Result<()> {
    let (client, server) = (row.client.cpu.percent(), row.server.cpu.percent());
    match tool {
        Tool::Ping => {
            let [least, median, p99, max] = row.percentiles_us.unwrap_or_default();
            writeln!(
                output,
                "{:>9} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>11.0} {:>6.0} {:>6.0}",
                row.size,
                row.one_way_us,
                least,
                median,
                p99,
                max,
                row.messages_per_s / 2.0,
                client,
                server
            )
        }
        Tool::Blast => writeln!(
            output,
            "{:>9} {:>9} {:>9.2} {:>11.0} {:>9.2} {:>7} {:>6.0} {:>6.0}",
            row.size,
            row.iterations,
            row.gigabits_per_s,
            row.messages_per_s,
            row.one_way_us,
            row.client.retransmitted_packets + row.server.retransmitted_packets,
            client,
            server
        ),
    }
}
