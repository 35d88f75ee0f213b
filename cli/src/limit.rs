//! `roce limit`: measures a device without the RoCE transport.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::Context as _;

use super::connect::{connect_when_listening, resolve};
use super::default_device::{called_device, device_towards};
use super::errors::with_causes;
use super::listen::{Announcement, next_client, option};
use super::terminal::{Output, Paint};
use roce_device::udp::UdpSpec;
use roce_device::{Device, OpenOptions};
use roce_exchange::{ClientQueue, Exchange, ExchangeError, Listening};
use roce_measure::limit::{self, Latency, Outcome, Plan};

/// The TCP port of the exchange before the measurement.
const PORT: u16 = 18_521;
/// Default payload sizes; sizes that do not fit the link MTU are left out.
const SIZES: [usize; 3] = [64, 1024, 4096];

/// Measure the raw speed of a device: throughput and latency of frames without any protocol
///
/// Start `roce limit --device DEVICE` on one side and `roce limit SERVER --device DEVICE` on the other. The
/// frames look like WRITEs, but are neither acknowledged nor checked. The result is an upper bound for `roce
/// blast` and `roce ping` on the same device; measure both within the same minute to compare them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address or name of the server; if omitted, this side is the server
    server: Option<String>,

    /// Device to measure, such as udp:192.0.2.1; `roce devices` lists them
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Payload bytes per frame; may be given several times [default: 64, 1024 and 4096]
    #[arg(long, short, value_name = "BYTES")]
    size: Vec<usize>,

    /// Number of frames of each size
    #[arg(long, short = 'n', value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    frames: u64,

    /// Number of round trips of one frame; 0 skips the latency test
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    round_trips: u64,

    /// Largest number of frames in flight
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(32..=65536))]
    window: u64,

    /// Also measure kernel TCP between the same addresses
    #[arg(long)]
    tcp: bool,

    /// Server: address of the TCP exchange before the measurement [default: the addresses of the device;
    /// every address without --device]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,

    /// TCP port of the exchange
    #[arg(long, short, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// Server: also send frames to this address if a client that connects from another address requests it
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    allow_peer: Vec<IpAddr>,

    /// Server: exit after one client
    #[arg(long)]
    once: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    match &args.server {
        None => serve(args, output),
        Some(server) => client(args, server, output),
    }
}

fn open(args: &Args, default: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<Box<dyn Device>> {
    let spec = match &args.device {
        Some(spec) => spec.clone(),
        None => default()?,
    };
    Ok(roce_device::open(&alone(spec), OpenOptions::default())?)
}

/// Disables sharing of a device. The frames do not belong to a queue pair, so on a shared address they could
/// arrive at no device or at another one.
fn alone(spec: String) -> String {
    match spec.parse::<UdpSpec>() {
        Ok(udp) if spec.starts_with("udp:") => UdpSpec { share: false, ..udp }.to_string(),
        _ => spec,
    }
}

/// The device of a server: the one that the user chose, or one on the address that was called last.
struct Devices<'a> {
    args: &'a Args,
    chosen: Option<Box<dyn Device>>,
    called: Option<Box<dyn Device>>,
}

impl Devices<'_> {
    fn on(&mut self, called: Option<SocketAddr>) -> anyhow::Result<&mut dyn Device> {
        if let Some(chosen) = &mut self.chosen {
            return Ok(chosen.as_mut());
        }
        // The old device may occupy the port that the new one needs.
        self.called = None;
        Ok(self.called.insert(open(self.args, || Ok(called_device(called)))?).as_mut())
    }
}

/// Opens the device that the user chose, if any, and listens.
fn listen(args: &Args) -> anyhow::Result<(Devices<'_>, Listening, Option<IpAddr>)> {
    let mut devices = Devices { args, chosen: None, called: None };
    let port = args.port;
    if args.device.is_none() && args.listen.is_none() {
        let listening = Listening::everywhere(port)
            .with_context(|| format!("cannot listen on TCP port {port}; choose another with --port"))?;
        return Ok((devices, listening, None));
    }
    let mut addresses = Vec::new();
    if args.device.is_some() {
        let device = open(args, || Ok(String::new()))?;
        addresses = device.addresses().to_vec();
        devices.chosen = Some(device);
    }
    let own = args.listen.or_else(|| addresses.first().copied()).context("the device has no address")?;
    let others: &[IpAddr] = if args.listen.is_some() { &[] } else { &addresses };
    let listening = Listening::at(own, others, port).with_context(|| {
        format!(
            "cannot listen on {own} port {port}; choose another address of this machine with --listen, or another port \
             with --port"
        )
    })?;
    Ok((devices, listening, Some(own)))
}

