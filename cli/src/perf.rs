//! `roce perf`: interoperates with the bandwidth and latency tests of perftest.

mod table;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use roce_packet::PathMtu;
use serde_json::json;

use super::common::{DeviceArgs, LISTENING, connect_exchange, device_on, device_towards, parse_mtu, resolve};
use super::measure::parse_size;
use super::terminal::Output;
use roce::tcp::{Tcp, TcpListening};
use roce::verbs::{Context, PortSpace};
use roce_tools::Role;
use roce_tools::perf::Messages;
use roce_tools::perf::{AtomicOp, Connection, Length, Meeting, PORT, Plan, Session, Size, Test, Verb};

/// Interval of the check that the engine still receives while the exchange is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Measure together with ib_write_bw, ib_send_bw, ib_read_bw, ib_atomic_bw or their _lat counterparts
///
/// `roce perf write bw` is the counterpart of ib_write_bw, and so on. Without SERVER, this side is the server. The
/// options are those of perftest; run the perftest program or another `roce perf` with the same options on the other
/// side. Two `roce perf` verify every message. A perftest program never changes its buffers, which limits what can
/// be verified.
#[derive(Debug, clap::Args)]
#[command(mut_arg("device", |device| device.short('d')))]
pub(super) struct Args {
    /// Operation to measure
    #[arg(value_enum)]
    verb: Verb,

    /// Quantity to measure
    #[arg(value_enum)]
    test: Test,

    /// Address or name of the server; if omitted, this side is the server
    server: Option<String>,

    /// TCP port of the exchange before the first message; with -R, the port in RDMA_PS_TCP
    #[arg(long, short, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// Message size in bytes [default: bw 65536, lat 2, atomic 8]
    #[arg(long, short, value_name = "BYTES", value_parser = parse_size)]
    size: Option<usize>,

    /// Measure every power of two from 2 bytes to 8 MiB (on UD, to the path MTU)
    #[arg(long, short, conflicts_with = "size")]
    all: bool,

    /// Number of messages per queue pair [default: 1000, write bw 5000]
    #[arg(long, short = 'n', value_name = "N")]
    iters: Option<u64>,

    /// Run for this many seconds instead of a number of messages
    #[arg(long, short = 'D', value_name = "SECONDS", conflicts_with = "iters")]
    duration: Option<u64>,

    /// With -D: seconds to exclude at the start and at the end [default: a quarter]
    #[arg(long, short = 'f', value_name = "SECONDS")]
    margin: Option<u64>,

    /// Send in both directions
    #[arg(long, short)]
    bidirectional: bool,

    /// Number of queue pairs
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    qp: usize,

