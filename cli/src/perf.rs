//! `roce perf`: interoperates with the bandwidth and latency tests of perftest.

mod json;
mod options;
mod table;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use roce_packet::PathMtu;
use serde_json::json;

use super::choices::{ATOMIC_OPS, CONNECTIONS, TESTS, VERBS, one_of};
use super::connect::{LISTENING, connect_exchange, resolve};
use super::default_device::{device_on, device_towards, only_device};
use super::device_options::DeviceArgs;
use super::errors::print_error;
use super::listen::{Announcement, Contexts, option};
use super::progress::Progress;
use super::sizes::{parse_mtu, parse_size};
use super::terminal::Output;
use roce::tcp::Tcp;
use roce::verbs::{Context, PortSpace};
use roce_exchange::PeerAddresses;
use roce_measure::Role;
use roce_measure::perf::exchange::Stream;
use roce_measure::perf::{
    AtomicOp, Bandwidth, ConnectMethod, Connection, Length, Messages, PORT, Plan, Row, Session, Size, Test,
    Verb,
};

/// Interval of the check that the engine still receives while the exchange is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Measure together with ib_write_bw, ib_send_bw, ib_read_bw, ib_atomic_bw or their _lat counterparts
///
/// `roce perf write bw` is the counterpart of ib_write_bw, and so on. Without SERVER, this side is the
/// server. The options are those of perftest; run the perftest program or another `roce perf` with the same
/// options on the other side. Two `roce perf` processes verify every message. Verification of a perftest
/// program is limited, because it never changes its buffers. A side that runs for more than 10 seconds
/// reports its progress on standard error every 10 seconds.
#[derive(Debug, clap::Args)]
#[command(version, mut_arg("device", |device| device.short('d').alias("ib-dev")))]
pub(crate) struct Args {
    /// Operation to measure
    #[arg(value_parser = one_of(VERBS))]
    verb: Verb,

    /// Quantity to measure
    #[arg(value_parser = one_of(TESTS))]
    test: Test,

    /// Address or name of the server; if omitted, this side is the server
    server: Option<String>,

    /// TCP port of the exchange before the first message; with -R, the port in RDMA_PS_TCP
    #[arg(long, short, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// Message size in bytes [default: bw 65536, lat 2, atomic 8]
    #[arg(long, short, value_name = "BYTES", value_parser = parse_size)]
    size: Option<usize>,

    /// Port number of the device, which has only port 1
    #[arg(long = "ib-port", short = 'i', value_name = "1", hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=1))]
    ib_port: Option<u8>,

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
    #[arg(long, short, value_parser = one_of(CONNECTIONS), ignore_case = true, default_value = "RC")]
    connection: Connection,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that fits both link MTUs]
    #[arg(long, short, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,

    /// Traffic class: DSCP in the upper six bits, ECN in the lower two
    #[arg(long, value_name = "CLASS")]
    tclass: Option<u8>,

    /// Traffic class; same as --tclass
    #[arg(long, short = 'T', value_name = "CLASS", conflicts_with = "tclass")]
    tos: Option<u8>,

    /// Service level; has no effect, because Ethernet does not carry it: with a VLAN tag, the traffic class
    /// determines the priority
    #[arg(long, short = 'S', value_name = "LEVEL", hide_short_help = true, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: Option<u8>,

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

    /// bw: post this many requests at once [default: as many as are free, up to 16]
    #[arg(long = "post_list", alias = "post-list", short = 'l', value_name = "N")]
    post_list: Option<usize>,

    /// bw: maximum outstanding requests of all queue pairs together; the queue pairs take turns
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,

    /// Sleep until completion events instead of polling
    #[arg(long, short)]
    events: bool,

    /// Number of outstanding READs and atomics per queue pair
    #[arg(long, short, value_name = "N", default_value_t = 16)]
    outs: u8,

    /// Post messages of up to this many bytes inline
    #[arg(
        long = "inline_size",
        alias = "inline-size",
        short = 'I',
        value_name = "BYTES",
        default_value_t = 0
    )]
    inline_size: usize,

    /// atomic: operation
    #[arg(long = "atomic_type", alias = "atomic-type", short = 'A', value_name = "OP")]
    #[arg(value_parser = one_of(ATOMIC_OPS), default_value = "FETCH_AND_ADD")]
    atomic_type: AtomicOp,

    /// Local ACK timeout, 4.096 us x 2^N, but at least 537 ms
    #[arg(long, short = 'u', value_name = "N", default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=31))]
    qp_timeout: u8,

    /// Retries after a timeout or a NAK, 0 to 7
    #[arg(long = "retry_count", alias = "retry-count", value_name = "N", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=7))]
    retry_count: u8,

    /// The server sends and the client receives
    #[arg(long)]
    reversed: bool,

    /// bw: run until the other side ends or Ctrl-C, and report every -D seconds [default: 5]
    #[arg(long = "run_infinitely", alias = "run-infinitely", conflicts_with_all = ["iters", "all"])]
    run_infinitely: bool,

    /// bw: fail if the average is below this many MB/s, or Gb/s with --report_gbits
    #[arg(long = "limit_bw", alias = "limit-bw", short = 'w', value_name = "RATE")]
    limit_bw: Option<f64>,

    /// bw: fail below this many million messages per second
    #[arg(long = "limit_msgrate", alias = "limit-msgrate", short = 'y', value_name = "RATE")]
    limit_msgrate: Option<f64>,

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
    #[arg(long = "report-histogram", alias = "report-histogrm", short = 'H')]
    report_histogram: bool,

    /// Connect queue pairs and exchange parameters through rdma_cm instead of TCP
    #[arg(long = "rdma_cm", short = 'R')]
    rdma_cm: bool,

    /// Exchange parameters over rdma_cm, but connect queue pairs with the parameters exchanged
    #[arg(long = "comm_rdma_cm", alias = "comm-rdma-cm", short = 'z')]
    comm_rdma_cm: bool,

    /// Address to send from, instead of --device
    #[arg(
        long = "bind_source_ip",
        alias = "bind-source-ip",
        value_name = "ADDRESS",
        conflicts_with = "device"
    )]
    bind_source_ip: Option<IpAddr>,

    /// Print only one figure of each row
    #[arg(long, value_enum, value_name = "FIGURE", conflicts_with = "json")]
    output: Option<table::Figure>,

    /// Write the last row and the parameters to a file, with the names of perftest
    #[arg(long = "out_json", alias = "out-json")]
    out_json: bool,

    /// The file of --out_json
    #[arg(
        long = "out_json_file",
        alias = "out-json-file",
        value_name = "FILE",
        default_value = "perftest_out.json"
    )]
    out_json_file: PathBuf,

    /// Fail after this many seconds without progress
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,

    /// Server: also send packets to this address if a client that connects from another address requests it
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    allow_peer: Vec<IpAddr>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    others: options::Others,

    #[command(flatten)]
    device: DeviceArgs,
}

