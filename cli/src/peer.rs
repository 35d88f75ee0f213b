//! `roce peer`: plays one end of a connection, packet by packet, against a NIC under test.

mod recording;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use roce_device::{Device, OpenOptions};
use roce_packet::{Psn, Qpn};
use roce_peer::bed::{
    AGENT, Agent, EngineNic, OwnEnd, Parameters, RDMA_CM_TARGET, Stated, connect_perftest, run_device,
    run_virtual,
};
use roce_peer::output::{failure_text, junit, summary, write_capture};
use roce_peer::run::{Outcome, Refusal, Report, Settings};
use roce_peer::script::{Files, Script};
use roce_peer::shipped::{SHIPPED, shipped};

use super::connect::resolve;
use super::errors::with_causes;
use super::terminal::{Output, Paint};

/// The TCP port of the perftest programs.
const PERFTEST_PORT: u16 = 18_515;
/// The TCP port of the agent, unless --control says otherwise.
const AGENT_PORT: u16 = 18_522;
/// The port of rping in `RDMA_PS_TCP`.
const RDMA_CM_PORT: u16 = 7_174;
/// Bytes of the memory of --nic-va, unless --nic-memory says otherwise.
const NIC_MEMORY: usize = 4096;

/// Play one end of a connection, packet by packet, against a NIC under test
///
/// A script sends any packet, right or wrong, and says which answers must arrive, and when. Each SCRIPT is a
/// file, or the name of a script of this program (--list); without SCRIPT, all of those run.
/// docs/how-to/peer.md describes the language.
///
/// Without --device, the NIC under test is the engine of this program in virtual time. With --device, it is
/// another NIC: one that an agent on its machine controls (--control), the server of a perftest program
/// (--perftest), a listener of rdma_cm (--rdma-cm), or a queue pair that you have connected (--nic and
/// --nic-qp).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Script: a file, or the name of a script of this program
    #[arg(value_name = "SCRIPT")]
    scripts: Vec<String>,

    /// List the scripts of this program with the rules that they check
    #[arg(long)]
    list: bool,

    /// Print a script that repeats a connection of this capture file, and run nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scripts", "list", "device"])]
    from: Option<PathBuf>,

    /// With --from: number of the connection in the output of `roce analyze`
    #[arg(long, value_name = "N", requires = "from", default_value_t = 1)]
    connection: usize,

    /// With --from: address of the end that the script plays; without it, the end that sent the first request
    #[arg(long, value_name = "ADDRESS", requires = "from")]
    play: Option<IpAddr>,

    /// Print the source of the agent, in C, for the machine of the NIC under test
    #[arg(long, conflicts_with_all = ["scripts", "list", "device"])]
    agent: bool,

    /// Print the source of a listener of rdma_cm for --rdma-cm, in C, for the machine of the NIC under test
    #[arg(long, conflicts_with_all = ["scripts", "list", "device", "agent"])]
    rdma_cm_target: bool,

    /// Device towards the NIC under test, such as udp:192.0.2.1
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Let the agent at this address, which is also that of the NIC unless --nic names another one, do what
    /// scripts ask of the NIC
    #[arg(long, value_name = "NIC[:PORT]", requires = "device", conflicts_with = "perftest")]
    control: Option<String>,

    /// Connect to a server of perftest, such as ib_write_bw or `roce perf write bw`, which runs at the NIC
    #[arg(long, value_name = "SERVER[:PORT]", requires = "device", conflicts_with = "nic")]
    perftest: Option<String>,

    /// Connect by rdma_cm to a program that listens on this port of RDMA_PS_TCP at the NIC, such as rping -s
    #[arg(long, value_name = "NIC[:PORT]", requires = "device", conflicts_with_all = ["perftest", "nic", "control"])]
    rdma_cm: Option<String>,

    /// Address of the NIC, whose queue pair you connect yourself or the agent connects
    #[arg(long, value_name = "ADDRESS", requires = "device")]
    nic: Option<IpAddr>,

    /// Number of the queue pair of the NIC
    #[arg(long, value_name = "QPN", requires = "nic", conflicts_with = "control", value_parser = number_of_24_bits)]
    nic_qp: Option<u32>,

    /// First PSN that the NIC sends, if it is not the `peer_psn` of the script
    #[arg(long, value_name = "PSN", requires = "nic", value_parser = number_of_24_bits)]
    nic_psn: Option<u32>,

    /// First address of registered memory of the NIC
    #[arg(long, value_name = "ADDRESS", requires = "nic", requires = "nic_rkey", value_parser = number)]
    nic_va: Option<u64>,

    /// R_Key of registered memory of the NIC
    #[arg(long, value_name = "KEY", requires = "nic_va", value_parser = number_of_32_bits)]
    nic_rkey: Option<u32>,

    /// Bytes of registered memory of the NIC
    #[arg(long, value_name = "BYTES", requires = "nic_va", default_value_t = NIC_MEMORY)]
    nic_memory: usize,

    /// With --device: time that an answer may take longer than the script says, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    slack: u64,

    /// Write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Write every packet to this file (pcapng), with the line of the script as its comment
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Print only scripts that fail
    #[arg(long, short)]
    quiet: bool,
}