    /// Transport: RC, UC or UD
    #[arg(long, short, value_enum, ignore_case = true, default_value = "RC")]
    connection: Connection,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that fits both link MTUs]
    #[arg(long, short, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,

    /// Index of the GID to send from [default: the first with the IP version of the exchange]
    #[arg(long, short = 'x', value_name = "INDEX")]
    gid_index: Option<usize>,

    /// Number of outstanding requests per queue pair [default: bw 128, lat 1]
    #[arg(long, short, value_name = "N")]
    tx_depth: Option<usize>,

    /// Number of posted receives per queue pair [default: 512; UC and UD up to 4000]
    #[arg(long, short, value_name = "N")]
    rx_depth: Option<usize>,

    /// Signal one of this many requests [default: 100; 1 above 8192 bytes]
    #[arg(long, short = 'Q', value_name = "N")]
    cq_mod: Option<usize>,

    /// Number of outstanding READs and atomics per queue pair
    #[arg(long, short, value_name = "N", default_value_t = 16)]
    outs: u8,

    /// Post messages of up to this many bytes inline
    #[arg(long, short = 'I', value_name = "BYTES", default_value_t = 0)]
    inline_size: usize,

    /// atomic: operation
    #[arg(long, short = 'A', value_enum, value_name = "OP", default_value = "FETCH_AND_ADD")]
    atomic_type: AtomicOp,

    /// Local ACK timeout, 4.096 us x 2^N
    #[arg(long, short = 'u', value_name = "N", default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=31))]
    qp_timeout: u8,

    /// Report Gb/s instead of MB/s (1 MB is 2^20 bytes)
    #[arg(long = "report_gbits", alias = "report-gbits")]
    report_gbits: bool,

    /// bw: do not measure the peak
    #[arg(long = "noPeak", short = 'N', alias = "no-peak")]
    no_peak: bool,

    /// lat: print every sample in message order
    #[arg(long = "report-unsorted", short = 'U')]
    report_unsorted: bool,

    /// lat: print every sample in ascending order
    #[arg(long = "report-histogram", short = 'H')]
    report_histogram: bool,

    /// Accepted for compatibility and ignored
    #[arg(long = "CPU-freq", short = 'F', hide_short_help = true)]
    cpu_freq: bool,

    /// Connect queue pairs and exchange parameters through rdma_cm instead of TCP
    #[arg(long = "rdma_cm", short = 'R')]
    rdma_cm: bool,

    /// Fail after this many seconds without progress
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    fn plan(&self) -> Plan {
        let is_bandwidth = self.test == Test::Bandwidth;
        let default_size = match (self.verb, self.test) {
            (Verb::Atomic, _) => 8,
            (_, Test::Bandwidth) => 65_536,
            (_, Test::Latency) => 2,
        };
        let size = match self.size {
            _ if self.all => Size::All,
            Some(size) => Size::Given(size),
            None => Size::Default(default_size),
        };
        let default_iters = if is_bandwidth && self.verb == Verb::Write { 5000 } else { 1000 };
        let length = match self.duration {
            Some(all) => Length::Seconds { all, margin: self.margin.unwrap_or(all / 4) },
            None => Length::Iterations(self.iters.unwrap_or(default_iters)),
        };
        let iterations = match length {
            Length::Iterations(iterations) => usize::try_from(iterations).unwrap_or(usize::MAX).max(1),
            Length::Seconds { .. } => usize::MAX,
        };
        let tx_depth = self.tx_depth.unwrap_or(if is_bandwidth { 128 } else { 1 }).min(iterations);
        let rx_depth = match (self.rx_depth, self.verb, self.connection) {
            (_, Verb::Write | Verb::Read | Verb::Atomic, _) => 1,
            (Some(depth), ..) => depth.min(iterations),
            (None, _, Connection::Rc) => 512.min(iterations),
            (None, ..) => iterations.min(4000),
        };
        let is_large = !self.all && self.size.unwrap_or(default_size) > 8192;
        let cq_mod = match self.cq_mod {
            None if !is_bandwidth || is_large && self.connection != Connection::Ud => 1,
            every => every.unwrap_or(100).min(tx_depth),
        };
        Plan {
            verb: self.verb,
            test: self.test,
            connection: self.connection,
            size,
            length,
            bidirectional: self.bidirectional,
            num_qp: self.qp,
            tx_depth,
            rx_depth,
            cq_mod,
            out_reads: self.outs,
            inline: self.inline_size,
            atomic: self.atomic_type,
            mtu: self.mtu,
            gid_index: self.gid_index,
            rdma_cm: self.rdma_cm,
            timeout: self.qp_timeout,
            gigabits: self.report_gbits,
            peak: !self.no_peak,
            patience: Duration::from_secs(self.patience.max(1)),
        }
    }

    /// Opens the device; also returns the address of the server, if there is one.
    fn open(&self) -> anyhow::Result<(Context, Option<SocketAddr>)> {
        let server = self.server.as_deref().map(|server| resolve(server, self.port)).transpose()?;
        let context = self.device.open(|| match server {
            Some(server) => device_towards(server),
            None => Ok(device_on(std::net::Ipv4Addr::LOCALHOST.into())),
        })?;
        Ok((context, server))
    }

    fn print_waiting(
        &self,
        at: impl std::fmt::Display,
        plan: &Plan,
        output: &mut Output,
    ) -> std::io::Result<()> {
        if self.json {
            return Ok(());
        }
        let with = if plan.rdma_cm { " -R" } else { "" };
        writeln!(output, "waiting on {at} for {}{with} or `roce perf`{with}", plan.program())?;
        output.flush()
    }

    /// Connects to the other side over TCP.
    fn connect_tcp(
        &self,
        context: &Context,
        server: Option<SocketAddr>,
        plan: &Plan,
        output: &mut Output,
    ) -> anyhow::Result<Tcp> {
        let mut stream = match server {
            None => {
                let listening = TcpListening::bind(context, self.port).with_context(|| {
                    format!("cannot listen on TCP port {}; choose another port with -p", self.port)
                })?;
                self.print_waiting(listening.local_addr(), plan, output)?;
                listening.accept().context("cannot accept the client")?
            }
            Some(server) => connect_exchange(context, server).with_context(|| {
                format!("cannot connect to {server}; check that {} runs there", plan.program())
            })?,
        };
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        Ok(stream)
    }

    /// Connects to the other side through rdma_cm.
    fn connect_cm(
        &self,
        context: &Context,
        server: Option<SocketAddr>,
        plan: &Plan,
        output: &mut Output,
    ) -> anyhow::Result<(Messages, Meeting)> {
        let parameters = plan.connection_parameters(plan.largest_mtu(context));
        let Some(server) = server else {
            let listener = context.listen(PortSpace::Tcp, self.port).with_context(|| {
                format!("cannot listen on port {} of RDMA_PS_TCP; choose another port with -p", self.port)
            })?;
            let address = context.address().context("the device has no address")?;
            self.print_waiting(format_args!("{address} port {} of rdma_cm", self.port), plan, output)?;
            let stream = Messages::accept(context, &listener, &parameters, None)
                .context("cannot accept the client")?;
            return Ok((stream, Meeting::Accept(listener)));
        };
        let stream = Messages::connect(context, server, &parameters, LISTENING).with_context(|| {
            format!(
                "cannot connect to {server} through rdma_cm; check that {} runs there with -R",
                plan.program()
            )
        })?;
        Ok((stream, Meeting::Connect(server)))
    }
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let mut plan = args.plan();
    plan.check()?;
    let (context, server) = args.open()?;
    let role = if server.is_some() { Role::Client } else { Role::Server };
    if plan.rdma_cm {
        let (stream, meeting) = args.connect_cm(&context, server, &plan, output)?;
        let mut session = Session::open(&context, &plan, stream, role, &meeting)?;
        measure(args, &plan, &context, &mut session, output)?;
    } else {
        let stream = args.connect_tcp(&context, server, &plan, output)?;
        if plan.gid_index.is_none() {
            plan.gid_index = context.gid_towards(stream.peer_addr().ip());
        }
        let mut session = Session::open(&context, &plan, stream, role, &Meeting::Keys)?;
        measure(args, &plan, &context, &mut session, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the test and prints the results.
fn measure<S: Read + Write>(
    args: &Args,
    plan: &Plan,
    context: &Context,
    session: &mut Session<S>,
    output: &mut Output,
) -> anyhow::Result<()> {
    if !args.json {
        table::heading(output, plan, context, session)?;
        output.flush()?;
    }
    let rows = session.run(&mut |row| {
        if args.json {
            return Ok(());
        }
        table::row(output, plan, row, (args.report_unsorted, args.report_histogram))?;
        output.flush()
    })?;
    if args.json {
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"), "program": plan.program(),
            "role": if session.role() == Role::Client { "client" } else { "server" },
            "device": context.query().capabilities.kind,
            "connection": plan.connection, "bidirectional": plan.bidirectional, "rdma_cm": plan.rdma_cm,
            "queue_pairs": plan.num_qp, "tx_depth": plan.tx_depth, "cq_mod": plan.cq_mod,
            "path_mtu": session.agreement().mtu.bytes(), "length": plan.length,
            "peer_version": session.agreement().version, "peer_is_roce": session.agreement().is_ours,
            "rows": rows,
        });
        serde_json::to_writer_pretty(&mut *output, &document)?;
        writeln!(output)?;
    } else {
        table::line(output)?;
        let retransmitted: u64 = rows.iter().map(|row| row.retransmitted_packets).sum();
        if retransmitted > 0 {
            writeln!(output, "{retransmitted} packets were retransmitted")?;
        }
    }
    output.flush()?;
    session.linger();
    Ok(())
}
