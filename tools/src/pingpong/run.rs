//! One side of a pingpong.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce_packet::{Gid, PathMtu};
use roce_transport::{
    Access, Notify, Payload, QpCapabilities, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDestination,
    Wc, WcStatus,
};

use super::wire::{self, Destination};
use super::{Kind, MAX_QP, Outcome, PingpongError, Plan, content};
use roce::verbs::{
    CompletionChannel, CompletionQueue, ConnectOptions, Context, Endpoint, MemoryRegion, PathOptions,
    QueuePair, QueuePairOptions, SharedReceiveQueue, WaitError,
};

/// The 40 bytes in front of what a UD queue pair receives.
const GRH: usize = 40;
/// What the originals agree on without saying so.
const QKEY: u32 = 0x1111_1111;
/// Twice the timeout of the other side, 4.096 µs times 2^14.
const LINGER: Duration = Duration::from_millis(140);
/// Work request numbers: receives are numbered by their buffer, sends have this bit.
const SEND: u64 = 1 << 63;

/// Which side: who sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends the first message.
    Client,
    /// Answers.
    Server,
}

/// What one queue pair still waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    send: bool,
    receive: bool,
    /// Messages received on it.
    received: u64,
}

/// One side, with all that it needs before the first message.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    role: Role,
    context: Context,
    address: IpAddr,
    channel: Option<CompletionChannel>,
    cq: CompletionQueue,
    // Its buffers: one to send from for each queue pair, then those of the receives.
    region: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    qps: Vec<QueuePair>,
    remote: Vec<UdDestination>,
    pending: Vec<Pending>,
}

impl Session {
    /// Makes queue pairs and posts their receives.
    ///
    /// # Errors
    ///
    /// A number of the plan is out of range, or the device refuses.
    pub fn new(context: &Context, plan: &Plan, role: Role) -> Result<Self, PingpongError> {
        check(plan)?;
        let Some(address) = context.gid_address(plan.gid_index) else {
            return Err(PingpongError::Plan(format!(
                "the device has no GID {}; `roce devices -v` lists GIDs",
                plan.gid_index.unwrap_or(0)
            )));
        };
        let qps = if plan.kind == Kind::Srq { plan.num_qp } else { 1 };
        let channel = if plan.events { Some(context.create_channel()?) } else { None };
        let cq = context.create_cq(plan.rx_depth + 2 * qps, channel.as_ref())?;
        let pd = context.alloc_pd()?;
        let region = pd.allocate((plan.rx_depth + qps) * stride(plan), Access::LOCAL_WRITE)?;
        let srq = if plan.kind == Kind::Srq { Some(pd.create_srq(plan.rx_depth, 1)?) } else { None };
        let qp_type = match plan.kind {
            Kind::Rc | Kind::Srq => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
        };
        let mut options = QueuePairOptions::new(qp_type, &cq);
        options.srq = srq.as_ref();
        let max_recv_wr = if srq.is_some() { 0 } else { plan.rx_depth };
        options.capabilities = QpCapabilities { max_send_wr: 2, max_recv_wr, ..options.capabilities };
        let qps: Vec<QueuePair> = (0..qps).map(|_| pd.create_qp(&options)).collect::<Result<_, _>>()?;
        let pending = vec![Pending::default(); qps.len()];
        let (plan, context, remote) = (plan.clone(), context.clone(), Vec::new());
        Ok(Self { plan, role, context, address, channel, cq, region, srq, qps, remote, pending })
    }

    fn destinations(&self) -> Result<Vec<Destination>, PingpongError> {
        let gid = Gid::from_ip(self.address);
        let one = |qp: &QueuePair| {
            let endpoint = qp.endpoint()?;
            let psn = roce_packet::Psn::new(endpoint.psn);
            Ok(Destination { qpn: qp.number(), psn, gid })
        };
        self.qps.iter().map(one).collect()
    }

