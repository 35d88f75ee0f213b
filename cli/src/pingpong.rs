//! `roce pingpong`: interoperates with the pingpong programs of libibverbs.

use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use roce_packet::PathMtu;
use serde_json::json;

use super::choices::{KINDS, one_of};
use super::connect::{connect_exchange, resolve};
use super::default_device::device_towards;
use super::device_options::DeviceArgs;
use super::listen::{Announcement, Contexts, option};
use super::sizes::parse_mtu;
use super::terminal::Output;
use roce::verbs::Context;
use roce_exchange::PeerAddresses;
use roce_measure::Role;
use roce_measure::pingpong::{Kind, Outcome, PORT, Plan, Session};

/// Exchange messages with ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong or ibv_srq_pingpong
///
/// Without SERVER, this side is the server. The options are those of the original programs. Run the original
/// program (with -g) or another `roce pingpong` on the other side, with the same size, path MTU and number of
/// iterations. The content of every message is verified.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Program that runs on the other side
    #[arg(value_parser = one_of(KINDS))]
    kind: Kind,

    /// Address or name of the server; if omitted, this side is the server
    server: Option<String>,

    /// TCP port of the exchange before the first message
    #[arg(long, short, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// Message size in bytes [default: 4096; ud: 1024]
    #[arg(long, short, value_name = "BYTES")]
    size: Option<usize>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(long, short, value_name = "BYTES", value_parser = parse_mtu, default_value = "1024")]
    mtu: PathMtu,

    /// Number of posted receives
    #[arg(long, short, value_name = "N", default_value_t = 500)]
    rx_depth: usize,

    /// Number of messages in each direction
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000)]
    iters: u64,

    /// srq: number of queue pairs, 1 to 256
    #[arg(long, short = 'q', value_name = "N", default_value_t = 16)]
    num_qp: usize,

    /// Wait for completion events instead of polling
    #[arg(long, short)]
    events: bool,

    /// Index of the GID to send from [default: the first with the IP version of the exchange]
    #[arg(long, short, value_name = "INDEX")]
    gid_idx: Option<usize>,

    /// Fail after this many seconds without progress; also the time limit of the whole set-up
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,

    /// Local ACK timeout of rc and srq: 4.096 us x 2^CODE, but at least 537 ms. The connection fails after
    /// eight timeouts
    #[arg(long, value_name = "CODE", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    timeout: u8,

    /// Server: also send packets to this address if a client that connects from another address requests it
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    allow_peer: Vec<IpAddr>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    fn plan(&self, gid_index: Option<usize>) -> Plan {
        let default_size = if self.kind == Kind::Ud { 1024 } else { 4096 };
        Plan {
            kind: self.kind,
            size: self.size.unwrap_or(default_size),
            iterations: self.iters,
            mtu: self.mtu,
            rx_depth: self.rx_depth,
            num_qp: self.num_qp,
            gid_index,
            events: self.events,
            timeout: self.timeout,
            patience: Duration::from_secs(self.patience.max(1)),
        }
    }

    /// Returns the index of the GID to send from.
    fn gid_towards(&self, context: &Context, peer: IpAddr) -> Option<usize> {
        self.gid_idx.or_else(|| context.gid_towards(peer))
    }
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    // The plan is checked before a client connects.
    args.plan(args.gid_idx).check()?;
    let (role, mut session, mut peer, allowed) = match &args.server {
        Some(server) => {
            let server = resolve(server, args.port)?;
            let context = args.device.open(|| device_towards(server))?;
            let session =
                Session::new(&context, &args.plan(args.gid_towards(&context, server.ip())), Role::Client)?;
            let peer = connect_exchange(&context, args.gid_idx, server).with_context(|| {
                format!("cannot connect to {server}; check that {} runs there", args.kind.program())
            })?;
            (Role::Client, session, peer, None)
        }
        None => {
            let (mut contexts, listening) = Contexts::listen(&args.device, args.port)?;
            let address = contexts.address();
            if address.is_some() {
                // This reports at once what the device does not permit.
                Session::new(&contexts.open(None)?, &args.plan(args.gid_idx), Role::Server)?;
            }
            if !args.json {
                let program = format!("{} or `roce pingpong`", args.kind.program());
                let announcement = Announcement {
                    command: format!("roce pingpong {}", args.kind.name()),
                    options: option("-p", listening.port(), PORT),
                    other_program: Some(&program),
                };
                announcement.print(output, address, &listening)?;
            }
            let (peer, called) = listening.accept().context("cannot accept the client")?;
            let context = contexts.open(called)?;
            let caller = peer.peer_addr().ip().to_canonical();
            let plan = args.plan(args.gid_towards(&context, caller));
            let session = Session::new(&context, &plan, Role::Server)?;
            let allowed = PeerAddresses::of_caller(caller).and(&args.allow_peer);
            (Role::Server, session, peer, Some(allowed))
        }
    };
    let is_json = args.json;
    session.connect(&mut peer, allowed.as_ref(), &mut |line| {
        if is_json { Ok(()) } else { writeln!(output, "{line}") }
    })?;
    output.flush()?;
    let outcome = session.run()?;
    print(args, role, &outcome, output)?;
    output.flush()?;
    session.linger();
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, role: Role, outcome: &Outcome, output: &mut Output) -> anyhow::Result<()> {
    let Outcome { bytes, iterations, elapsed_s, events, unacknowledged, retransmitted_packets } = *outcome;
    let microseconds = elapsed_s * 1e6;
    let megabits = bytes as f64 * 8.0 / microseconds;
    let each = microseconds / iterations as f64;
    if args.json {
        let document = json!({
            "program": args.kind.program(), "role": if role == Role::Client { "client" } else { "server" },
            "bytes": bytes, "iterations": iterations, "elapsed_s": elapsed_s, "megabits_per_s": megabits,
            "iteration_us": each, "events": events, "unacknowledged": unacknowledged,
            "retransmitted_packets": retransmitted_packets,
        });
        super::document::print(output, "pingpong", &document)?;
        return Ok(());
    }
    writeln!(output, "{bytes} bytes in {elapsed_s:.2} seconds = {megabits:.2} Mbit/sec")?;
    writeln!(output, "{iterations} iters in {elapsed_s:.2} seconds = {each:.2} usec/iter")?;
    if retransmitted_packets > 0 {
        writeln!(output, "{retransmitted_packets} packets were retransmitted")?;
    }
    if unacknowledged > 0 {
        writeln!(
            output,
            "{unacknowledged} of the last messages were not acknowledged: the other side exited after its own last message"
        )?;
    }
    Ok(())
}
