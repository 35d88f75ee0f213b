//! `roce ping` and `roce blast`: two measurements with one set of options.

mod clients;
pub(super) mod table;

use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::bail;
use roce_packet::PathMtu;
use serde::Serialize;

use super::choices::{COMPLETIONS, OPS, POSTS, SIGNALS, one_of};
use super::connect::{EXCHANGE_PORT, connect_when_listening, resolve};
use super::default_device::device_towards;
use super::device_options::DeviceArgs;
use super::errors::with_causes;
use super::listen::{Announcement, Contexts, next_client, option};
use super::progress::Progress;
use super::sizes::{parse_mtu, parse_size};
use super::terminal::Output;
use roce::verbs::Context;
use roce_exchange::{ClientQueue, Exchange, ExchangeError};
use roce_measure::measure::{
    self, Clients, Completion, DEFAULT_MEMORY, Limits, Op, Plan, Post, Row, ServerOptions, Signal, Tool,
};
use table::{print_columns, print_row, test};

/// Measure latency: the two sides send messages in turn
///
/// Start `roce ping` on one side, which is the server, and `roce ping SERVER` on the other side. The reported
/// time is half a round trip. --op write is a WRITE followed by a READ of the same bytes; with --completion
/// memory each side writes and watches its memory for the message of the other side. The receiver verifies
/// every message. A client that runs for more than 10 seconds reports its progress on standard error every 10
/// seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct PingArgs {
    #[command(flatten)]
    common: MeasureArgs,
    /// Round trips for each size
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10_000)]
    iterations: u64,
    /// Number of send buffers: with --signal periodic, one of N/2 requests is signaled
    #[arg(long, value_name = "N", default_value_t = 16)]
    buffers: usize,
}

/// Measure throughput: many messages in one direction
///
/// Start `roce blast` on one side, which is the server, and `roce blast SERVER` on the other side. The
/// reported time is the elapsed time divided by the number of messages. The receiver checks every message,
/// and verifies the last ones byte by byte. A client that runs for more than 10 seconds reports its progress
/// on standard error every 10 seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct BlastArgs {
    #[command(flatten)]
    common: MeasureArgs,
    /// Messages for each size
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20_000)]
    iterations: u64,
    /// Number of messages in flight [default: as many as fit in 1 MiB, from 16 to 256]
    #[arg(long, value_name = "N")]
    buffers: Option<usize>,
}

#[derive(Debug, clap::Args)]
struct MeasureArgs {
    /// Address or name of the server; if omitted, this side is the server
    server: Option<String>,

    /// Operation that transfers the messages
    #[arg(long, value_parser = one_of(OPS), default_value = "send")]
    op: Op,

    /// Message size in bytes; may be given several times
    #[arg(long, short, value_name = "BYTES", value_parser = parse_size)]
    size: Vec<usize>,

    /// Message sizes from A to B, each twice the previous one
    #[arg(long, value_name = "A..B", value_parser = parse_range, conflicts_with = "size")]
    sizes: Option<Sizes>,

    /// Post messages inline (up to 512 bytes)
    #[arg(long)]
    inline: bool,

    /// How to wait for completions
    #[arg(long, value_parser = one_of(COMPLETIONS), default_value = "poll")]
    completion: Completion,

    /// How to post work requests
    #[arg(long, value_parser = one_of(POSTS), default_value = "list")]
    post: Post,

    /// Which send requests are signaled: all, or one of N/2
    #[arg(long, value_parser = one_of(SIGNALS), default_value = "full")]
    signal: Signal,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that fits the link MTU]
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,

    /// Local ACK timeout exponent: 4.096 us x 2^N, but at least 537 ms
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    timeout: u8,

    /// Index of the GID to send from [default: the first with the IP version of the exchange]
    #[arg(long, short = 'x', value_name = "INDEX")]
    gid_index: Option<usize>,

    /// TCP port of the exchange before the measurement
    #[arg(long, short, value_name = "PORT", default_value_t = EXCHANGE_PORT)]
    port: u16,

    /// Maximum memory for the messages of one client; larger plans are refused
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value_t = DEFAULT_MEMORY)]
    max_memory: usize,

    /// Server: also send packets to this address if a client that connects from another address requests it;
    /// may be given several times
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    allow_peer: Vec<IpAddr>,

    /// Server: serve up to N clients at once and refuse others; then print totals [default: one client at
    /// once, and others wait]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: Option<u16>,

    /// Server: exit after one client, or after N clients with --clients N
    #[arg(long)]
    once: bool,

    /// Print JSON; a server does so only with --clients
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Debug)]
struct Sizes(Vec<usize>);

fn parse_range(text: &str) -> Result<Sizes, String> {
    let (first, last) =
        text.split_once("..").ok_or("expected the first and the last size, such as 1..1048576")?;
    let (first, last) = (parse_size(first)?, parse_size(last)?);
    if first == 0 || first > last {
        return Err(format!(
            "{first}..{last} is an empty range; the first size must be at least 1 and at most the last"
        ));
    }
    let doubled = std::iter::successors(Some(first), |size| size.checked_mul(2));
    Ok(Sizes(doubled.take_while(|size| *size <= last).collect()))
}

pub(super) fn ping(args: &PingArgs, output: &mut Output) -> anyhow::Result<ExitCode> {
    args.common.run(Tool::Ping, args.iterations, Some(args.buffers), output)
}

pub(super) fn blast(args: &BlastArgs, output: &mut Output) -> anyhow::Result<ExitCode> {
    args.common.run(Tool::Blast, args.iterations, args.buffers, output)
}

