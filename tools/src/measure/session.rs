//! Two ends, connected and with memory registered: what both measurements run on.

use std::time::Duration;

use roce_packet::PathMtu;
use roce_transport::{Access, Counters, Notify, QpType, Wc, WcStatus};
use serde::{Deserialize, Serialize};

use super::usage::Stopwatch;
use super::{Completion, Op, Plan, PlanError, Row, Side, Tool, blast, ping};
use crate::exchange::{Exchange, ExchangeError};
use roce::observe::advice;
use roce::verbs::{
    CompletionQueue, ConnectOptions, Context, Endpoint, MemoryRegion, PathOptions, QueuePair,
    QueuePairOptions, VerbsError, WaitError,
};

/// How long nothing may happen before a measurement is given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The plan is impossible.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The device has no GID of this index.
    #[error("the device has no GID {0}; `roce devices --device DEVICE` lists them")]
    Gid(usize),
    /// The exchange with the other side.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A verb.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Nothing happened for a long time.
    #[error(
        "no completion within {} s: {waiting_for}; see whether the other side still runs, and use --pcap on both sides \
         to find out how far packets get",
        PATIENCE.as_secs()
    )]
    Stalled {
        /// What was awaited.
        waiting_for: &'static str,
    },
    /// Waiting failed.
    #[error(transparent)]
    Wait(WaitError),
    /// A work request failed.
    #[error(
        "work request {wr_id} failed with {} ({cause:?}) on queue pair {qpn}: {}",
        .status.name(),
        advice(*.status, *.cause)
    )]
    Completion {
        /// Its number.
        wr_id: u64,
        /// How.
        status: WcStatus,
        /// Why.
        cause: roce_transport::Cause,
        /// On which queue pair.
        qpn: u32,
    },
    /// A message arrived with the wrong content.
    #[error(
        "message {message} of {size} bytes is wrong at byte {at}: expected {expected:#04x}, found {found:#04x}; no damage \
         on the way does that, so record it with --pcap and report it"
    )]
    Content {
        /// Which message.
        message: u64,
        /// Its size.
        size: usize,
        /// First wrong byte.
        at: usize,
        /// What should be there.
        expected: u8,
        /// What is there.
        found: u8,
    },
    /// A message arrived with the wrong length or out of order.
    #[error(
        "expected message {expected} with {size} bytes, got number {found} with {len} bytes; no loss on the way does \
         that, so record it with --pcap and report it"
    )]
    Order {
        /// The message that was next.
        expected: u64,
        /// Its size.
        size: usize,
        /// What came.
        found: u64,
        /// How long that was.
        len: u32,
    },
    /// The histogram of round trips could not be made.
    #[error("histogram of round trips: {0}; measure fewer iterations at once")]
    Histogram(String),
    /// The other side gave up.
    #[error("the other side failed: {0}")]
    OtherSide(String),
}

/// What each side tells the other before it starts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Introduction {
    endpoint: Endpoint,
    addr: u64,
    rkey: u32,
}

/// How one side ended a size: with what it measured, or with what went wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Done(Side),
    Failed(String),
}

