//! The connection of both measurements: its set-up, and the steps of a measurement.

use std::time::{Duration, Instant};

use roce_exchange::{
    CompletionQueues, Exchange, Requirements, Resources, ToolError, source_address, tell_failure,
};
use roce_packet::PathMtu;
use roce_transport::{Access, Counters, QpType, RKey, Wc, WcStatus};
use serde::{Deserialize, Serialize};

use super::usage::Stopwatch;
use super::{Completion, Plan, Row, Side, Tool, blast, ping};
use crate::harness::{CompletionWait, DropWatch, Role, check_completion, spin};
use roce::verbs::{ConnectOptions, Context, Endpoint, PathOptions};

/// Time limit for a completion.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which a side that polls its memory also checks whether the other side has ended.
const WATCH_EVERY: Duration = Duration::from_millis(20);
/// The tool name in the greetings of the two sides.
const TOOL: &str = "ping` or `roce blast";
/// Default limit of the memory that a server allocates for a client.
pub const DEFAULT_MEMORY: usize = 256 << 20;

/// The options of a server that do not depend on the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// The GID to send from. Default: the first GID of the exchange's IP version.
    pub gid_index: Option<usize>,
    /// Maximum number of bytes of memory for the messages of a client.
    pub max_memory: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { gid_index: None, max_memory: DEFAULT_MEMORY }
    }
}

/// The description that each side sends before the first message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Introduction {
    endpoint: Endpoint,
    addr: u64,
    rkey: u32,
}

/// One side of a measurement.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) plan: Plan,
    pub(super) resources: Resources,
    pub(super) remote_addr: u64,
    pub(super) remote_rkey: RKey,
    pub(super) exchange: &'a mut Exchange,
    /// Receives posted since the start.
    pub(super) receives_posted: u64,
    pub(super) receives_taken: u64,
    context: Context,
}

impl<'a> Session<'a> {
    fn new(
        context: &Context,
        exchange: &'a mut Exchange,
        plan: Plan,
        gid_index: Option<usize>,
        role: Role,
    ) -> Result<Self, ToolError> {
        let sgid_index = gid_index.or_else(|| context.gid_towards(exchange.peer_address()));
        let address = source_address(context, sgid_index)?;
        let resources = Resources::new(
            context,
            &Requirements {
                qp_type: QpType::Rc,
                capabilities: plan.capabilities(),
                completion_queues: match plan.completion {
                    Completion::Event => CompletionQueues::WithChannels,
                    Completion::Poll | Completion::Memory => CompletionQueues::Separate,
                },
                memory: plan.memory(),
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            },
        )?;
        let Resources { qp, region, .. } = &resources;
        let endpoint = Endpoint { address, ..qp.endpoint()? };
        let own = Introduction { endpoint, addr: region.addr(), rkey: region.rkey().0 };
        let other: Introduction = exchange.swap("the other side's queue pair", &own)?;
        if role == Role::Server {
            exchange.peers().check(other.endpoint.address)?;
        }
        check_memory_of_peer(other.addr, plan.memory())?;
        let path_mtu = PathMtu::from_bytes(plan.path_mtu).unwrap_or(PathMtu::Mtu1024);
        let path = PathOptions::default().sgid_index(sgid_index);
        let connect = ConnectOptions::default().path_mtu(path_mtu).path(path).timeout(plan.timeout);
        qp.connect(&other.endpoint, &connect)?;
        let (remote_addr, remote_rkey) = (other.addr, RKey(other.rkey));
        let context = context.clone();
        let (receives_posted, receives_taken) = (0, 0);
        // The set-up is over for both sides. In `roce demo`, the client is the side that was called.
        exchange.limit(None);
        Ok(Self {
            plan,
            resources,
            remote_addr,
            remote_rkey,
            exchange,
            receives_posted,
            receives_taken,
            context,
        })
    }

    /// Starts measuring this side.
    pub(super) fn measure(&self) -> Measurement {
        Measurement { stopwatch: Stopwatch::start(), before: self.context.counters() }
    }

    pub(super) fn side(&self, measurement: &Measurement) -> Side {
        let cpu = measurement.stopwatch.stop();
        let (before, after) = (&measurement.before, self.context.counters());
        Side {
            cpu,
            retransmitted_packets: after.retransmitted_packets - before.retransmitted_packets,
            timeouts: after.expired_timers() - before.expired_timers(),
            rnr_naks: after.rnr_nak_retry_err - before.rnr_nak_retry_err,
        }
    }

