//! `roce doctor`: diagnoses RoCE between two machines.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use super::connect::{EXCHANGE_PORT, resolve};
use super::default_device::{called_device, device_towards};
use super::device_options::DeviceArgs;
use super::errors::{print_error, with_causes};
use super::listen::{Announcement, next_client, option};
use super::terminal::{Output, Paint, Style, wrapped};
use roce_doctor::{Diagnosis, Doctor, Finding, Outcome, Peer, SERVICE_PORT};
use roce_exchange::{ClientQueue, Listening};

/// Find out why two machines cannot communicate over RoCE, and suggest remedies
///
/// Start `roce doctor` on one side, which then waits, and `roce doctor PEER` on the other side. Each side
/// sends packets of every kind, and the doctor compares what the other side receives: ICRC, losses, DSCP,
/// ECN, ports, every path MTU, and messages in both directions. If the peer does not run `roce doctor`, the
/// doctor sends a connection request of rdma_cm, which every RoCE device with rdma_cm answers. The exit
/// status is 0 if there is no problem.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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

    /// When waiting: also send packets to this address if a client that connects from another address
    /// requests it
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    allow_peer: Vec<IpAddr>,

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

/// The doctors of a server: one on the device that the user chose, or one on the address that was called
/// last.
struct Doctors<'a> {
    args: &'a Args,
    chosen: Option<Doctor>,
    called: Option<(SocketAddr, Doctor)>,
}

impl Doctors<'_> {
    /// Returns the doctor for a client that called this address.
    fn on(&mut self, called: Option<SocketAddr>) -> anyhow::Result<&Doctor> {
        if let Some(chosen) = &self.chosen {
            return Ok(chosen);
        }
        let called = called.context(
            "the TCP of the device does not report the address that the client called; choose the address with \
             --device",
        )?;
        if self.called.as_ref().is_none_or(|(known, _)| known.ip() != called.ip()) {
            // The old doctor may occupy the port that the new one needs.
            self.called = None;
            let (doctor, _) = open(self.args, || Ok(called_device(Some(called))))?;
            self.called = Some((called, doctor));
        }
        self.called.as_ref().map(|(_, doctor)| doctor).context("the device was just opened")
    }
}

/// Opens the device that the user chose, if any, and listens.
fn listen(args: &Args) -> anyhow::Result<(Doctors<'_>, Listening)> {
    let port = args.exchange_port;
    let taken = |address: String| {
        format!(
            "cannot listen on {address} port {port}; if another server uses the port, choose another with --exchange-port"
        )
    };
    if args.device.device.is_none() {
        let listening = Listening::everywhere(port).with_context(|| taken("TCP".to_owned()))?;
        return Ok((Doctors { args, chosen: None, called: None }, listening));
    }
    let (doctor, _) = open(args, || Ok(String::new()))?;
    let address =
        doctor.address().context("the device does not have this GID; `roce devices -v` shows GID tables")?;
    let listening =
        Listening::of_device(doctor.context(), port).with_context(|| taken(address.to_string()))?;
    Ok((Doctors { args, chosen: Some(doctor), called: None }, listening))
}

fn serve(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let (mut doctors, listening) = listen(args)?;
    if !args.json {
        let announcement = Announcement {
            command: "roce doctor".to_owned(),
            options: option("--exchange-port", listening.port(), EXCHANGE_PORT),
            other_program: None,
        };
        announcement.print(output, doctors.chosen.as_ref().and_then(Doctor::address), &listening)?;
    }
    let clients = ClientQueue::new(listening)?;
    loop {
        let (exchange, doctor) =
            next_client(&clients, &args.allow_peer, |exchange| doctors.on(exchange.called()))?;
        let peer = exchange.peer().to_owned();
        let outcome = doctor.and_then(|doctor| Ok(doctor.serve(exchange)?));
        match outcome {
            Ok(_) if args.json => {}
            Ok(0) => writeln!(output, "{peer}: healthy")?,
            Ok(1) => writeln!(output, "{peer}: one problem, described on the other side")?,
            Ok(problems) => writeln!(output, "{peer}: {problems} problems, described on the other side")?,
            Err(error) if args.once => return Err(error),
            Err(error) => {
                doctors.called = None;
                print_error(&format!("{peer}: {}", with_causes(&error)));
            }
        }
        output.flush()?;
        args.device.flush_captures();
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn examine(args: &Args, peer: &str, output: &mut Output) -> anyhow::Result<ExitCode> {
    let address = resolve(peer, args.exchange_port)?;
    let (doctor, spec) = open(args, || device_towards(address))?;
    let zone = match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let (exchange_port, service_port) = (address.port(), args.port);
    let peer = Peer { address: address.ip(), zone, exchange_port, service_port };
    if !args.json {
        let title = format!("{spec} to {}", peer.address);
        writeln!(output, "{}\n", output.style.paint(Paint::BOLD, title))?;
        output.flush()?;
    }
    let diagnosis = doctor.examine(&peer, &mut |finding| {
        if !args.json {
            // The command reports a closed pipe at its end.
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

fn print_json(output: &mut Output, spec: &str, peer: &Peer, diagnosis: &Diagnosis) -> anyhow::Result<()> {
    let document = json!({
        "device_spec": spec, "peer": peer.address,
        "healthy": diagnosis.is_healthy(), "problems": diagnosis.problems(), "verdict": diagnosis.verdict(),
        "findings": diagnosis.findings,
    });
    super::document::print(output, "doctor", &document)?;
    Ok(())
}