/// The interval of `--run_infinitely`, as in perftest.
const INTERVAL_S: u64 = 5;

impl Args {
    fn plan(&self) -> Plan {
        let length = self.length();
        let size = match self.size {
            _ if self.all => Size::All,
            Some(size) => Size::Given(size),
            None => Size::Default(self.default_size()),
        };
        let (tx_depth, rx_depth) = self.depths(length);
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
            cq_mod: self.moderation(tx_depth),
            post_list: self.post_list.filter(|list| *list != 1),
            in_flight: self.in_flight,
            events: self.events,
            out_reads: self.outs,
            inline: self.inline_size,
            atomic: self.atomic_type,
            mtu: self.mtu,
            gid_index: self.gid_index,
            rdma_cm: self.rdma_cm,
            comm_rdma_cm: self.comm_rdma_cm,
            reversed: self.reversed,
            traffic_class: self.tclass.or(self.tos).unwrap_or(0),
            timeout: self.qp_timeout,
            retry_count: self.retry_count,
            gigabits: self.report_gbits,
            peak: !self.no_peak,
            patience: Duration::from_secs(self.patience.max(1)),
        }
    }

    fn default_size(&self) -> usize {
        match (self.verb, self.test) {
            (Verb::Atomic, _) => 8,
            (_, Test::Bandwidth) => 65_536,
            (_, Test::Latency) => 2,
        }
    }

    fn length(&self) -> Length {
        let default_iters = match (self.verb, self.test) {
            (Verb::Write, Test::Bandwidth) => 5000,
            _ => 1000,
        };
        match self.duration {
            interval if self.run_infinitely => Length::Endless { interval: interval.unwrap_or(INTERVAL_S) },
            Some(all) => Length::Seconds { all, margin: self.margin.unwrap_or(all / 4) },
            None => Length::Iterations(self.iters.unwrap_or(default_iters)),
        }
    }

    /// Returns the outstanding requests and posted receives of each queue pair.
    fn depths(&self, length: Length) -> (usize, usize) {
        let iterations = match length {
            Length::Iterations(iterations) => usize::try_from(iterations).unwrap_or(usize::MAX).max(1),
            Length::Seconds { .. } | Length::Endless { .. } => usize::MAX,
        };
        let default_depth = if self.test == Test::Bandwidth { 128 } else { 1 };
        let rx_depth = match (self.rx_depth, self.verb, self.connection) {
            (_, Verb::Write | Verb::Read | Verb::Atomic, _) => 1,
            (Some(depth), ..) => depth.min(iterations),
            (None, _, Connection::Rc) => 512.min(iterations),
            (None, ..) => iterations.min(4000),
        };
        (self.tx_depth.unwrap_or(default_depth).min(iterations), rx_depth)
    }

    /// Returns the number of requests per signaled one.
    fn moderation(&self, tx_depth: usize) -> usize {
        let is_bandwidth = self.test == Test::Bandwidth;
        let is_large = !self.all && self.size.unwrap_or(self.default_size()) > 8192;
        match (self.cq_mod, self.post_list) {
            (None, Some(list)) if is_bandwidth && list > 1 => list,
            (None, _) if self.in_flight.is_some() => 1,
            (None, _) if !is_bandwidth || is_large && self.connection != Connection::Ud => 1,
            (every, _) => every.unwrap_or(100).min(tx_depth),
        }
    }

    /// Returns the address of the server, if there is one.
    fn server(&self) -> anyhow::Result<Option<SocketAddr>> {
        self.server.as_deref().map(|server| resolve(server, self.port)).transpose()
    }

    /// Returns the device that the user chose, possibly by the address to send from.
    fn chosen_device(&self) -> DeviceArgs {
        let device = self.bind_source_ip.map(device_on).or_else(|| self.device.device.clone());
        DeviceArgs { device, ..self.device.clone() }
    }

    /// Opens the device. A server of rdma_cm without a device takes the only address of this machine.
    fn open(&self, server: Option<SocketAddr>) -> anyhow::Result<Context> {
        self.chosen_device().open(|| match server {
            Some(server) => device_towards(server),
            None => only_device(),
        })
    }

    fn print_waiting(
        &self,
        at: impl std::fmt::Display,
        plan: &Plan,
        output: &mut Output,
    ) -> std::io::Result<()> {
        if self.json || self.output.is_some() {
            return Ok(());
        }
        let with = exchange_option(plan);
        writeln!(output, "waiting on {at} for {}{with} or `roce perf`{with}", plan.program())?;
        output.flush()
    }

    /// Connects to the other side over TCP. A server opens its device on the address that the client called,
    /// and returns the addresses that its packets may go to.
    fn connect_tcp(
        &self,
        server: Option<SocketAddr>,
        plan: &Plan,
        output: &mut Output,
    ) -> anyhow::Result<(Context, Tcp, Option<PeerAddresses>)> {
        let (context, mut stream, allowed) = match server {
            None => {
                let device = self.chosen_device();
                let (mut contexts, listening) = Contexts::listen(&device, self.port)?;
                if !self.json && self.output.is_none() {
                    let program = format!("{} or `roce perf`", plan.program());
                    let announcement = Announcement {
                        command: format!("roce perf {} {}", plan.verb.name(), plan.test.name()),
                        options: option("-p", listening.port(), PORT),
                        other_program: Some(&program),
                    };
                    announcement.print(output, contexts.address(), &listening)?;
                }
                let (stream, called) = listening.accept().context("cannot accept the client")?;
                let caller = stream.peer_addr().ip();
                let allowed = PeerAddresses::of_caller(caller).and(&self.allow_peer);
                (contexts.open(called)?, stream, Some(allowed))
            }
            Some(server) => {
                let context = self.open(Some(server))?;
                let stream = connect_exchange(&context, self.gid_index, server).with_context(|| {
                    format!("cannot connect to {server}; check that {} runs there", plan.program())
                })?;
                (context, stream, None)
            }
        };
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        Ok((context, stream, allowed))
    }

    /// Connects to the other side through rdma_cm.
    fn connect_cm(
        &self,
        context: &Context,
        server: Option<SocketAddr>,
        plan: &Plan,
        output: &mut Output,
    ) -> anyhow::Result<(Messages, ConnectMethod)> {
        let parameters = plan.connection_parameters(plan.largest_mtu(context));
        let Some(server) = server else {
            let listener = context.listen(PortSpace::Tcp, self.port).with_context(|| {
                format!("cannot listen on port {} of RDMA_PS_TCP; choose another port with -p", self.port)
            })?;
            let address = context.address().context("the device has no address")?;
            self.print_waiting(format_args!("{address} port {} of rdma_cm", self.port), plan, output)?;
            let datagrams = match plan.connection {
                // The service must exist before the client asks for it.
                Connection::Ud if plan.rdma_cm => Some(context.listen(PortSpace::Udp, self.port)?),
                _ => None,
            };
            let (stream, caller) = Messages::accept(context, &listener, &parameters, None)
                .context("cannot accept the client")?;
            let method = if plan.rdma_cm {
                ConnectMethod::Accept(datagrams.unwrap_or(listener))
            } else {
                ConnectMethod::Keys(Some(PeerAddresses::of_caller(caller.ip()).and(&self.allow_peer)))
            };
            return Ok((stream, method));
        };
        let stream = Messages::connect(context, server, &parameters, LISTENING).with_context(|| {
            format!(
                "cannot connect to {server} through rdma_cm; check that {} runs there with{}",
                plan.program(),
                exchange_option(plan)
            )
        })?;
        Ok((stream, if plan.rdma_cm { ConnectMethod::Connect(server) } else { ConnectMethod::Keys(None) }))
    }
}