    /// Exchanges destinations with the other side and connects. `tell` gets a line for each destination, as
    /// the originals print them.
    ///
    /// # Errors
    ///
    /// The other side is gone, is not the right program, or cannot be reached with this device.
    pub fn connect(
        &mut self,
        peer: &mut (impl Read + Write),
        tell: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<(), PingpongError> {
        let program = self.plan.kind.program();
        let failed = |what| move |error| PingpongError::Exchange { what, program, error };
        let mut own = self.destinations()?;
        for destination in &own {
            tell(&format!("  local address:  {destination}")).map_err(failed("printing"))?;
        }
        let count = if self.plan.kind == Kind::Srq { MAX_QP } else { 1 };
        own.resize(count, Destination::NONE);
        let remote = if self.role == Role::Client {
            wire::send(peer, &own).map_err(failed("sending our destination"))?;
            let remote =
                wire::receive(peer, count).map_err(failed("awaiting the other side's destination"))?;
            self.attach(&remote)?;
            wire::send_done(peer).map_err(failed("sending done"))?;
            remote
        } else {
            let remote =
                wire::receive(peer, count).map_err(failed("awaiting the other side's destination"))?;
            self.attach(&remote)?;
            wire::send(peer, &own).map_err(failed("sending our destination"))?;
            wire::receive_done(peer).map_err(failed("awaiting done"))?;
            remote
        };
        for destination in remote.iter().take(self.qps.len()) {
            tell(&format!("  remote address: {destination}")).map_err(failed("printing"))?;
        }
        Ok(())
    }

    /// Connects every queue pair with its peer, with the other attributes of the originals, and posts receives.
    fn attach(&mut self, remote: &[Destination]) -> Result<(), PingpongError> {
        let path = PathOptions::default().sgid_index(self.plan.gid_index).traffic_class(0);
        for (index, (qp, peer)) in self.qps.iter().zip(remote).enumerate() {
            if peer.gid == Gid::ZERO {
                return Err(PingpongError::NoGid { program: self.plan.kind.program() });
            }
            let address = peer.gid.to_ip();
            if self.plan.gid_index.is_none()
                && !self
                    .context
                    .gid_table()
                    .iter()
                    .any(|entry| entry.address().is_ipv4() == address.is_ipv4())
            {
                return Err(PingpongError::GidMismatch { remote: address });
            }
            if self.plan.kind == Kind::Ud {
                qp.activate_datagram(QKEY)?;
                self.remote.push(self.context.create_address_handle(address, peer.qpn, QKEY, &path)?);
            } else {
                let endpoint = Endpoint { address, qpn: peer.qpn.get(), psn: peer.psn.get() };
                let options = ConnectOptions::default()
                    .path_mtu(self.plan.mtu)
                    .path(path)
                    .access(Access::empty())
                    .max_rd_atomic(1)
                    .max_dest_rd_atomic(1)
                    .timeout(self.plan.timeout);
                qp.connect(&endpoint, &options)?;
            }
            if self.srq.is_none() {
                self.pending[index] = Pending::default();
            }
        }
        for slot in 0..self.plan.rx_depth {
            self.post_receive(slot)?;
        }
        Ok(())
    }

    fn receive_offset(&self, slot: usize) -> usize {
        (self.qps.len() + slot) * stride(&self.plan)
    }

    fn post_receive(&self, slot: usize) -> Result<(), PingpongError> {
        let start = self.receive_offset(slot);
        let element = self.region.element(start..start + stride(&self.plan));
        let wr = RecvWr { wr_id: slot as u64, elements: &[element] };
        match &self.srq {
            Some(srq) => Ok(srq.post_recv(&wr)?),
            None => Ok(self.qps[0].post_recv(&wr)?),
        }
    }

    /// Sends from the buffer of queue pair `index`.
    fn post_send(&mut self, index: usize) -> Result<(), PingpongError> {
        let start = index * stride(&self.plan);
        let element: [Sge; 1] = [self.region.element(start..start + self.plan.size)];
        let wr = SendWr {
            wr_id: SEND | index as u64,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Elements(&element),
            destination: self.remote.get(index).copied(),
        };
        self.qps[index].post_send(&wr)?;
        (self.pending[index].send, self.pending[index].receive) = (true, true);
        Ok(())
    }

    /// Sends and answers until both directions had all messages.
    ///
    /// # Errors
    ///
    /// A message is lost or wrong, or the connection broke.
    pub fn run(&mut self) -> Result<Outcome, PingpongError> {
        let mut run =
            Run { sent: 0, received: 0, unacknowledged: 0, events: 0, bytes: vec![0; self.plan.size] };
        if self.channel.is_some() {
            self.cq.request_notification(Notify::Next)?;
        }
        let before = self.context.counters().retransmitted_packets;
        if self.role == Role::Client {
            for index in 0..self.qps.len() {
                self.next_message(index, &mut run)?;
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

    /// Stays until the other side, whose last acknowledgement may have been lost, has nothing left to ask for: until
    /// nothing has come for longer than its timeout, but not for ever.
    pub fn linger(&self) {
        if matches!(self.plan.kind, Kind::Uc | Kind::Ud) {
            return;
        }
        for _ in 0..20 {
            let before = self.context.counters().rdma_rx_packets;
            std::thread::sleep(LINGER);
            if self.context.counters().rdma_rx_packets == before {
                return;
            }
        }
    }

    fn wait(&self, completions: &mut [Wc], run: &mut Run) -> Result<usize, PingpongError> {
        let patience = Some(self.plan.patience);
        let stalled = |error| match error {
            WaitError::TimedOut => PingpongError::Stalled {
                sent: run.sent,
                received: run.received,
                patience: self.plan.patience,
                reliable: matches!(self.plan.kind, Kind::Rc | Kind::Srq),
            },
            error => PingpongError::Wait(error),
        };
        let Some(channel) = &self.channel else {
            return self.cq.wait(completions, patience).map_err(stalled);
        };
        loop {
            let count = self.cq.poll(completions)?;
            if count > 0 {
                return Ok(count);
            }
            channel.wait(patience).map_err(stalled)?;
            run.events += 1;
            self.cq.request_notification(Notify::Next)?;
        }
    }

    fn handle(&mut self, wc: &Wc, run: &mut Run) -> Result<(), PingpongError> {
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
            self.next_message(index, run)?;
            self.post_send(index)?;
        }
        Ok(())
    }

    /// Who has sent all of its messages and answers no more has left, and the originals leave when they have all of
    /// ours: what got lost then are its last acknowledgements.
    fn handle_failure(&mut self, wc: &Wc, run: &mut Run) -> Result<(), PingpongError> {
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
            _ => Err(PingpongError::Completion { status: wc.status, cause: wc.cause }),
        }
    }

    fn is_shared(&self) -> bool {
        self.plan.kind == Kind::Srq
    }

    /// What the client says next; the server says what it was told.
    fn next_message(&self, index: usize, run: &mut Run) -> Result<(), PingpongError> {
        if self.role == Role::Client {
            content::fill(self.pending[index].received, self.is_shared(), &mut run.bytes);
        }
        let written = self.region.write(index * stride(&self.plan), &run.bytes);
        debug_assert!(written.is_ok(), "buffers lie inside the region");
        Ok(())
    }

    fn check(&self, index: usize, wc: &Wc, run: &mut Run) -> Result<(), PingpongError> {
        let skip = if self.plan.kind == Kind::Ud { GRH } else { 0 };
        let (message, found) = (run.received, wc.byte_len as usize);
        let expected = self.plan.size + skip;
        if found != expected {
            return Err(PingpongError::Length { message, expected, found });
        }
        let read = self.region.read(self.receive_offset(wc.wr_id as usize) + skip, &mut run.bytes);
        debug_assert!(read.is_ok(), "buffers lie inside the region");
        let number = self.pending[index].received;
        let wrong = match self.role {
            Role::Client => content::wrong_echo(number, self.is_shared(), &run.bytes),
            Role::Server => content::wrong_request(number, self.is_shared(), &run.bytes),
        };
        match wrong {
            None => Ok(()),
            Some(at) => Err(PingpongError::Content { message, at, found: run.bytes[at] }),
        }
    }
}

/// What changes while messages go to and fro.
struct Run {
    sent: u64,
    received: u64,
    /// Of those sent, messages at the end without an acknowledgement.
    unacknowledged: u64,
    events: u64,
    /// The message received last, and the one to be sent.
    bytes: Vec<u8>,
}

fn stride(plan: &Plan) -> usize {
    (plan.size + GRH).next_multiple_of(64)
}

fn check(plan: &Plan) -> Result<(), PingpongError> {
    let wrong = |text: String| Err(PingpongError::Plan(text));
    if plan.size == 0 || plan.size > 1 << 30 {
        return wrong(format!("messages of {} bytes: choose 1 byte to 1 GiB (-s)", plan.size));
    }
    if plan.kind == Kind::Ud && plan.size > largest(plan.mtu) {
        return wrong(format!(
            "{} bytes do not fit into one UD message with path MTU {} (-s, -m)",
            plan.size,
            largest(plan.mtu)
        ));
    }
    if plan.kind == Kind::Srq && !(1..=MAX_QP).contains(&plan.num_qp) {
        return wrong(format!("{} queue pairs: choose 1 to {MAX_QP} (-q)", plan.num_qp));
    }
    if plan.rx_depth == 0 || plan.rx_depth > 16_384 || plan.kind == Kind::Srq && plan.num_qp > plan.rx_depth {
        return wrong(format!("{} receives: choose at least one for each queue pair (-r)", plan.rx_depth));
    }
    if plan.iterations == 0 {
        return wrong("no iterations: choose at least one (-n)".to_owned());
    }
    Ok(())
}

const fn largest(mtu: PathMtu) -> usize {
    mtu.bytes()
}
