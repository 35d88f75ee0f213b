//! The connection that both measurements run on: its set-up, and the course of a measurement.

use std::time::Duration;

use roce_packet::PathMtu;
use roce_transport::{Access, Counters, QpType, RKey, Wc};
use serde::{Deserialize, Serialize};

use super::usage::Stopwatch;
use super::{Completion, Op, Plan, Row, Side, Tool, blast, ping};
use crate::exchange::Exchange;
use crate::harness::{
    CompletionQueues, Requirements, Resources, ToolError, check_completion, source_address, wait_for_event,
    wait_spinning,
};
use roce::verbs::{CompletionQueue, ConnectOptions, Context, Endpoint, PathOptions};

/// The time limit for a completion.
const PATIENCE: Duration = Duration::from_secs(30);

/// What each side sends before the first message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Introduction {
    endpoint: Endpoint,
    addr: u64,
    rkey: u32,
}

/// The result of one side for a size.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Report {
    #[serde(rename = "Done")]
    Finished(Side),
    Failed(String),
}

/// One end of a measurement.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) plan: Plan,
    pub(super) resources: Resources,
    pub(super) remote_addr: u64,
    pub(super) remote_rkey: RKey,
    pub(super) exchange: Exchange,
    /// Receives posted and completed since the start.
    pub(super) receives_posted: u64,
    pub(super) receives_taken: u64,
    context: Context,
}

impl Session {
    fn new(
        context: &Context,
        mut exchange: Exchange,
        plan: Plan,
        gid_index: Option<usize>,
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
                    Completion::Poll => CompletionQueues::Separate,
                },
                memory: plan.stride() * plan.receives(),
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            },
        )?;
        let Resources { qp, region, .. } = &resources;
        let endpoint = Endpoint { address, ..qp.endpoint()? };
        let own = Introduction { endpoint, addr: region.addr(), rkey: region.rkey().0 };
        let other: Introduction = exchange.swap("the other side's queue pair", &own)?;
        let path_mtu = PathMtu::from_bytes(plan.path_mtu).unwrap_or(PathMtu::Mtu1024);
        let path = PathOptions::default().sgid_index(sgid_index);
        let connect = ConnectOptions::default().path_mtu(path_mtu).path(path).timeout(plan.timeout);
        qp.connect(&other.endpoint, &connect)?;
        let (remote_addr, remote_rkey) = (other.addr, RKey(other.rkey));
        let context = context.clone();
        let (receives_posted, receives_taken) = (0, 0);
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
            timeouts: after.local_ack_timeout_err - before.local_ack_timeout_err,
            rnr_naks: after.rnr_nak_retry_err - before.rnr_nak_retry_err,
        }
    }

    /// Waits for completions of sends.
    pub(super) fn sends(&self, out: &mut [Wc]) -> Result<usize, ToolError> {
        self.completions(&self.resources.send_cq, out, "waiting for the peer to acknowledge messages")
    }

    /// Waits for completions of receives.
    pub(super) fn receives(&self, out: &mut [Wc]) -> Result<usize, ToolError> {
        self.completions(&self.resources.recv_cq, out, "waiting for a message of the peer")
    }

    /// Waits for completions as the plan says. Every one of them must be a success.
    fn completions(&self, cq: &CompletionQueue, out: &mut [Wc], progress: &str) -> Result<usize, ToolError> {
        let waited = match self.plan.completion {
            Completion::Poll => wait_spinning(cq, out, PATIENCE),
            Completion::Event => wait_for_event(cq, out, PATIENCE, &mut 0),
        };
        let stalled =
            || ToolError::Stalled { progress: progress.into(), patience: PATIENCE, is_reliable: true };
        let count = waited.map_err(|error| ToolError::of_wait(error, stalled))?;
        out.iter().take(count).try_for_each(|wc| check_completion(&self.resources.reason(wc)))?;
        Ok(count)
    }
}

/// The counters and times at the start of a measurement.
#[derive(Debug)]
pub(super) struct Measurement {
    stopwatch: Stopwatch,
    before: Counters,
}

/// The span of one side of a measurement.
fn session_span(side: &'static str, plan: &Plan, exchange: &Exchange) -> tracing::Span {
    tracing::info_span!("session", side, tool = ?plan.tool, op = ?plan.op, peer = exchange.peer())
}