/// Reads a number, decimal or with `0x`.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| "expected a number such as 17 or 0x11".to_owned())
}

fn number_of_24_bits(text: &str) -> Result<u32, String> {
    let number = u32::try_from(number(text)?).ok().filter(|number| *number <= Psn::MASK);
    number.ok_or_else(|| "expected a number of 24 bits, at most 0xffffff".to_owned())
}

fn number_of_32_bits(text: &str) -> Result<u32, String> {
    u32::try_from(number(text)?).map_err(|_| "expected a number of 32 bits, at most 0xffffffff".to_owned())
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.from {
        recording::print(file, args.connection, args.play, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.agent || args.rdma_cm_target {
        write!(output, "{}", if args.agent { AGENT } else { RDMA_CM_TARGET })?;
        return Ok(ExitCode::SUCCESS);
    }
    let scripts = load(&args.scripts)?;
    if args.list {
        list(&scripts, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut device = match &args.device {
        Some(spec) => Some(roce_device::open(spec, OpenOptions::default())?),
        None => None,
    };
    let is_stated = args.nic.is_some() && args.nic_qp.is_some();
    let has_nic = args.control.is_some() || args.perftest.is_some() || args.rdma_cm.is_some() || is_stated;
    if device.is_some() && !has_nic {
        bail!(
            "--device needs the NIC under test: give --control NIC, --perftest SERVER, --rdma-cm NIC, or --nic \
             ADDRESS and --nic-qp QPN; without --device, scripts run against the engine of this program"
        );
    }
    let mut agent = match &args.control {
        Some(agent) => Some(Agent::connect(resolve(agent, AGENT_PORT)?, args.nic)?),
        None => None,
    };
    let mut reports = Vec::with_capacity(scripts.len());
    for script in &scripts {
        let report = match &mut device {
            None => run_virtual(script, &mut EngineNic::new(1)),
            Some(device) => match &mut agent {
                Some(agent) => run_device(script, device.as_mut(), args.slack_ns(), agent)?,
                None => args.on_device(script, device.as_mut())?,
            },
        };
        print(args, &report, output)?;
        reports.push(report);
    }
    if let Some(path) = &args.junit {
        let written = std::fs::write(path, junit(&reports));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.pcap {
        write_capture(path, &reports)?;
    }
    let failed = end(&reports, output)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Loads the scripts with these names; all of this program if there are none.
fn load(names: &[String]) -> anyhow::Result<Vec<Script>> {
    let all = || SHIPPED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let names: Vec<String> = if names.is_empty() { all() } else { names.to_vec() };
    let load = |name: &String| {
        if Path::new(name).is_file() {
            return Ok(Script::load(name, &Files::Disk)?);
        }
        match shipped(name) {
            Some(script) => Ok(script?),
            None => {
                bail!("{name} is neither a file nor a script of this program; `roce peer --list` lists those")
            }
        }
    };
    names.iter().map(load).collect()
}

fn list(scripts: &[Script], output: &mut Output) -> io::Result<()> {
    for script in scripts {
        let name = script.name.strip_suffix(".roce").unwrap_or(&script.name);
        let rules = script.rules().collect::<Vec<_>>().join(", ");
        writeln!(output, "{name:<28} {}\n{:<28} {rules}", script.title, "")?;
    }
    Ok(())
}

fn print(args: &Args, report: &Report, output: &mut Output) -> io::Result<()> {
    let paint = match report.outcome {
        Outcome::Passed if args.quiet => return Ok(()),
        Outcome::Passed => Paint::GREEN,
        Outcome::Failed(_) => Paint::RED,
        Outcome::Inapplicable(_) => Paint::YELLOW,
    };
    let line = summary(report);
    // The result is the first word.
    let (result, rest) = line.split_once(' ').unwrap_or((&line, ""));
    writeln!(output, "{} {rest}", output.style.paint(paint, result))?;
    if let Some(text) = failure_text(report) {
        write!(output, "{text}")?;
    }
    output.flush()
}

/// Prints the counts, and returns whether the run has failed.
fn end(reports: &[Report], output: &mut Output) -> io::Result<bool> {
    let count =
        |wanted: fn(&Outcome) -> bool| reports.iter().filter(|report| wanted(&report.outcome)).count();
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let others = count(|outcome| matches!(outcome, Outcome::Inapplicable(_)));
    let scripts = if reports.len() == 1 { "script" } else { "scripts" };
    write!(output, "{} {scripts}: {passed} passed, {failed} failed", reports.len())?;
    writeln!(output, "{}", if others > 0 { format!(", {others} not applicable") } else { String::new() })?;
    Ok(failed > 0 || passed == 0)
}

impl Args {
    const fn slack_ns(&self) -> u64 {
        self.slack.saturating_mul(1_000_000)
    }

    /// Runs a script against a NIC behind a device that no agent controls.
    fn on_device(&self, script: &Script, device: &mut dyn Device) -> anyhow::Result<Report> {
        if let Some(listener) = &self.rdma_cm {
            let mut listener = Stated::by_rdma_cm(resolve(listener, RDMA_CM_PORT)?);
            return Ok(run_device(script, device, self.slack_ns(), &mut listener)?);
        }
        let server = self.perftest.as_deref().map(|server| resolve(server, PERFTEST_PORT)).transpose()?;
        // The server ends with its connection.
        let mut connection = None;
        let mut connect = |settings: &Settings, own: OwnEnd| match server {
            Some(server) => {
                let connected = connect_perftest(server, own, settings);
                let failed = |error| Refusal::Failed(with_causes(&anyhow::Error::from(error)));
                let (stream, parameters) = connected.map_err(failed)?;
                connection = Some(stream);
                Ok(parameters)
            }
            None => self.stated(settings, own),
        };
        Ok(run_device(script, device, self.slack_ns(), &mut Stated::new(&mut connect))?)
    }

    /// Returns the end that the user states, and tells the user how its queue pair must be connected.
    fn stated(&self, settings: &Settings, own: OwnEnd) -> Result<Parameters, Refusal> {
        let (Some(address), Some(qpn)) = (self.nic, self.nic_qp) else {
            return Err(Refusal::Failed("--nic and --nic-qp are missing".to_owned()));
        };
        let psn = self.nic_psn.unwrap_or(settings.nic_psn);
        // A closed standard error must not stop the run.
        let _ = writeln!(
            io::stderr(),
            "the queue pair of the NIC: {:?}, path MTU {}, destination {} queue pair {}, expects PSN {}, sends from PSN {psn}",
            settings.qp_type,
            settings.mtu.bytes(),
            own.address,
            own.qpn,
            settings.psn,
        );
        let memory = self.nic_va.zip(self.nic_rkey).map(|(va, rkey)| (va, rkey, self.nic_memory));
        Ok(Parameters { address, qpn: Qpn::new(qpn), psn: Some(psn), memory })
    }
}