impl MeasureArgs {
    fn run(
        &self,
        tool: Tool,
        iterations: u64,
        buffers: Option<usize>,
        output: &mut Output,
    ) -> anyhow::Result<ExitCode> {
        match &self.server {
            None => self.serve(tool, output),
            Some(server) => self.client(tool, iterations, buffers, server, output),
        }
    }

    fn serve(&self, tool: Tool, output: &mut Output) -> anyhow::Result<ExitCode> {
        let (mut contexts, listening) = Contexts::listen(&self.device, self.port)?;
        if !self.json {
            let announcement = Announcement {
                command: format!("roce {}", name_of(tool)),
                options: option("--port", listening.port(), EXCHANGE_PORT),
                other_program: None,
            };
            announcement.print(output, contexts.address(), &listening)?;
        }
        let options = ServerOptions { gid_index: self.gid_index, max_memory: self.max_memory };
        if let Some(at_once) = self.clients {
            let at_once = usize::from(at_once);
            let in_all = self.once.then_some(at_once);
            let limits = Limits { at_once, in_all, allow_peers: self.allow_peer.clone() };
            let clients = Clients::new(listening, limits, options);
            let command = if self.json { Some(name_of(tool)) } else { None };
            return clients::serve(clients, contexts, &self.device, command, output);
        }
        let clients = ClientQueue::new(listening)?;
        loop {
            let (exchange, context) =
                next_client(&clients, &self.allow_peer, |exchange| contexts.open(exchange.called()))?;
            let peer = exchange.peer().to_owned();
            let served = context.and_then(|context| Ok(measure::serve(&context, exchange, &options)?));
            match served {
                Ok(served) if !self.json => writeln!(output, "served {peer}: {}", test(&served.plan))?,
                Ok(_) => {}
                Err(error) if self.once => return Err(error),
                Err(error) => {
                    contexts.forget();
                    writeln!(output, "{peer}: {}", with_causes(&error))?;
                }
            }
            output.flush()?;
            self.device.flush_captures();
            if self.once {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    fn plan(&self, tool: Tool, iterations: u64, buffers: Option<usize>, mtu: PathMtu) -> Plan {
        let sizes = match (&self.sizes, self.size.is_empty()) {
            (Some(Sizes(sizes)), _) => sizes.clone(),
            (None, false) => self.size.clone(),
            (None, true) if tool == Tool::Ping => vec![8],
            (None, true) => vec![65_536],
        };
        // The number is large enough that a round trip does not limit the rate, and small enough for a cache.
        let fitting = (1 << 20) / sizes.iter().copied().max().unwrap_or(0).max(1);
        Plan {
            tool,
            op: self.op,
            sizes,
            iterations,
            buffers: buffers.unwrap_or(fitting.clamp(16, 256)),
            inline: self.inline,
            completion: self.completion,
            post: self.post,
            signal: self.signal,
            path_mtu: mtu.bytes(),
            timeout: self.timeout,
        }
    }

    fn client(
        &self,
        tool: Tool,
        iterations: u64,
        buffers: Option<usize>,
        server: &str,
        output: &mut Output,
    ) -> anyhow::Result<ExitCode> {
        // This rejects an impossible plan before anything is opened.
        let plan = self.plan(tool, iterations, buffers, PathMtu::Mtu1024);
        plan.check()?;
        plan.check_memory(self.max_memory)?;
        let server = resolve(server, self.port)?;
        let context = self.device.open(|| device_towards(server))?;
        let Some(mtu) = self.mtu.or_else(|| context.largest_path_mtu()) else {
            bail!(
                "the link MTU of this device is too small for a path MTU of 256 bytes; raise the link MTU to 400 or more"
            );
        };
        let plan = self.plan(tool, iterations, buffers, mtu);
        let exchange = connect_when_listening(ExchangeError::is_refused, || {
            Exchange::connect_at(&context, self.gid_index, server, None)
        })?;
        let json = self.json;
        let mut has_heading = false;
        let progress = Progress::of(&context);
        let rows = measure::run_client(&context, exchange, &plan, self.gid_index, &mut |row| {
            if json {
                return;
            }
            // The heading is printed with the first row, so that it does not hide the error of a run that
            // fails at its start.
            let heading = if has_heading { Ok(()) } else { heading(output, &context, &plan) };
            has_heading = true;
            // The command reports a closed pipe at its end.
            let _ = heading.and_then(|()| print_row(output, tool, row)).and_then(|()| output.flush());
        });
        drop(progress);
        let rows = rows?;
        if json {
            print_json(output, &context, &plan, &rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The plan and the results.
#[derive(Serialize)]
struct Document<'a> {
    device: &'a str,
    plan: &'a Plan,
    rows: &'a [Row],
}

fn print_json(output: &mut Output, context: &Context, plan: &Plan, rows: &[Row]) -> anyhow::Result<()> {
    let device = context.query().capabilities.kind;
    let command = if plan.tool == Tool::Ping { "ping" } else { "blast" };
    super::document::print(output, command, &Document { device, plan, rows })?;
    Ok(())
}

const fn name_of(tool: Tool) -> &'static str {
    match tool {
        Tool::Ping => "ping",
        Tool::Blast => "blast",
    }
}

fn heading(output: &mut Output, context: &Context, plan: &Plan) -> std::io::Result<()> {
    let address = context.address().map_or_else(String::new, |address| address.to_string());
    let kind = context.query().capabilities.kind;
    let tool = name_of(plan.tool);
    let title = format!(
        "{tool} by {:?}, device {kind} {address}, path MTU {}, {} buffers, {:?} completion, {:?} posting, {:?} signals",
        plan.op, plan.path_mtu, plan.buffers, plan.completion, plan.post, plan.signal
    )
    .to_lowercase();
    writeln!(output, "{title}")?;
    print_columns(output, plan.tool)
}