/// Runs the client of a measurement: It calls `progress` with each finished row. `gid_index` chooses the
/// GID to send from; without it, it is the first of the exchange's IP version.
///
/// # Errors
///
/// When the plan cannot be carried out, the other side is missing or fails, or a message has the wrong content.
pub fn run_client(
    context: &Context,
    mut exchange: Exchange,
    plan: &Plan,
    gid_index: Option<usize>,
    progress: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, ToolError> {
    let _session = session_span("client", plan, &exchange).entered();
    plan.check()?;
    exchange.send("the plan", plan)?;
    if let Some(refusal) = exchange.receive::<Option<String>>("the answer to the plan")? {
        return Err(ToolError::Peer(format!("failed: {refusal}")));
    }
    let mut session = Session::new(context, exchange, plan.clone(), gid_index)?;
    let mut rows = Vec::new();
    for &size in &plan.sizes {
        let _size = tracing::debug_span!("size", bytes = size).entered();
        session.exchange.barrier()?;
        let measured = match plan.tool {
            Tool::Ping => ping::client(&mut session, size),
            Tool::Blast => blast::client(&mut session, size),
        };
        let own = match &measured {
            Ok(row) => Report::Finished(row.client),
            Err(error) => Report::Failed(error.to_string()),
        };
        let other = session.exchange.swap("the report", &own);
        let mut row = measured?;
        match other? {
            Report::Finished(side) => row.server = side,
            Report::Failed(reason) => return Err(ToolError::Peer(format!("failed: {reason}"))),
        }
        progress(&row);
        rows.push(row);
    }
    session.exchange.barrier()?;
    Ok(rows)
}

/// Runs the server of one measurement and returns the client's plan. `gid_index` as in [`run_client`].
///
/// # Errors
///
/// As [`run_client`].
pub fn serve(context: &Context, mut exchange: Exchange, gid_index: Option<usize>) -> Result<Plan, ToolError> {
    let plan: Plan = exchange.receive_first("the plan")?;
    let _session = session_span("server", &plan, &exchange).entered();
    let path_mtu = PathMtu::from_bytes(plan.path_mtu);
    let refusal = match (plan.check(), path_mtu, context.largest_path_mtu()) {
        (Err(error), ..) => Some(error.to_string()),
        (_, None, _) => {
            Some(format!("{} is not a path MTU; use 256, 512, 1024, 2048 or 4096", plan.path_mtu))
        }
        (_, Some(wanted), Some(most)) if wanted.bytes() > most.bytes() => Some(format!(
            "path MTU {} is larger than the link of the server allows; use --mtu {} or less",
            wanted.bytes(),
            most.bytes()
        )),
        _ => None,
    };
    exchange.send("the answer to the plan", &refusal)?;
    if let Some(refusal) = refusal {
        return Err(ToolError::Peer(format!("asked for a plan that cannot be carried out: {refusal}")));
    }
    let mut session = Session::new(context, exchange, plan, gid_index)?;
    for size in session.plan.sizes.clone() {
        let _size = tracing::debug_span!("size", bytes = size).entered();
        match session.plan.tool {
            Tool::Ping => ping::prepare_server(&mut session, size),
            Tool::Blast => blast::prepare_server(&mut session, size),
        }?;
        session.exchange.barrier()?;
        let served = match session.plan.tool {
            Tool::Ping => ping::server(&mut session, size),
            Tool::Blast => blast::server(&mut session, size),
        };
        let own = match &served {
            Ok(side) => Report::Finished(*side),
            Err(error) => Report::Failed(error.to_string()),
        };
        let other: Report = session.exchange.swap("the report", &own)?;
        // A client that failed has not written everything, so a wrong content is not an error of its own.
        let is_passive = session.plan.op == Op::Write && session.plan.tool == Tool::Blast;
        if !is_passive || matches!(other, Report::Finished(_)) {
            served?;
        }
        if let Report::Failed(reason) = other {
            return Err(ToolError::Peer(format!("failed: {reason}")));
        }
    }
    session.exchange.barrier()?;
    Ok(session.plan)
}
