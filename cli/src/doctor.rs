//! `roce doctor`: what is wrong between two machines, and what to change.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use super::common::{DeviceArgs, EXCHANGE_PORT, device_on, device_towards, resolve};
use super::terminal::{Output, Paint, Style};
use roce::tcp::TcpListening;
use roce_tools::doctor::{Diagnosis, Doctor, Finding, Outcome, Peer, SERVICE_PORT};
use roce_tools::exchange::Exchange;

/// Find out why two machines do not talk RoCE, and say what to change
///
/// Start `roce doctor` on one side: it waits. Start `roce doctor PEER` on the other. The two send each other packets of
/// every kind and compare what arrives: ICRC, losses, DSCP, ECN, ports, every path MTU, messages there and back.
/// Where nothing of roce waits, a request of rdma_cm is sent, to which every RoCE device with rdma_cm answers.
/// The exit code is 0 if nothing is wrong.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address or name of the other side; without it this side waits to be examined
    peer: Option<String>,

    /// GID to send from, by its index in the table that `roce devices -v` shows
    #[arg(long, short = 'x', value_name = "INDEX")]
    gid_index: Option<usize>,

    /// Port of rdma_cm to ask for where no `roce doctor` waits
    #[arg(long, short, value_name = "PORT", default_value_t = SERVICE_PORT)]
    port: u16,

    /// TCP port at which `roce doctor` waits
    #[arg(long, value_name = "PORT", default_value_t = EXCHANGE_PORT)]
    exchange_port: u16,

    /// While waiting: end after one client instead of waiting for the next
    #[arg(long)]
    once: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    match &args.peer {
        None => serve(args, output),
        Some(peer) => examine(args, peer, output),
    }
}

fn open(args: &Args, default: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<(Doctor, String)> {
    let (device, spec) = args.device.open_device(default)?;
    Ok((Doctor::new(args.device.builder(), device, args.gid_index)?, spec))
}

fn serve(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let (doctor, _) = open(args, || Ok(device_on(IpAddr::V4(Ipv4Addr::LOCALHOST))))?;
    let address =
        doctor.address().context("the device has no such GID; `roce devices -v` shows GID tables")?;
    let port = args.exchange_port;
    let listener = TcpListening::bind_at(doctor.context(), address, port).with_context(|| {
        format!(
            "listening on {address} port {port}; is another server running? --exchange-port chooses another"
        )
    })?;
    if !args.json {
        writeln!(output, "waiting on {address}, TCP port {port}; on the other side: roce doctor {address}")?;
        output.flush()?;
    }
    loop {
        let exchange = Exchange::accept_on(&listener)?;
        let peer = exchange.peer().to_owned();
        let outcome = doctor.serve(exchange);
        match outcome {
            Ok(_) if args.json => {}
            Ok(0) => writeln!(output, "{peer}: healthy")?,
            Ok(1) => writeln!(output, "{peer}: one problem, which the other side names")?,
            Ok(problems) => writeln!(output, "{peer}: {problems} problems, which the other side names")?,
            Err(error) if args.once => return Err(error.into()),
            Err(error) => super::complain(&format!("{peer}: {error}")),
        }
        output.flush()?;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn examine(args: &Args, peer: &str, output: &mut Output) -> anyhow::Result<ExitCode> {
    let address = resolve(peer, args.exchange_port)?;
    let (doctor, spec) = open(args, || device_towards(address))?;
    let peer = Peer { address: address.ip(), exchange_port: address.port(), service_port: args.port };
    if !args.json {
        let title = format!("{spec} to {}", peer.address);
        writeln!(output, "{}\n", output.style.paint(Paint::BOLD, title))?;
        output.flush()?;
    }
    let diagnosis = doctor.examine(&peer, &mut |finding| {
        if !args.json {
            // A closed pipe is noticed when the command ends.
            let _ = print(output, finding).and_then(|()| output.flush());
        }
    });
    if args.json {
        print_json(output, &spec, &peer, &diagnosis)?;
    } else {
        let paint = if diagnosis.is_healthy() { Paint::GREEN } else { Paint::RED };
        let word =
            output.style.paint(paint, if diagnosis.is_healthy() { "healthy" } else { "ill" }).to_string();
        let verdict = wrapped(&diagnosis.verdict(), VERDICT_INDENT, width(output));
        writeln!(output, "\n{word}: {verdict}")?;
    }
    Ok(if diagnosis.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where the text of a finding begins.
const INDENT: usize = 26;
const VERDICT_INDENT: usize = 9;

fn width(output: &Output) -> usize {
    output.terminal_width.unwrap_or(110).clamp(60, 140)
}

fn mark(style: Style, outcome: Outcome) -> String {
    let (word, paint) = match outcome {
        Outcome::Ok => ("ok", Paint::GREEN),
        Outcome::Problem => ("problem", Paint::RED),
        Outcome::NotTested => ("not tested", Paint::DIM),
    };
    style.paint(paint, format!("{word:<10}")).to_string()
}

fn print(output: &mut Output, finding: &Finding) -> std::io::Result<()> {
    let (mark, width) = (mark(output.style, finding.outcome), width(output));
    writeln!(output, "{mark} {:<14} {}", finding.step.name(), wrapped(&finding.text, INDENT, width))?;
    if let Some(remedy) = &finding.remedy {
        let remedy = wrapped(&format!("-> {remedy}"), INDENT + 3, width);
        let remedy =
            if finding.is_problem() { remedy } else { output.style.paint(Paint::DIM, remedy).to_string() };
        writeln!(output, "{:INDENT$}{remedy}", "")?;
    }
    Ok(())
}

/// The text in lines, of which all but the first are indented.
fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut lines = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let len = word.chars().count();
        if column > indent && column + 1 + len > width {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += len;
    }
    lines
}

fn print_json(output: &mut Output, spec: &str, peer: &Peer, diagnosis: &Diagnosis) -> anyhow::Result<()> {
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"), "device": spec, "peer": peer.address,
        "healthy": diagnosis.is_healthy(), "problems": diagnosis.problems(), "verdict": diagnosis.verdict(),
        "findings": diagnosis.findings,
    });
    serde_json::to_writer_pretty(&mut *output, &document)?;
    writeln!(output)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 2, 12), "one two\n  three");
        assert_eq!(wrapped("averyveryverylongword x", 2, 12), "averyveryverylongword\n  x");
        assert_eq!(wrapped("", 2, 12), "");
    }
}