    /// Polls memory until an attempt succeeds, as long as the other side is there.
    pub(super) fn spin_on_memory(
        &mut self,
        attempt: &mut dyn FnMut(&Self) -> Result<Option<()>, ToolError>,
    ) -> Result<(), ToolError> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let found = spin(WATCH_EVERY, || {
                // Memory is checked first, because a message that has been written must be answered before
                // more packets are read.
                let found = attempt(self)?;
                if found.is_none() {
                    self.context.progress();
                }
                Ok::<_, ToolError>(found)
            })?;
            if found.is_some() {
                return Ok(());
            }
            self.exchange.watch()?;
        }
        Err(stalled("waiting for a WRITE of the peer"))
    }

    /// Returns the number of packets that have arrived here.
    pub(super) fn packets(&self) -> u64 {
        self.context.counters().rdma_rx_packets
    }

    /// Waits for completions of sends.
    pub(super) fn sends(&mut self, out: &mut [Wc]) -> Result<usize, ToolError> {
        self.completions(true, out)
    }

    /// Waits for completions of receives.
    pub(super) fn receives(&mut self, out: &mut [Wc]) -> Result<usize, ToolError> {
        self.completions(false, out)
    }

    /// Waits for completions as the plan says, as long as the other side is there. Every completion must be
    /// successful.
    fn completions(&mut self, of_sends: bool, out: &mut [Wc]) -> Result<usize, ToolError> {
        let Self { resources, exchange, plan, .. } = self;
        let wait = CompletionWait {
            cq: if of_sends { &resources.send_cq } else { &resources.recv_cq },
            by_event: plan.completion == Completion::Event,
            patience: PATIENCE,
        };
        let Some(count) = wait.run(out, &mut || Ok(exchange.watch()?))? else {
            return Err(stalled(if of_sends {
                "waiting for the peer to acknowledge messages"
            } else {
                "waiting for a message of the peer"
            }));
        };
        if let Some(failed) = out.iter().take(count).find(|wc| wc.status != WcStatus::Success) {
            check_completion(resources.context(), &resources.reason(failed))?;
        }
        Ok(count)
    }
}

/// Returns the error if nothing has arrived for [`PATIENCE`].
pub(super) fn stalled(progress: &str) -> ToolError {
    ToolError::Stalled { progress: progress.into(), patience: PATIENCE, is_reliable: true }
}

/// Checks that the addresses of buffers on the other side, which are sums, do not overflow.
fn check_memory_of_peer(addr: u64, len: usize) -> Result<(), ToolError> {
    if addr.checked_add(len as u64).is_some() {
        return Ok(());
    }
    Err(ToolError::Peer(format!(
        "has its memory at address {addr:#x}, where {len} bytes do not fit; run the same version on both sides"
    )))
}

/// The counters and times at the start of a measurement.
#[derive(Debug)]
pub(super) struct Measurement {
    stopwatch: Stopwatch,
    before: Counters,
}

/// Returns the span of one side of a measurement.
fn session_span(side: &'static str, plan: &Plan, exchange: &Exchange) -> tracing::Span {
    tracing::info_span!("session", side, tool = ?plan.tool, op = ?plan.op, peer = exchange.peer())
}

