//! `roce rping`: client and server of librdmacm's rping.

use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use roce_packet::PathMtu;

use super::connect::resolve;
use super::default_device::{device_at, device_on, device_towards, only_device};
use super::device_options::DeviceArgs;
use super::sizes::parse_mtu;
use super::terminal::Output;
use roce::observe::{Text, with_causes};
use roce::verbs::{Context, PortSpace};
use roce_measure::rping::{
    MAX_PING, MIN_PING, RPING_PORT, RpingPlan, ServerEvent, client as rping_client, serve_all as rping_serve,
};

/// Exchange pings over a connection of rdma_cm, with rping or another `roce rping`
///
/// Start `roce rping -s -a ADDRESS` on one side and `roce rping -c -a ADDRESS` on the other; each side may
/// also be the rping of rdma-core. The client sends the address of its ping; the server reads it with RDMA
/// READ and writes it back with RDMA WRITE.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run as server
    #[arg(short, conflicts_with = "client", required_unless_present = "client")]
    server: bool,

    /// Run as client
    #[arg(short)]
    client: bool,

    /// Server: address to listen on; client: address of the server
    #[arg(short, value_name = "ADDRESS")]
    address: Option<String>,

    /// Client: local address
    #[arg(short = 'I', value_name = "ADDRESS", conflicts_with = "device")]
    source: Option<IpAddr>,

    /// Port in RDMA_PS_TCP
    #[arg(short, value_name = "PORT", default_value_t = RPING_PORT)]
    port: u16,

    /// Client: number of pings; 0 means no limit
    #[arg(short = 'C', value_name = "N", default_value_t = 0)]
    count: u64,

    /// Client: size of a ping in bytes
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 64)]
    size: usize,

    /// Print the pings
    #[arg(short)]
    verbose: bool,

    /// Client: verify the returned pings
    #[arg(short = 'V')]
    verify: bool,

    /// Server: wait for further clients
    #[arg(short = 'P')]
    persistent: bool,

    /// Client: path MTU [default: the largest up to 1024 that fits the link MTU]
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if args.server { serve(args, output) } else { client(args, output) }
}

/// Returns the text of a ping, without the trailing NUL.
fn text_of(ping: &[u8]) -> String {
    let end = ping.iter().position(|byte| *byte == 0).unwrap_or(ping.len());
    Text::new(&ping[..end]).to_string()
}

fn serve(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let context = args.device.open(|| match &args.address {
        Some(address) => Ok(device_at(resolve(address, args.port)?)),
        None => only_device(),
    })?;
    let listener = context
        .listen(PortSpace::Tcp, args.port)
        .with_context(|| format!("cannot listen on port {} of RDMA_PS_TCP", args.port))?;
    let address = context.address().context("the device has no address")?;
    writeln!(
        output,
        "waiting on {address} port {}; on the other side, run: rping -c -a {address}",
        args.port
    )?;
    output.flush()?;
    let mut printed = Ok(());
    rping_serve(&context, &listener, args.persistent, &mut |peer, event| {
        let peer = peer.ip();
        let line = match event {
            ServerEvent::Ping(ping) if args.verbose => {
                writeln!(output, "server ping data: {}", text_of(&ping))
            }
            ServerEvent::Ping(_) => return,
            ServerEvent::Ended(Ok(count)) => writeln!(output, "served {peer}: {count} pings"),
            ServerEvent::Ended(Err(error)) => writeln!(output, "{peer}: {}", with_causes(&error)),
        };
        if let Err(error) = line.and_then(|()| output.flush()) {
            printed = Err(error);
        }
    })?;
    // The command reports a closed pipe at its end.
    printed?;
    Ok(ExitCode::SUCCESS)
}

fn client(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let Some(server) = &args.address else { bail!("-c needs the address of the server; add -a ADDRESS") };
    if !(MIN_PING..=MAX_PING).contains(&args.size) {
        bail!("-S must be {MIN_PING} to {MAX_PING} bytes, not {}", args.size);
    }
    let server = resolve(server, args.port)?;
    let context = args.device.open(|| match args.source {
        Some(source) => Ok(device_on(source)),
        None => device_towards(server),
    })?;
    let plan = RpingPlan {
        count: if args.count == 0 { u64::MAX } else { args.count },
        size: args.size,
        verify: args.verify,
        path_mtu: path_mtu(args, &context)?,
    };
    let mut count = 0_u64;
    rping_client(&context, server.ip(), server.port(), &plan, &mut |ping| {
        count += 1;
        if args.verbose {
            // The command reports a closed pipe at its end.
            let _ = writeln!(output, "ping data: {}", text_of(ping)).and_then(|()| output.flush());
        }
    })?;
    let verified = if args.verify { ", contents verified" } else { "" };
    writeln!(output, "{count} pings of {} bytes{verified}", args.size)?;
    Ok(ExitCode::SUCCESS)
}

fn path_mtu(args: &Args, context: &Context) -> anyhow::Result<PathMtu> {
    let Some(largest) = context.largest_path_mtu() else {
        bail!(
            "the link MTU of this device is too small for a path MTU of 256 bytes; raise the link MTU to 400 or more"
        );
    };
    Ok(args.mtu.unwrap_or_else(|| largest.min(PathMtu::Mtu1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client chooses the bytes, and `-v` prints them.
    #[test]
    fn the_text_of_a_ping_is_safe_to_show() {
        assert_eq!(text_of(b"rdma-ping-0: ABC\0rest"), "rdma-ping-0: ABC");
        assert_eq!(text_of(b"\x1b[2J\x9b\n\0"), "\\u{1b}[2J\\x9b\\u{a}");
    }
}
