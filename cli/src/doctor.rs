//! `roce doctor`: diagnoses RoCE between two machines.

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

/// Find out why two machines cannot communicate over RoCE, and suggest remedies
///
/// Start `roce doctor` on one side, which then waits, and `roce doctor PEER` on the other side. Each side sends packets
/// of every kind, and the doctor compares what the other side receives: ICRC, losses, DSCP, ECN, ports, every path MTU,
/// and messages in both directions. If the peer does not run `roce doctor`, the doctor sends a connection request of
/// rdma_cm, which every RoCE device with rdma_cm answers. The exit status is 0 if there is no problem.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address or name of the other side; if omitted, this side waits for it
    peer: Option<String>,

    /// Index of the GID to send from, in the table that `roce devices -v` shows
    #[arg(long, short = 'x', value_name = "INDEX")]
    gid_index: Option<usize>,

    /// Port of rdma_cm for the connection request to a peer without `roce doctor`
    #[arg(long, short, value_name = "PORT", default_value_t = SERVICE_PORT)]
    port: u16,

    /// TCP port on which `roce doctor` waits
    #[arg(long, value_name = "PORT", default_value_t = EXCHANGE_PORT)]
    exchange_port: u16,

    /// When waiting: exit after one client
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
        doctor.address().context("the device does not have this GID; `roce devices -v` shows GID tables")?;
    let port = args.exchange_port;
    let listener = TcpListening::bind_at(doctor.context(), address, port).with_context(|| {
        format!(
            "cannot listen on {address} port {port}; if another server uses the port, choose another with --exchange-port"
        )
    })?;
    if !args.json {
        writeln!(
            output,
            "waiting on {address}, TCP port {port}; on the other side, run: roce doctor {address}"
        )?;
        output.flush()?;
    }
    loop {
        let exchange = Exchange::accept_on(&listener)?;
        let peer = exchange.peer().to_owned();
        let outcome = doctor.serve(exchange);
        match outcome {
            Ok(_) if args.json => {}
            Ok(0) => writeln!(output, "{peer}: healthy")?,
            Ok(1) => writeln!(output, "{peer}: one problem, described on the other side")?,
            Ok(problems) => writeln!(output, "{peer}: {problems} problems, described on the other side")?,
            Err(error) if args.once => return Err(error.into()),
            Err(error) => super::print_error(&format!("{peer}: {error}")),
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
            // The command reports a closed pipe when it ends.
            let _ = print(output, finding).and_then(|()| output.flush());
        }
    });
    if args.json {
        print_json(output, &spec, &peer, &diagnosis)?;
    } else {
        let paint = if diagnosis.is_healthy() { Paint::GREEN } else { Paint::RED };
        let word = output
            .style
            .paint(paint, if diagnosis.is_healthy() { "healthy" } else { "unhealthy" })
            .to_string();
        let verdict = wrapped(&diagnosis.verdict(), VERDICT_INDENT, width(output));
        writeln!(output, "\n{word}: {verdict}")?;
    }
    Ok(if diagnosis.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Column in which the text of a finding starts.
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

/// Wraps a text; indents all lines but the first.
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
    fn long_texts_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 2, 12), "one two\n  three");
        assert_eq!(wrapped("averyveryverylongword x", 2, 12), "averyveryverylongword\n  x");
        assert_eq!(wrapped("", 2, 12), "");
    }
}