/// Runs the client of a measurement, and calls `progress` with each finished row. `gid_index` selects the GID
/// to send from. The default is the first GID of the exchange's IP version.
///
/// # Errors
///
/// The plan cannot be carried out, the other side is missing or fails, or a message has the wrong content.
pub fn run_client(
    context: &Context,
    mut exchange: Exchange,
    plan: &Plan,
    gid_index: Option<usize>,
    progress: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, ToolError> {
    let _session = session_span("client", plan, &exchange).entered();
    plan.check()?;
    let watch = DropWatch::start(context);
    let rows = watch.explain(measure(context, &mut exchange, plan, gid_index, progress));
    tell_failure(&mut exchange, &rows);
    rows
}

fn measure(
    context: &Context,
    exchange: &mut Exchange,
    plan: &Plan,
    gid_index: Option<usize>,
    progress: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, ToolError> {
    exchange.greet(TOOL)?;
    // The server answers with null, or with the reason why the plan is impossible.
    let () = exchange.swap("the plan", plan)?;
    let mut session = Session::new(context, exchange, plan.clone(), gid_index, Role::Client)?;
    let mut rows = Vec::new();
    for &size in &plan.sizes {
        let _size = tracing::debug_span!("size", bytes = size).entered();
        session.exchange.barrier()?;
        let mut row = match plan.tool {
            Tool::Ping => ping::client(&mut session, size),
            Tool::Blast => blast::client(&mut session, size),
        }?;
        row.server = session.exchange.swap("the report", &row.client)?;
        progress(&row);
        rows.push(row);
    }
    session.exchange.barrier()?;
    Ok(rows)
}

/// Runs the server of one measurement and returns the client's plan.
///
/// # Errors
///
/// The errors of [`run_client`]. The client is told of every error that is not its own.
pub fn serve(context: &Context, mut exchange: Exchange, options: &ServerOptions) -> Result<Plan, ToolError> {
    let watch = DropWatch::start(context);
    let plan = watch.explain(serve_client(context, &mut exchange, options));
    tell_failure(&mut exchange, &plan);
    plan
}

fn serve_client(
    context: &Context,
    exchange: &mut Exchange,
    options: &ServerOptions,
) -> Result<Plan, ToolError> {
    exchange.greet(TOOL)?;
    let plan: Plan = exchange.receive("the plan")?;
    let _session = session_span("server", &plan, exchange).entered();
    check_plan(context, &plan, options)?;
    exchange.send("the answer to the plan", &())?;
    let mut session = Session::new(context, exchange, plan, options.gid_index, Role::Server)?;
    for size in session.plan.sizes.clone() {
        let _size = tracing::debug_span!("size", bytes = size).entered();
        match session.plan.tool {
            Tool::Ping => ping::prepare_server(&mut session, size),
            Tool::Blast => blast::prepare_server(&mut session, size),
        }?;
        session.exchange.barrier()?;
        let own = match session.plan.tool {
            Tool::Ping => ping::server(&mut session, size),
            Tool::Blast => blast::server(&mut session, size),
        }?;
        let _: Side = session.exchange.swap("the report", &own)?;
    }
    session.exchange.barrier()?;
    Ok(session.plan)
}

/// Checks the plan of a client.
fn check_plan(context: &Context, plan: &Plan, options: &ServerOptions) -> Result<(), ToolError> {
    let refuse =
        |text: String| Err(ToolError::Peer(format!("asked for a plan that cannot be carried out: {text}")));
    if let Err(error) = plan.check() {
        return refuse(error.to_string());
    }
    if plan.memory() > options.max_memory {
        return refuse(format!(
            "it needs {} bytes of memory, but this server allows {}; start the server with --max-memory {}, \
             or use fewer --buffers or a smaller --size",
            plan.memory(),
            options.max_memory,
            plan.memory()
        ));
    }
    let Some(wanted) = PathMtu::from_bytes(plan.path_mtu) else {
        return refuse(format!("{} is not a path MTU; use 256, 512, 1024, 2048 or 4096", plan.path_mtu));
    };
    match context.largest_path_mtu() {
        Some(most) if wanted.bytes() > most.bytes() => refuse(format!(
            "path MTU {} is larger than the link of the server allows; use --mtu {} or less",
            wanted.bytes(),
            most.bytes()
        )),
        _ => Ok(()),
    }
}

/// Detects, for a server that only waits, that no packets arrive. The server then need not poll all the time.
#[derive(Debug)]
pub(super) struct Quiet {
    packets: u64,
    since: Instant,
}

impl Quiet {
    pub(super) fn new(session: &Session<'_>) -> Self {
        Self { packets: session.packets(), since: Instant::now() }
    }

    /// Returns the time since the last packet.
    pub(super) fn elapsed(&mut self, session: &Session<'_>) -> Duration {
        let packets = session.packets();
        if packets != self.packets {
            *self = Self { packets, since: Instant::now() };
        }
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::measure::{Op, Post, Signal};

    #[test]
    fn memory_of_the_peer_that_does_not_fit_into_64_bits_is_refused() {
        assert!(check_memory_of_peer(u64::MAX - 64, 64).is_ok());
        for addr in [u64::MAX, u64::MAX - 63] {
            let error = check_memory_of_peer(addr, 64).unwrap_err().to_string();
            assert!(error.contains("do not fit") && error.contains(&format!("{addr:#x}")), "{error}");
        }
    }

    /// Regression: the client of `roce demo`, which is the side that was called, kept the time limit of the
    /// set-up. A measurement of more than 30 s on a busy machine failed.
    #[test]
    fn a_client_that_was_called_has_no_limit_while_it_measures() {
        let open = || Context::builder().open(&format!("udp:{}", roce_testing::own_address())).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let exchange = Exchange::connect_as(address.ip(), address).unwrap();
            serve(&open(), exchange.allow_any_peer(), &ServerOptions::default()).unwrap();
        });
        let plan = Plan {
            tool: Tool::Ping,
            op: Op::Send,
            sizes: vec![64],
            iterations: 2,
            buffers: 16,
            inline: false,
            completion: Completion::Poll,
            post: Post::List,
            signal: Signal::Full,
            path_mtu: 1024,
            timeout: 14,
        };
        let mut exchange = Exchange::accept_from(&listener).unwrap().allow_any_peer();
        let rows = measure(&open(), &mut exchange, &plan, None, &mut |_| {}).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(!exchange.is_limited());
        server.join().unwrap();
    }
}
