//! `roce inject`: sends a frame of the user, or replays a capture.

mod pace;
mod port;
mod rewrite;
mod send;
mod source;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use roce_capture::PcapWriter;
use roce_packet::MacAddr;
use serde::Serialize;

use super::terminal::{Output, Paint};
use pace::{Pace, Rate};
use port::Port;
use rewrite::Rewrite;
use send::{Outcome, Run};
use source::Source;

/// Send a given frame, or replay a capture
///
/// FRAMES is a capture file (pcap or pcapng, also compressed with gzip), one packet of it (FILE NUMBER), `-`
/// for a capture on standard input, or the bytes of one frame in hexadecimal digits, as `roce explain`
/// accepts them. Frames are sent byte for byte, except for the addresses that options replace, and the ICRC,
/// which is recomputed unless --keep-icrc is given. A new address also updates the checksums of IP, UDP and
/// TCP; a wrong checksum stays wrong. RoCE is also found inside tunnels: addresses are replaced in the
/// outermost headers, and the ICRC is that of the innermost packet. A packet to UDP port 4791 that is not
/// certainly RoCE, such as an answer of a DNS server, is not changed.
///
/// raw:INTERFACE and xdp:INTERFACE send to the network, tap:NAME to the kernel as if the frames had arrived
/// on the interface NAME. udp:ADDRESS sends the RoCE v2 datagrams in the frames through a socket, which needs
/// no privilege: the kernel writes the headers, with its own address and port as the sender.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Capture file, FILE NUMBER, `-`, or the bytes of a frame
    #[arg(required = true, value_name = "FRAMES")]
    frames: Vec<String>,

    /// Device to send on: raw:INTERFACE, tap:NAME, xdp:INTERFACE or udp:ADDRESS
    #[arg(long, value_name = "DEVICE", required_unless_present = "dry_run")]
    device: Option<String>,

    /// Write every frame sent to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Send nothing; with --pcap, only write the frames
    #[arg(long)]
    dry_run: bool,

    /// Frames per second such as 1000/s, a speed on the wire such as 100Mbps, or max
    #[arg(long, value_name = "RATE", value_parser = Rate::parse, default_value = "1000/s")]
    rate: Rate,

    /// Keep the intervals of the capture
    #[arg(long, conflicts_with = "rate")]
    timing: bool,

    /// With --timing: send this many times as fast
    #[arg(long, value_name = "FACTOR", value_parser = speed, requires = "timing", default_value = "1")]
    speed: f64,

    /// Send everything this many times
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,

    /// Stop after this many frames
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    /// Replace the Ethernet source address
    #[arg(long, value_name = "MAC")]
    source_mac: Option<MacAddr>,

    /// Replace the Ethernet destination address
    #[arg(long, value_name = "MAC")]
    destination_mac: Option<MacAddr>,

    /// Replace the source address of packets of the same IP version (and of every RoCE v1 packet)
    #[arg(long, value_name = "ADDRESS")]
    source_ip: Option<IpAddr>,

    /// Replace the destination address of packets of the same IP version (and of every RoCE v1 packet)
    #[arg(long, value_name = "ADDRESS")]
    destination_ip: Option<IpAddr>,

    /// Replace the UDP source port
    #[arg(long, value_name = "PORT")]
    source_port: Option<u16>,

    /// Replace the UDP destination port
    #[arg(long, value_name = "PORT")]
    destination_port: Option<u16>,

    /// Keep the ICRC, even if an address changes
    #[arg(long)]
    keep_icrc: bool,

    /// Print nothing while frames are sent
    #[arg(long, short)]
    quiet: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  roce inject trace.pcapng --device raw:eth0 --timing
  roce inject trace.pcapng 8 --device tap:roce0 --count 1000 --rate 100/s
  roce inject trace.pcapng --device raw:eth0 --destination-mac 02:00:00:00:00:02
  roce inject trace.pcapng --device udp:198.18.0.1 --destination-ip 198.18.0.2
  roce inject a.pcapng --destination-ip 198.18.0.2 --dry-run --pcap b.pcapng";

