//! Output in the layout of perftest.

use std::io::{self, Write};

use crate::terminal::Output;
use roce::verbs::Context;
use roce_measure::Role;
use roce_measure::perf::exchange::{Keys, Stream};
use roce_measure::perf::{AtomicOp, Bandwidth, Latency, Length, Plan, Row, Session, Test, Verb};

/// Width of a table.
const WIDTH: usize = 87;

pub(super) fn line(output: &mut Output) -> io::Result<()> {
    writeln!(output, "{}", "-".repeat(WIDTH))
}

fn pair(output: &mut Output, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    writeln!(output, " {name:<16}: {value}")
}

/// Prints the parameters, the queue pairs and the column titles.
pub(super) fn heading<S: Stream>(
    output: &mut Output,
    plan: &Plan,
    context: &Context,
    session: &Session<S>,
) -> io::Result<()> {
    let role = session.role();
    line(output)?;
    writeln!(output, "{:20}{}", "", title(plan))?;
    let device = device(context);
    writeln!(output, " {:<16}: {:<15} {:<15}: {device}", "Dual-port", "OFF", "Device")?;
    writeln!(output, " {:<16}: {:<15} {:<15}: IB", "Number of qps", plan.num_qp, "Transport type")?;
    let connection = format!("{:?}", plan.connection).to_uppercase();
    writeln!(output, " {:<16}: {connection:<15} {:<15}: OFF", "Connection type", "Using SRQ")?;
    let is_sender = role == Role::Client || plan.bidirectional;
    if is_sender {
        pair(output, "TX depth", plan.tx_depth)?;
    }
    if plan.verb == Verb::Send && (role == Role::Server || plan.bidirectional) {
        pair(output, "RX depth", plan.rx_depth)?;
    }
    if let Some(list) = plan.post_list {
        pair(output, "Post List", list)?;
    }
    if plan.test == Test::Bandwidth {
        pair(output, "CQ Moderation", plan.cq_mod)?;
    }
    pair(output, "Mtu", format_args!("{}[B]", session.agreement().mtu.bytes()))?;
    pair(output, "Link type", "Ethernet")?;
    pair(output, "GID index", plan.gid_index.unwrap_or(0))?;
    if matches!(plan.verb, Verb::Read | Verb::Atomic) {
        pair(output, "Outstand reads", plan.out_reads)?;
    } else {
        pair(output, "Max inline data", format_args!("{}[B]", plan.inline))?;
    }
    pair(output, "rdma_cm QPs", if plan.rdma_cm { "ON" } else { "OFF" })?;
    let over_rdma_cm = plan.rdma_cm || plan.comm_rdma_cm;
    pair(output, "Data ex. method", if over_rdma_cm { "rdma_cm" } else { "Ethernet" })?;
    line(output)?;
    let keys: Vec<(Keys, Keys)> = session.keys_of_all().collect();
    for (local, _) in &keys {
        address(output, plan, " local address", local)?;
    }
    for (_, remote) in &keys {
        address(output, plan, " remote address", remote)?;
    }
    line(output)?;
    columns(output, plan, role)
}

/// Returns the name of the device.
pub(super) fn device(context: &Context) -> String {
    let kind = context.query().capabilities.kind;
    context.address().map_or_else(String::new, |address| format!("{kind}:{address}"))
}

pub(super) fn title(plan: &Plan) -> String {
    let verb = match (plan.verb, plan.atomic) {
        (Verb::Write, _) => "RDMA_Write",
        (Verb::Send, _) => "Send",
        (Verb::Read, _) => "RDMA_Read",
        (Verb::Atomic, AtomicOp::FetchAdd) => "Atomic FETCH_AND_ADD",
        (Verb::Atomic, AtomicOp::CompareSwap) => "Atomic CMP_AND_SWAP",
    };
    let both = if plan.bidirectional { "Bidirectional " } else { "" };
    let test = if plan.test == Test::Bandwidth { "BW" } else { "Latency" };
    format!("{verb} {both}{test} Test")
}

fn address(output: &mut Output, plan: &Plan, side: &str, keys: &Keys) -> io::Result<()> {
    write!(output, "{side}: LID 0000 QPN {:#06x} PSN {:#x}", keys.qpn.get(), keys.psn.get())?;
    if matches!(plan.verb, Verb::Read | Verb::Atomic) {
        write!(output, " OUT {:#04x}", keys.out_reads)?;
    }
    if plan.verb != Verb::Send {
        write!(output, " RKey {:#08x} VAddr {:#018x}", keys.rkey, keys.vaddr)?;
    }
    writeln!(output)?;
    let gid: Vec<String> = keys.gid.0.iter().map(|byte| format!("{byte:02}")).collect();
    writeln!(output, " GID: {}", gid.join(":"))
}