/// Returns the option of the other side for an exchange over rdma_cm.
fn exchange_option(plan: &Plan) -> &'static str {
    match (plan.rdma_cm, plan.comm_rdma_cm) {
        (true, _) => " -R",
        (false, true) => " -z",
        (false, false) => "",
    }
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let mut plan = args.plan();
    plan.check()?;
    let server = args.server()?;
    let role = if server.is_some() { Role::Client } else { Role::Server };
    if plan.rdma_cm || plan.comm_rdma_cm {
        let context = args.open(server)?;
        let (stream, method) = args.connect_cm(&context, server, &plan, output)?;
        if plan.gid_index.is_none() && !plan.rdma_cm {
            plan.gid_index = server.and_then(|server| context.gid_towards(server.ip()));
        }
        let mut session = Session::open(&context, &plan, stream, role, &method)?;
        measure(args, &plan, &context, &mut session, output)
    } else {
        let (context, stream, allowed) = args.connect_tcp(server, &plan, output)?;
        if plan.gid_index.is_none() {
            plan.gid_index = context.gid_towards(stream.peer_addr().ip().to_canonical());
        }
        let mut session = Session::open(&context, &plan, stream, role, &ConnectMethod::Keys(allowed))?;
        measure(args, &plan, &context, &mut session, output)
    }
}