fn serve(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let (mut devices, listening, own) = listen(args)?;
    if !args.json {
        let device = if args.device.is_some() { " --device …" } else { "" };
        let announcement = Announcement {
            command: "roce limit".to_owned(),
            options: format!("{}{device}", option("--port", listening.port(), PORT)),
            other_program: None,
        };
        announcement.print(output, own, &listening)?;
    }
    let clients = ClientQueue::new(listening)?;
    loop {
        let (exchange, device) =
            next_client(&clients, &args.allow_peer, |exchange| devices.on(exchange.called()))?;
        let peer = exchange.peer().to_owned();
        let served = device.and_then(|device| Ok(limit::serve(device, exchange)?));
        match served {
            Ok(_) if args.json => {}
            Ok(plan) => writeln!(output, "served {peer}: message sizes: {}", plan.sizes.len())?,
            Err(error) if args.once => return Err(error),
            Err(error) => writeln!(output, "{peer}: {}", with_causes(&error))?,
        }
        output.flush()?;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn client(args: &Args, server: &str, output: &mut Output) -> anyhow::Result<ExitCode> {
    let server = resolve(server, args.port)?;
    let mut device = open(args, || device_towards(server))?;
    let sizes = if args.size.is_empty() {
        let link_mtu = device.capabilities().link_mtu;
        // 80 bytes for IPv6, UDP, BTH, RETH and ICRC.
        SIZES.into_iter().filter(|size| size + 80 <= link_mtu).collect()
    } else {
        args.size.clone()
    };
    let plan = Plan {
        sizes,
        frames: args.frames,
        round_trips: args.round_trips,
        window: args.window,
        tcp: args.tcp,
    };
    let is_same_version = |address: &IpAddr| address.is_ipv4() == server.is_ipv4();
    let own = device.addresses().iter().copied().find(is_same_version);
    let exchange = connect_when_listening(ExchangeError::is_refused, || match own {
        Some(own) => Exchange::connect_as(own, server),
        None => Exchange::connect(server),
    })?;
    let outcome = limit::client(device.as_mut(), exchange, &plan)?;
    if args.json {
        super::document::print(output, "limit", &outcome)?;
    } else {
        print(output, &outcome)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(output: &mut Output, outcome: &Outcome) -> anyhow::Result<()> {
    let [near, far] = &outcome.kinds;
    let title = format!("{near} to {far}, without protocol");
    writeln!(output, "{}", output.style.paint(Paint::BOLD, title))?;
    writeln!(output, "{:>8} {:>10} {:>10} {:>12} {:>8}", "payload", "frame", "Gb/s", "frames/s", "lost")?;
    for row in &outcome.rows {
        let lost = row.sent.saturating_sub(row.arrived);
        writeln!(
            output,
            "{:>8} {:>10} {:>10.2} {:>12.0} {:>8}",
            row.size, row.datagram_bytes, row.gigabits_per_s, row.frames_per_s, lost
        )?;
    }
    let mut times = |name: &str, latency: &Option<Latency>| match latency {
        None => Ok(()),
        Some(Latency { least_us, median_us, p99_us }) => writeln!(
            output,
            "{name}: half a round trip {median_us:.2} us (minimum {least_us:.2}, 99th percentile {p99_us:.2})"
        ),
    };
    times("device", &outcome.latency)?;
    times("kernel TCP", &outcome.tcp_latency)?;
    times("kernel TCP, sleeping", &outcome.tcp_event_latency)?;
    if let Some(gigabits) = outcome.tcp_gigabits_per_s {
        writeln!(output, "kernel TCP: {gigabits:.2} Gb/s in writes of 64 KiB")?;
    }
    Ok(())
}
