//! `roce perf`: talks to the bandwidth and latency tests of perftest.

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
use roce_tools::exchange::Messages;
use roce_tools::perf::{AtomicOp, Connection, Length, Meeting, PORT, Plan, Session, Size, Test, Verb};

/// How often it is looked whether the engine still receives while the exchange says nothing.
const LOOK: Duration = Duration::from_millis(50);

/// Measure with ib_write_bw, ib_send_bw, ib_read_bw, ib_atomic_bw and the four _lat programs
///
/// `roce perf write bw` talks to ib_write_bw, and so on. Without SERVER this side waits for the other. The
/// options are those of the original programs, which must run on the other side with the same ones, or another
/// `roce perf`. What arrives is checked: between two `roce perf` every message, from an original as far as its
/// buffers, which never change, allow it.
#[derive(Debug, clap::Args)]
#[command(mut_arg("device", |device| device.short('d')))]
pub(super) struct Args {
    /// Operation
    #[arg(value_enum)]
    verb: Verb,

    /// Bandwidth or latency
    #[arg(value_enum)]
    test: Test,

    /// Address or name of the server; without it this side is the server
    server: Option<String>,

    /// TCP port of the exchange before the first message; with -R port of RDMA_PS_TCP
    #[arg(long, short, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// Bytes of a message [default: bw 65536, lat 2, atomic 8]
    #[arg(long, short, value_name = "BYTES", value_parser = parse_size)]
    size: Option<usize>,

    /// Every power of two from 2 bytes to 8 MiB, to the path MTU on UD
    #[arg(long, short, conflicts_with = "size")]
    all: bool,

    /// Messages on each queue pair [default: 1000, write bw 5000]
    #[arg(long, short = 'n', value_name = "N")]
    iters: Option<u64>,

    /// Go on for so many seconds instead
    #[arg(long, short = 'D', value_name = "SECONDS", conflicts_with = "iters")]
    duration: Option<u64>,

    /// With -D: seconds at both ends that do not count [default: a quarter]
    #[arg(long, short = 'f', value_name = "SECONDS")]
    margin: Option<u64>,

    /// Both sides send
    #[arg(long, short)]
    bidirectional: bool,

    /// Queue pairs
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    qp: usize,

    /// Transport: RC, UC or UD
    #[arg(long, short, value_enum, ignore_case = true, default_value = "RC")]
    connection: Connection,

    /// Path MTU: 256, 512, 1024, 2048 or 4096; without it the largest that both links carry
    #[arg(long, short, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,

    /// Index of the GID to send from; without it the first of the IP version that the exchange uses
    #[arg(long, short = 'x', value_name = "INDEX")]
    gid_index: Option<usize>,

    /// Requests under way on each queue pair [default: bw 128, lat 1]
    #[arg(long, short, value_name = "N")]
    tx_depth: Option<usize>,

    /// Receives posted on each queue pair [default: 512; UC and UD up to 4000]
    #[arg(long, short, value_name = "N")]
    rx_depth: Option<usize>,

    /// One request of so many completes visibly [default: 100; 1 above 8192 bytes]
    #[arg(long, short = 'Q', value_name = "N")]
    cq_mod: Option<usize>,

    /// READs and atomics under way on each queue pair
    #[arg(long, short, value_name = "N", default_value_t = 16)]
    outs: u8,

    /// Post messages of up to so many bytes inline
    #[arg(long, short = 'I', value_name = "BYTES", default_value_t = 0)]
    inline_size: usize,

    /// atomic: which operation
    #[arg(long, short = 'A', value_enum, value_name = "OP", default_value = "FETCH_AND_ADD")]
    atomic_type: AtomicOp,

    /// Local ACK timeout, 4.096 us x 2^N
    #[arg(long, short = 'u', value_name = "N", default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=31))]
    qp_timeout: u8,

    /// Gb/s instead of MB/s (MB is 2^20 bytes)
    #[arg(long = "report_gbits", alias = "report-gbits")]
    report_gbits: bool,

