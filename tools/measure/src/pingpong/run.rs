//! One side of a pingpong.

use std::io;
use std::time::{Duration, Instant};

use roce_exchange::{GRH, PeerAddresses, ToolError, put, source_address, take};
use roce_packet::Gid;
use roce_transport::{
    Access, Payload, QpCapabilities, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};

use super::wire::{self, Destination, Limited};
use super::{Kind, MAX_QP, Outcome, Plan, content};
use crate::harness::{
    DropWatch, PeerQueuePair, Role, await_silence, check_completion, check_length, connect_as_originals,
    wait_for_event,
};
use roce::tcp::Tcp;
use roce::verbs::{
    AddressHandle, CompletionQueue, ConnectOptions, Context, MemoryRegion, PathOptions, QueuePair,
    QueuePairOptions, SharedReceiveQueue,
};

/// Twice the timeout of the other side, which is 4.096 µs × 2^14.
const LINGER: Duration = Duration::from_millis(140);
/// The bit in the work request numbers of sends. Receives are numbered by their buffer.
const SEND: u64 = 1 << 63;

/// The pending operations of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    send: bool,
    receive: bool,
    /// Messages received on this queue pair.
    received: u64,
}

/// One side, with everything that it needs before the first message.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    role: Role,
    context: Context,
    watch: DropWatch,
    gid: Gid,
    cq: CompletionQueue,
    // The region contains one send buffer per queue pair, then the receive buffers.
    region: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    qps: Vec<QueuePair>,
    remote: Vec<AddressHandle>,
    pending: Vec<Pending>,
}

impl Session {
    /// Creates queue pairs and posts their receives.
    ///
    /// # Errors
    ///
    /// A number of the plan is out of range, or the device refuses.
    pub fn new(context: &Context, plan: &Plan, role: Role) -> Result<Self, ToolError> {
        plan.check()?;
        let watch = DropWatch::start(context);
        let gid = Gid::from_ip(source_address(context, plan.gid_index)?);
        let qps = if plan.kind == Kind::Srq { plan.num_qp } else { 1 };
        let channel = if plan.events { Some(context.create_channel()?) } else { None };
        let cq = context.create_cq(plan.rx_depth + 2 * qps, channel.as_ref())?;
        let pd = context.alloc_pd()?;
        let region = pd.allocate((plan.rx_depth + qps) * plan.stride(), Access::LOCAL_WRITE)?;
        let srq = if plan.kind == Kind::Srq { Some(pd.create_srq(plan.rx_depth, 1)?) } else { None };
        let mut options = QueuePairOptions::new(plan.qp_type(), &cq);
        options.srq = srq.as_ref();
        let max_recv_wr = if srq.is_some() { 0 } else { plan.rx_depth };
        options.capabilities = QpCapabilities { max_send_wr: 2, max_recv_wr, ..options.capabilities };
        let qps: Vec<QueuePair> = (0..qps).map(|_| pd.create_qp(&options)).collect::<Result<_, _>>()?;
        let pending = vec![Pending::default(); qps.len()];
        let (plan, context, remote) = (plan.clone(), context.clone(), Vec::new());
        Ok(Self { plan, role, context, watch, gid, cq, region, srq, qps, remote, pending })
    }

    fn destinations(&self) -> Result<Vec<Destination>, ToolError> {
        let gid = self.gid;
        let one = |qp: &QueuePair| {
            let endpoint = qp.endpoint()?;
            let psn = roce_packet::Psn::new(endpoint.psn);
            Ok(Destination { qpn: qp.number(), psn, gid })
        };
        self.qps.iter().map(one).collect()
    }