/// One end of a measurement.
#[derive(Debug)]
pub struct Session {
    pub(super) plan: Plan,
    pub(super) qp: QueuePair,
    pub(super) send_cq: CompletionQueue,
    pub(super) recv_cq: CompletionQueue,
    pub(super) region: MemoryRegion,
    pub(super) remote_addr: u64,
    pub(super) remote_rkey: roce_transport::RKey,
    pub(super) exchange: Exchange,
    /// Receives posted and taken since the start; their difference is what is posted now.
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
    ) -> Result<Self, PerfError> {
        let sgid_index = gid_index.or_else(|| context.gid_towards(exchange.peer_address()));
        let address = context.gid_address(sgid_index);
        if let (None, Some(index)) = (address, sgid_index) {
            return Err(PerfError::Gid(index));
        }
        let pd = context.alloc_pd()?;
        let channel = match plan.completion {
            Completion::Event => Some(context.create_channel()?),
            Completion::Poll => None,
        };
        let send_cq = context.create_cq(plan.buffers + 8, channel.as_ref())?;
        let channel = match plan.completion {
            Completion::Event => Some(context.create_channel()?),
            Completion::Poll => None,
        };
        let recv_cq = context.create_cq(plan.receives() + 8, channel.as_ref())?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.allocate(plan.stride() * plan.receives(), access)?;
        let options =
            QueuePairOptions::new(QpType::Rc, &send_cq).recv_cq(&recv_cq).capabilities(plan.capabilities());
        let qp = pd.create_qp(&options)?;
        let mut endpoint = qp.endpoint()?;
        endpoint.address = address.unwrap_or(endpoint.address);
        let own = Introduction { endpoint, addr: region.addr(), rkey: region.rkey().0 };
        let other: Introduction = exchange.swap("the other side's queue pair", &own)?;
        let path_mtu = PathMtu::from_bytes(plan.path_mtu).unwrap_or(PathMtu::Mtu1024);
        let path = PathOptions::default().sgid_index(sgid_index);
        let connect = ConnectOptions::default().path_mtu(path_mtu).path(path).timeout(plan.timeout);
        qp.connect(&other.endpoint, &connect)?;
        let (remote_addr, remote_rkey) = (other.addr, roce_transport::RKey(other.rkey));
        let context = context.clone();
        Ok(Self {
            plan,
            qp,
            send_cq,
            recv_cq,
            region,
            remote_addr,
            remote_rkey,
            exchange,
            receives_posted: 0,
            receives_taken: 0,
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

    /// Waits for completions as the plan says. Every one of them must be a success.
    pub(super) fn completions(
        &self,
        cq: &CompletionQueue,
        out: &mut [Wc],
        waiting_for: &'static str,
    ) -> Result<usize, PerfError> {
        let count = match self.plan.completion {
            Completion::Poll => spin(cq, out, waiting_for)?,
            Completion::Event => wait_for_event(cq, out, waiting_for)?,
        };
        for wc in out.iter().take(count) {
            check_completion(&self.reason_of(wc))?;
        }
        Ok(count)
    }

    /// Why a completion failed: a flushed one is only the consequence of another, which may lie in the other queue.
    fn reason_of(&self, failed: &Wc) -> Wc {
        if failed.status != WcStatus::WrFlushError {
            return *failed;
        }
        let mut others = [Wc::default(); 64];
        for cq in [&self.send_cq, &self.recv_cq] {
            while let Ok(count @ 1..) = cq.poll(&mut others) {
                let is_reason = |wc: &&Wc| !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushError);
                if let Some(reason) = others.iter().take(count).find(is_reason) {
                    return *reason;
                }
            }
        }
        *failed
    }
}

/// A measurement of one side that is running.
#[derive(Debug)]
pub(super) struct Measurement {
    stopwatch: Stopwatch,
    before: Counters,
}

pub(super) fn check_completion(wc: &Wc) -> Result<(), PerfError> {
    if wc.status == WcStatus::Success {
        return Ok(());
    }
    Err(PerfError::Completion { wr_id: wc.wr_id, status: wc.status, cause: wc.cause, qpn: wc.qpn.get() })
}

fn spin(cq: &CompletionQueue, out: &mut [Wc], waiting_for: &'static str) -> Result<usize, PerfError> {
    let mut tries = 0_u32;
    let mut started = None;
    loop {
        let count = cq.poll(out)?;
        if count > 0 {
            return Ok(count);
        }
        tries += 1;
        // Looking at the clock each time would slow the spinning down.
        if tries.is_multiple_of(1024) {
            let started = *started.get_or_insert_with(std::time::Instant::now);
            if started.elapsed() > PATIENCE {
                return Err(PerfError::Stalled { waiting_for });
            }
            // With fewer processors than spinning processes the other side must get its turn.
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

fn wait_for_event(
    cq: &CompletionQueue,
    out: &mut [Wc],
    waiting_for: &'static str,
) -> Result<usize, PerfError> {
    loop {
        let count = cq.poll(out)?;
        if count > 0 {
            return Ok(count);
        }
        cq.request_notification(Notify::Next)?;
        let count = cq.poll(out)?;
        if count > 0 {
            return Ok(count);
        }
        let Some(channel) = cq.channel() else { return spin(cq, out, waiting_for) };
        match channel.wait(Some(PATIENCE)) {
            Ok(_) => {}
            Err(WaitError::TimedOut) => return Err(PerfError::Stalled { waiting_for }),
            Err(error) => return Err(PerfError::Wait(error)),
        }
    }
}

/// All that one side of a measurement does happens in here.
fn session_span(side: &'static str, plan: &Plan, exchange: &Exchange) -> tracing::Span {
    tracing::info_span!("session", side, tool = ?plan.tool, op = ?plan.op, peer = exchange.peer())
}

/// Runs the client of a measurement: `progress` hears of every row as it is finished. `gid_index` chooses the
/// GID to send from; without it, it is the first of the exchange's IP version.
///
/// # Errors
///
/// When the plan is impossible, the other side is not there or fails, or a message arrives wrong.
pub fn run_client(
    context: &Context,
    mut exchange: Exchange,
    plan: &Plan,
    gid_index: Option<usize>,
    progress: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, PerfError> {
    let _session = session_span("client", plan, &exchange).entered();
    plan.check()?;
    exchange.send("the plan", plan)?;
    if let Some(refusal) = exchange.receive::<Option<String>>("the answer to the plan")? {
        return Err(PerfError::OtherSide(refusal));
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
            Ok(row) => Report::Done(row.client),
            Err(error) => Report::Failed(error.to_string()),
        };
        let other = session.exchange.swap("the report", &own);
        let mut row = measured?;
        match other? {
            Report::Done(side) => row.server = side,
            Report::Failed(reason) => return Err(PerfError::OtherSide(reason)),
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
pub fn serve(context: &Context, mut exchange: Exchange, gid_index: Option<usize>) -> Result<Plan, PerfError> {
    let plan: Plan = exchange.receive_first("the plan")?;
    let _session = session_span("server", &plan, &exchange).entered();
    let path_mtu = PathMtu::from_bytes(plan.path_mtu);
    let refusal = match (plan.check(), path_mtu, context.largest_path_mtu()) {
        (Err(error), ..) => Some(error.to_string()),
        (_, None, _) => Some(format!("{} is no path MTU; use 256, 512, 1024, 2048 or 4096", plan.path_mtu)),
        (_, Some(wanted), Some(most)) if wanted.bytes() > most.bytes() => Some(format!(
            "path MTU {} is more than my link carries; use --mtu {} or less",
            wanted.bytes(),
            most.bytes()
        )),
        _ => None,
    };
    exchange.send("the answer to the plan", &refusal)?;
    if let Some(refusal) = refusal {
        return Err(PerfError::OtherSide(format!("asked for something impossible: {refusal}")));
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
            Ok(side) => Report::Done(*side),
            Err(error) => Report::Failed(error.to_string()),
        };
        let other: Report = session.exchange.swap("the report", &own)?;
        // What a client that failed has not written is not there.
        let is_passive = session.plan.op == Op::Write && session.plan.tool == Tool::Blast;
        if !is_passive || matches!(other, Report::Done(_)) {
            served?;
        }
        if let Report::Failed(reason) = other {
            return Err(PerfError::OtherSide(reason));
        }
    }
    session.exchange.barrier()?;
    Ok(session.plan)
}