/// Runs the test and prints the results.
fn measure<S: Stream>(
    args: &Args,
    plan: &Plan,
    context: &Context,
    session: &mut Session<S>,
    output: &mut Output,
) -> anyhow::Result<ExitCode> {
    let is_table = !args.json && args.output.is_none();
    if is_table {
        table::heading(output, plan, context, session)?;
        output.flush()?;
    }
    // A test without end prints its own rows.
    let progress = (!matches!(plan.length, Length::Endless { .. })).then(|| Progress::of(context));
    let rows = session.run(&mut |row| {
        match args.output {
            Some(figure) => table::figure(output, plan, row, figure)?,
            None if args.json => {}
            None => table::row(output, plan, row, (args.report_unsorted, args.report_histogram))?,
        }
        output.flush()
    });
    drop(progress);
    let rows = rows?;
    if args.json {
        let document = json!({
            "program": plan.program(),
            "role": if session.role() == Role::Client { "client" } else { "server" },
            "device": context.query().capabilities.kind,
            "connection": plan.connection, "bidirectional": plan.bidirectional, "rdma_cm": plan.rdma_cm,
            "queue_pairs": plan.num_qp, "tx_depth": plan.tx_depth, "cq_mod": plan.cq_mod, "post_list": plan.post_list, "in_flight": plan.in_flight,
            "path_mtu": session.agreement().mtu.bytes(), "length": plan.length,
            "peer_version": session.agreement().version, "peer_is_roce": session.agreement().is_ours,
            "rows": rows,
        });
        super::document::print(output, "perf", &document)?;
    } else if is_table {
        table::line(output)?;
        let retransmitted: u64 = rows.iter().map(|row| row.retransmitted_packets).sum();
        if retransmitted > 0 {
            writeln!(output, "{retransmitted} packets were retransmitted")?;
        }
    }
    if args.out_json {
        let document = json::document(plan, context, session, &rows);
        let path = &args.out_json_file;
        std::fs::write(path, serde_json::to_vec_pretty(&document)?).with_context(|| {
            format!("cannot write {}; choose another file with --out_json_file", path.display())
        })?;
    }
    output.flush()?;
    session.linger();
    Ok(if is_fast_enough(args, plan, &rows) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns whether every row reaches the limits of -w and -y. Prints the first row that does not.
fn is_fast_enough(args: &Args, plan: &Plan, rows: &[Row]) -> bool {
    for Row { size, bandwidth, .. } in rows {
        let Some(Bandwidth { average, .. }) = bandwidth else { continue };
        let unit = if plan.gigabits { "Gb/s" } else { "MB/s" };
        for (limit, found, unit) in [
            (args.limit_bw, average.bandwidth(plan.gigabits), unit),
            (args.limit_msgrate, average.messages_per_s / 1e6, "million messages/s"),
        ] {
            if let Some(limit) = limit.filter(|limit| found < *limit) {
                print_error(&format!(
                    "{size} bytes: {found:.6} {unit} are below the limit of {limit} {unit}"
                ));
                return false;
            }
        }
    }
    true
}