fn columns(output: &mut Output, plan: &Plan, role: Role) -> io::Result<()> {
    let unit = if plan.gigabits { "Gb/sec" } else { "MB/sec" };
    match (plan.test, plan.length) {
        (Test::Bandwidth, _) => writeln!(
            output,
            " {:<10} {:<13} {:<18} {:<20} MsgRate[Mpps]",
            "#bytes",
            "#iterations",
            format!("BW peak[{unit}]"),
            format!("BW average[{unit}]")
        ),
        // This side does not measure.
        (Test::Latency, _) if role == Role::Server && matches!(plan.verb, Verb::Read | Verb::Atomic) => {
            Ok(())
        }
        (Test::Latency, Length::Iterations(_)) => writeln!(
            output,
            " {:<7} {:<11} {:<12} {:<12} {:<15} {:<12} {:<14} {:<20} 99.9% percentile[usec]",
            "#bytes",
            "#iterations",
            "t_min[usec]",
            "t_max[usec]",
            "t_typical[usec]",
            "t_avg[usec]",
            "t_stdev[usec]",
            "99% percentile[usec]"
        ),
        (Test::Latency, Length::Seconds { .. } | Length::Endless { .. }) => {
            writeln!(output, " {:<10} {:<14} {:<14} tps average", "#bytes", "#iterations", "t_avg[usec]")
        }
    }
}

/// The figure that `--output` prints alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Figure {
    /// Average bandwidth.
    Bandwidth,
    /// Million messages per second.
    MessageRate,
    /// Average latency in microseconds.
    Latency,
}

/// Prints one figure of a row, if the row has it.
pub(super) fn figure(output: &mut Output, plan: &Plan, row: &Row, figure: Figure) -> io::Result<()> {
    let average = row.bandwidth.map(|bandwidth| bandwidth.average);
    let value = match figure {
        Figure::Bandwidth => average.map(|average| average.bandwidth(plan.gigabits)),
        Figure::MessageRate => average.map(|average| average.messages_per_s / 1e6),
        Figure::Latency => row.latency.as_ref().map(|latency| latency.average_us),
    };
    value.map_or(Ok(()), |value| writeln!(output, "{value:.6}"))
}

/// Prints one row; `each` says whether to print every sample, in message order and in ascending order.
pub(super) fn row(output: &mut Output, plan: &Plan, row: &Row, each: (bool, bool)) -> io::Result<()> {
    if let Some(bandwidth) = &row.bandwidth {
        bandwidth_row(output, plan, row.size, bandwidth)?;
    }
    if let Some(latency) = &row.latency {
        if each.0 {
            samples(output, &latency.samples_us)?;
        }
        if each.1 {
            let mut sorted = latency.samples_us.clone();
            sorted.sort_by(f64::total_cmp);
            samples(output, &sorted)?;
        }
        latency_row(output, row.size, latency)?;
    }
    Ok(())
}

fn samples(output: &mut Output, samples: &[f64]) -> io::Result<()> {
    writeln!(output, "#, usec")?;
    for (index, sample) in samples.iter().enumerate() {
        writeln!(output, "{}, {sample:.3}", index + 1)?;
    }
    Ok(())
}

fn bandwidth_row(output: &mut Output, plan: &Plan, size: usize, row: &Bandwidth) -> io::Result<()> {
    let average = row.average.bandwidth(plan.gigabits);
    let peak = row.peak.map_or(0.0, |peak| peak.bandwidth(plan.gigabits));
    let digits = if plan.gigabits && average < 0.1 { 6 } else { 2 };
    writeln!(
        output,
        " {size:<10} {:<13} {peak:<18.digits$} {average:<20.digits$} {:.6}",
        row.messages,
        row.average.messages_per_s / 1e6
    )
}

fn latency_row(output: &mut Output, size: usize, row: &Latency) -> io::Result<()> {
    let Some(found) = &row.distribution else {
        return writeln!(
            output,
            " {size:<10} {:<14} {:<14.2} {:.2}",
            row.messages, row.average_us, row.per_s
        );
    };
    writeln!(
        output,
        " {size:<7} {:<11} {:<12.2} {:<12.2} {:<15.2} {:<12.2} {:<14.2} {:<20.2} {:.2}",
        row.messages,
        found.least_us,
        found.most_us,
        found.typical_us,
        row.average_us,
        found.deviation_us,
        found.percentile_99_us,
        found.percentile_99_9_us
    )
}
