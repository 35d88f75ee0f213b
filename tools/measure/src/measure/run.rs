//! Client and server of both measurements: the steps of a measurement.

use std::time::Instant;

use roce_exchange::{Exchange, ToolError, tell_failure};
use roce_packet::PathMtu;

use super::session::Session;
use super::{Plan, Row, Side, Tool, blast, ping};
use crate::harness::{DropWatch, Role};
use roce::verbs::Context;

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

/// A client that a server has served.
#[derive(Clone, Debug)]
pub struct Served {
    /// The client's plan.
    pub plan: Plan,
    /// The results by the clock of the server, one for each size, with the counters of both sides. They have
    /// no percentiles, because only the client times each round trip.
    pub rows: Vec<Row>,
    /// When the first size began.
    pub began: Instant,
    /// When the last size ended.
    pub ended: Instant,
}

impl Served {
    /// Returns the number of messages of all sizes.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.plan.messages().saturating_mul(self.rows.len() as u64)
    }

    /// Returns the number of bytes of all messages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |row: &Row| self.plan.messages().saturating_mul(row.size as u64);
        self.rows.iter().map(bytes).fold(0, u64::saturating_add)
    }
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

/// Runs the server of one measurement and returns its results. Several threads may serve clients on one
/// context.
///
/// # Errors
///
/// The errors of [`run_client`]. The client is told of every error that is not its own.
pub fn serve(
    context: &Context,
    mut exchange: Exchange,
    options: &ServerOptions,
) -> Result<Served, ToolError> {
    let watch = DropWatch::start(context);
    let served = watch.explain(serve_client(context, &mut exchange, options));
    tell_failure(&mut exchange, &served);
    served
}

fn serve_client(
    context: &Context,
    exchange: &mut Exchange,
    options: &ServerOptions,
) -> Result<Served, ToolError> {
    exchange.greet(TOOL)?;
    let plan: Plan = exchange.receive("the plan")?;
    let _session = session_span("server", &plan, exchange).entered();
    check_plan(context, &plan, options)?;
    exchange.send("the answer to the plan", &())?;
    let mut session = Session::new(context, exchange, plan, options.gid_index, Role::Server)?;
    let (mut rows, began) = (Vec::with_capacity(session.plan.sizes.len()), Instant::now());
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
        let client: Side = session.exchange.swap("the report", &own)?;
        let row = Row::new(&session.plan, size, own.cpu.wall_s, client);
        rows.push(Row { server: own, ..row });
    }
    let ended = Instant::now();
    session.exchange.barrier()?;
    Ok(Served { plan: session.plan, rows, began, ended })
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::measure::{Completion, Op, Post, Signal};

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