    /// bw: look for no peak
    #[arg(long = "noPeak", short = 'N', alias = "no-peak")]
    no_peak: bool,

    /// lat: print each time in the order of the messages
    #[arg(long = "report-unsorted", short = 'U')]
    report_unsorted: bool,

    /// lat: print each time in ascending order
    #[arg(long = "report-histogram", short = 'H')]
    report_histogram: bool,

    /// Taken and ignored, as there is no CPU clock to distrust
    #[arg(long = "CPU-freq", short = 'F', hide_short_help = true)]
    cpu_freq: bool,

    /// Connect queue pairs by rdma_cm, which the exchange goes over too: no TCP then
    #[arg(long = "rdma_cm", short = 'R')]
    rdma_cm: bool,

    /// Give up when nothing came for so many seconds
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

    /// Where a server is, and the device of this side.
    fn open(&self) -> anyhow::Result<(Context, Option<SocketAddr>)> {
        let server = self.server.as_deref().map(|server| resolve(server, self.port)).transpose()?;
        let context = self.device.open(|| match server {
            Some(server) => device_towards(server),
            None => Ok(device_on(std::net::Ipv4Addr::LOCALHOST.into())),
        })?;
        Ok((context, server))
    }

    fn say_waiting(
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

    /// Meets the other side over TCP.
    fn meet(
        &self,
        context: &Context,
        server: Option<SocketAddr>,
        plan: &Plan,
        output: &mut Output,
    ) -> anyhow::Result<Tcp> {
        let mut stream = match server {
            None => {
                let listening = TcpListening::bind(context, self.port).with_context(|| {
                    format!("listening on TCP port {}; choose another one with -p", self.port)
                })?;
                self.say_waiting(listening.local_addr(), plan, output)?;
                listening.accept().context("waiting for the client")?
            }
            Some(server) => connect_exchange(context, server)
                .with_context(|| format!("connecting to {server}; does {} run there?", plan.program()))?,
        };
        stream.set_read_timeout(Some(LOOK))?;
        Ok(stream)
    }

    /// Meets the other side by rdma_cm.
    fn meet_by_cm(
        &self,
        context: &Context,
        server: Option<SocketAddr>,
        plan: &Plan,
        output: &mut Output,
    ) -> anyhow::Result<(Messages, Meeting)> {
        let parameters = plan.connection_parameters(plan.largest_mtu(context));
        let Some(server) = server else {
            let listener = context.listen(PortSpace::Tcp, self.port).with_context(|| {
                format!("listening on port {} of RDMA_PS_TCP; choose another one with -p", self.port)
            })?;
            let address = context.address().context("the device has no address")?;
            self.say_waiting(format_args!("{address} port {} of rdma_cm", self.port), plan, output)?;
            let stream =
                Messages::accept(context, &listener, &parameters, None).context("waiting for the client")?;
            return Ok((stream, Meeting::Accept(listener)));
        };
        let stream = Messages::connect(context, server, &parameters, LISTENING).with_context(|| {
            format!("connecting to {server} by rdma_cm; does {} run there with -R?", plan.program())
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
        let (stream, meeting) = args.meet_by_cm(&context, server, &plan, output)?;
        let mut session = Session::open(&context, &plan, stream, role, &meeting)?;
        measure(args, &plan, &context, &mut session, output)?;
    } else {
        let stream = args.meet(&context, server, &plan, output)?;
        if plan.gid_index.is_none() {
            plan.gid_index = context.gid_towards(stream.peer_addr().ip());
        }
        let mut session = Session::open(&context, &plan, stream, role, &Meeting::Keys)?;
        measure(args, &plan, &context, &mut session, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Carries out the test and prints what was measured.
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
        let again: u64 = rows.iter().map(|row| row.retransmitted_packets).sum();
        if again > 0 {
            writeln!(output, "{again} packets were sent again")?;
        }
    }
    output.flush()?;
    session.linger();
    Ok(())
}