    /// Exchanges destinations with the other side and connects. A server passes the addresses that its
    /// packets may go to. `on_line` gets a line for each destination in the format of the originals. The
    /// whole input of the other side must arrive within the patience of the plan.
    ///
    /// # Errors
    ///
    /// The other side has left or is too slow, is the wrong program, or cannot be reached with this device.
    pub fn connect(
        &mut self,
        peer: &mut Tcp,
        allowed: Option<&PeerAddresses>,
        on_line: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<(), ToolError> {
        let peer = &mut Limited::new(peer, self.plan.patience);
        let program = self.plan.kind.program();
        let failed = |what| move |error| ToolError::Handshake { what, program, error };
        let printing = |error| ToolError::Io { what: "cannot print", error };
        let mut own = self.destinations()?;
        for destination in &own {
            on_line(&format!("  local address:  {destination}")).map_err(printing)?;
        }
        let count = if self.plan.kind == Kind::Srq { MAX_QP } else { 1 };
        own.resize(count, Destination::NONE);
        if self.role == Role::Client {
            wire::send(peer, &own).map_err(failed("the destination of this side"))?;
        }
        let remote = wire::receive(peer, count).map_err(failed("the destination of the other side"))?;
        self.attach(&remote, allowed)?;
        if self.role == Role::Client {
            wire::send_done(peer).map_err(failed("`done`"))?;
        } else {
            wire::send(peer, &own).map_err(failed("the destination of this side"))?;
            wire::receive_done(peer).map_err(failed("`done`"))?;
        }
        for destination in remote.iter().take(self.qps.len()) {
            on_line(&format!("  remote address: {destination}")).map_err(printing)?;
        }
        Ok(())
    }

    /// Connects every queue pair to its peer, with the other attributes of the originals, and posts receives.
    fn attach(&mut self, remote: &[Destination], allowed: Option<&PeerAddresses>) -> Result<(), ToolError> {
        let path = PathOptions::default().sgid_index(self.plan.gid_index).traffic_class(0);
        let options = ConnectOptions::default()
            .path_mtu(self.plan.mtu)
            .path(path)
            .access(Access::empty())
            .max_rd_atomic(1)
            .max_dest_rd_atomic(1)
            .timeout(self.plan.timeout);
        for (qp, peer) in self.qps.iter().zip(remote) {
            if peer.gid == Gid::ZERO {
                return Err(ToolError::Peer(format!(
                    "sent no GID; start {} there with -g INDEX (`ibv_devinfo -v` lists GIDs)",
                    self.plan.kind.program()
                )));
            }
            let peer = PeerQueuePair { gid: peer.gid, qpn: peer.qpn, psn: peer.psn };
            let qp_type = self.plan.qp_type();
            let (context, own) = (&self.context, self.gid);
            self.remote.extend(connect_as_originals(context, qp, qp_type, own, peer, allowed, &options)?);
        }
        (0..self.plan.rx_depth).try_for_each(|slot| self.post_receive(slot))
    }

    fn receive_offset(&self, slot: usize) -> usize {
        (self.qps.len() + slot) * self.plan.stride()
    }

    fn post_receive(&self, slot: usize) -> Result<(), ToolError> {
        let start = self.receive_offset(slot);
        let element = self.region.element(start..start + self.plan.stride());
        let wr = RecvWr { wr_id: slot as u64, elements: &[element] };
        match &self.srq {
            Some(srq) => Ok(srq.post_recv(&wr)?),
            None => Ok(self.qps[0].post_recv(&wr)?),
        }
    }

    /// Sends from the buffer of queue pair `index`.
    fn post_send(&mut self, index: usize) -> Result<(), ToolError> {
        let start = index * self.plan.stride();
        let element: [Sge; 1] = [self.region.element(start..start + self.plan.size)];
        let wr = SendWr {
            wr_id: SEND | index as u64,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Elements(&element),
            destination: self.remote.get(index).map(AddressHandle::destination),
            remote_srqn: 0,
        };
        self.qps[index].post_send(&wr)?;
        (self.pending[index].send, self.pending[index].receive) = (true, true);
        Ok(())
    }

    /// Sends and answers until all messages of both directions have arrived.
    ///
    /// # Errors
    ///
    /// A message is lost or wrong, or the connection broke.
    pub fn run(&mut self) -> Result<Outcome, ToolError> {
        let outcome = self.exchange_messages();
        self.watch.explain(outcome)
    }

    fn exchange_messages(&mut self) -> Result<Outcome, ToolError> {
        let mut run =
            Run { sent: 0, received: 0, unacknowledged: 0, events: 0, bytes: vec![0; self.plan.size] };
        let before = self.context.counters().retransmitted_packets;
        if self.role == Role::Client {
            for index in 0..self.qps.len() {
                self.next_message(index, &mut run);
                self.post_send(index)?;
            }
        } else {
            self.pending.fill(Pending { receive: true, ..Pending::default() });
        }
        let start = Instant::now();
        let mut completions = [Wc::default(); 32];
        while run.sent < self.plan.iterations || run.received < self.plan.iterations {
            let count = self.wait(&mut completions, &mut run)?;
            for wc in completions.iter().take(count) {
                self.handle(wc, &mut run)?;
            }
        }
        Ok(Outcome {
            bytes: 2 * self.plan.size as u64 * self.plan.iterations,
            iterations: self.plan.iterations,
            elapsed_s: start.elapsed().as_secs_f64(),
            events: run.events,
            unacknowledged: run.unacknowledged,
            retransmitted_packets: self.context.counters().retransmitted_packets - before,
        })
    }

    /// Waits until the other side, which may have lost the last acknowledgement, has nothing left to
    /// retransmit. The wait is limited, and ends once nothing has arrived for longer than the timeout of the
    /// other side.
    pub fn linger(&self) {
        if matches!(self.plan.kind, Kind::Uc | Kind::Ud) {
            return;
        }
        await_silence(&self.context, LINGER);
    }

    fn wait(&self, completions: &mut [Wc], run: &mut Run) -> Result<usize, ToolError> {
        let patience = self.plan.patience;
        let waited = wait_for_event(&self.cq, completions, patience, &mut run.events);
        let stalled = || ToolError::Stalled {
            progress: format!("{} messages sent and {} received", run.sent, run.received),
            patience,
            is_reliable: self.plan.qp_type() == QpType::Rc,
        };
        waited.map_err(|error| ToolError::of_wait(error, stalled))
    }

    fn handle(&mut self, wc: &Wc, run: &mut Run) -> Result<(), ToolError> {
        if wc.status != WcStatus::Success {
            return self.handle_failure(wc, run);
        }
        let Some(index) = self.qps.iter().position(|qp| qp.number() == wc.qpn) else { return Ok(()) };
        if wc.wr_id & SEND != 0 {
            run.sent += 1;
            self.pending[index].send = false;
        } else {
            self.check(index, wc, run)?;
            self.post_receive(wc.wr_id as usize)?;
            run.received += 1;
            self.pending[index].received += 1;
            self.pending[index].receive = false;
        }
        let pending = self.pending[index];
        if run.sent < self.plan.iterations && !pending.send && !pending.receive {
            self.next_message(index, run);
            self.post_send(index)?;
        }
        Ok(())
    }

    /// Handles a failed completion. The originals exit as soon as they have received everything, and then do
    /// not repeat a lost acknowledgement. Therefore a failure after the last message of the other side is not
    /// an error.
    fn handle_failure(&mut self, wc: &Wc, run: &mut Run) -> Result<(), ToolError> {
        let waiting = self.pending.iter().filter(|pending| pending.send).count() as u64;
        let has_left = run.received >= self.plan.iterations && run.sent + waiting >= self.plan.iterations;
        match (wc.status, wc.wr_id & SEND != 0) {
            (WcStatus::RetryExceededError, true) if has_left => {
                if let Some(pending) = self.pending.get_mut((wc.wr_id & !SEND) as usize) {
                    pending.send = false;
                }
                run.sent += 1;
                run.unacknowledged += 1;
                Ok(())
            }
            (WcStatus::WrFlushError, false) if has_left => Ok(()),
            _ => check_completion(&self.context, wc),
        }
    }

    fn is_shared(&self) -> bool {
        self.plan.kind == Kind::Srq
    }

    /// Writes the next message into the send buffer. The server returns the received message.
    fn next_message(&self, index: usize, run: &mut Run) {
        if self.role == Role::Client {
            content::fill(self.pending[index].received, self.is_shared(), &mut run.bytes);
        }
        put(&self.region, index * self.plan.stride(), &run.bytes);
    }

    fn check(&self, index: usize, wc: &Wc, run: &mut Run) -> Result<(), ToolError> {
        let skip = if self.plan.kind == Kind::Ud { GRH } else { 0 };
        let (message, size) = (run.received, self.plan.size);
        check_length(message, size + skip, wc.byte_len as usize)?;
        take(&self.region, self.receive_offset(wc.wr_id as usize) + skip, &mut run.bytes);
        let number = self.pending[index].received;
        let at = match self.role {
            Role::Client => content::echo_mismatch(number, self.is_shared(), &run.bytes),
            Role::Server => content::request_mismatch(number, self.is_shared(), &run.bytes),
        };
        match at {
            None => Ok(()),
            Some(at) => Err(ToolError::Content { qp: index, message, size, at, found: run.bytes[at] }),
        }
    }
}

/// The state of a run.
struct Run {
    sent: u64,
    received: u64,
    /// The number of sent messages at the end without an acknowledgement.
    unacknowledged: u64,
    events: u64,
    /// The last received message, and the next one to send.
    bytes: Vec<u8>,
}