fn speed(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|speed: &f64| (1e-6..=1e6).contains(speed));
    number.ok_or_else(|| "expected a factor such as 2 or 0.1".to_owned())
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let source = Source::of(&args.frames)?;
    source::check_rounds(&source, args.count)?;
    let rewrite = args.rewrite();
    let port = match &args.device {
        Some(device) if !args.dry_run => Port::open(device, &rewrite)?,
        _ => Port::Nothing,
    };
    let pace = match () {
        // Nothing is sent, so no wait is needed.
        () if args.dry_run => Pace::rate(Rate::Max),
        () if args.timing => Pace::capture(args.speed),
        () => Pace::rate(args.rate),
    };
    let quiet = args.quiet || args.dry_run;
    let mut progress = |outcome: &Outcome, elapsed: Duration| {
        if !quiet {
            let Outcome { frames, bytes, .. } = outcome;
            let seconds = elapsed.as_secs_f64();
            // A closed standard error must not stop the run.
            let _ = writeln!(io::stderr(), "{seconds:7.1} s  {frames} frames, {bytes} bytes");
        }
    };
    let mut run = Run::new(port, &rewrite, pace, &mut progress)?;
    run.limit = args.limit.unwrap_or(u64::MAX);
    if let Some(path) = &args.pcap {
        let interface = args.device.as_deref().unwrap_or("inject");
        let writer = PcapWriter::create(path, &[interface]);
        run.capture =
            Some(writer.with_context(|| format!("cannot create the capture file {}", path.display()))?);
    }
    let outcome = run.run(&source, args.count)?;
    if args.json {
        let device_spec = args.device.as_deref().filter(|_| !args.dry_run);
        super::document::print(output, "inject", &Document { device_spec, outcome: &outcome })?;
    } else {
        print(args, &rewrite, &outcome, output)?;
    }
    let failed = outcome.frames == 0 || outcome.refused > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Args {
    const fn rewrite(&self) -> Rewrite {
        Rewrite {
            source_mac: self.source_mac,
            destination_mac: self.destination_mac,
            source_ip: self.source_ip,
            destination_ip: self.destination_ip,
            source_port: self.source_port,
            destination_port: self.destination_port,
            keep_icrc: self.keep_icrc,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    /// The device; `null` for --dry-run.
    device_spec: Option<&'a str>,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

fn print(args: &Args, rewrite: &Rewrite, outcome: &Outcome, output: &mut Output) -> io::Result<()> {
    let Outcome { frames, bytes, elapsed_s, icrc_repaired, skipped, refused, .. } = outcome;
    let verb = if args.dry_run { "would send" } else { "sent" };
    let plural = if *frames == 1 { "" } else { "s" };
    write!(output, "{verb} {frames} frame{plural}, {bytes} bytes")?;
    if !args.dry_run {
        write!(output, " in {elapsed_s:.3} s")?;
        if *frames > 1 && *elapsed_s > 0.0 {
            let (rate, megabits) = (*frames as f64 / elapsed_s, *bytes as f64 * 8.0 / 1e6 / elapsed_s);
            write!(output, ": {rate:.0} frames/s, {megabits:.3} Mb/s")?;
        }
    }
    writeln!(output, "{}", if outcome.interrupted { " (interrupted)" } else { "" })?;
    if rewrite.changes_addresses() || *icrc_repaired > 0 {
        writeln!(output, "ICRC repaired: {icrc_repaired}")?;
    }
    for (count, what) in [
        (
            outcome.icrc_unrepairable,
            "not changed: the headers are malformed, or the end of the packet is missing",
        ),
        (outcome.icrc_uncertain, "not changed: sent to UDP port 4791, but not certainly RoCE"),
        (skipped.cut, "left out: the capture has only their first bytes"),
        (skipped.too_long, "left out: longer than the MTU of the link"),
        (skipped.too_short, "left out: shorter than an Ethernet header"),
        (skipped.not_a_datagram, "left out: not RoCE v2 of the IP version of the udp device"),
    ] {
        if count > 0 {
            writeln!(output, "{count} {what}")?;
        }
    }
    if *refused > 0 {
        let text = format!("{refused} dropped by the device; check that the interface is up (`ip link`)");
        writeln!(output, "{}", output.style.paint(Paint::RED, text))?;
    }
    if *frames == 0 && skipped.sum() == 0 && *refused == 0 {
        writeln!(output, "no frame was sent")?;
    }
    Ok(())
}
