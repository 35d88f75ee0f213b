//! The part of a queue pair that its two halves share.

mod attr;
mod state;
mod xrc;

use core::num::NonZeroU16;

use alloc::boxed::Box;

use roce_packet::flow::LOWEST_SOURCE_PORT;
use roce_packet::{
    Bth, Direction, Encapsulation, Opcode, OpcodeInfo, Operation, Path, Psn, Qpn, Telemetry, Transport,
};

pub use attr::{
    CreateQpError, DEFAULT_P_KEY, MAX_QP_WR, MAX_RD_ATOMIC, ModifyQpError, QpAttr, QpAttributes,
    QpCapabilities, QpInit, QpOptions,
};
pub use state::{AttrMask, QpState, QpType, Transition, transition};

use crate::Instant;
use crate::completion::{Cause, Wc, WcStatus};
use crate::congestion::{AfterLoss, CnpPace, Congestion, Control, Loss, LostAfter, Paths, Start};
use crate::counters::{QpCounters, count};
use crate::event::AsyncEvent;
use crate::ids::{CqId, PdId, SrqId, XrcdId};
use crate::integrity::Integrity;
use crate::memory::{Access, KeyError};
use crate::reason::{LocalDenial, Reason, Rule};
use crate::recovery::Recovery;
use crate::rq::{Landing, Receive, ReceiveQueue};
use crate::segment::KnownPath;
use crate::shared::Shared;
use crate::sq::Wqe;
use crate::timer::{Deadlines, Timer};
use crate::wr::SendFlags;

/// The state that both halves of a queue pair use.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) number: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdId,
    /// Protection domain for the memory of receives: the one of the shared receive queue, if there is one.
    pub(crate) receive_pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// Shared receive queue. For an XRC target, this, `recv_cq` and the protection domains belong to the
    /// message in progress.
    pub(crate) srq: Option<SrqId>,
    /// XRC domain of an XRC target.
    pub(crate) xrcd: Option<XrcdId>,
    pub(crate) rq: ReceiveQueue,
    /// Destination of the receive in use; only one receive is in use at a time.
    pub(crate) landing: Landing,
    pub(crate) signal_all: bool,
    pub(crate) capabilities: QpCapabilities,
    pub(crate) attr: QpAttributes,
    /// Path of outgoing packets, from the path in the attributes. For UD, the path of the last message; with
    /// several paths, that of the last packet.
    pub(crate) outgoing: Option<KnownPath>,
    pub(crate) counters: QpCounters,
    pub(crate) deadlines: Deadlines,
    /// Set by a half that found an error. The engine then moves the queue pair to `ERR` (or `SQE`) and raises
    /// an event if the failure requires one.
    pub(crate) failure: Option<Failure>,
    /// The first failure since RESET, or since the queue pair left SQE.
    pub(crate) reason: Option<Box<Reason>>,
    /// The IPv4 Identification that the peer sends.
    pub(crate) peer_identification: PeerIdentification,
    /// Whether a packet arrived that only the peer can have sent.
    pub(crate) has_heard_peer: bool,
    /// The time of the last such packet.
    pub(crate) heard: Instant,
    /// Whether the end of draining (SQD) is still to be announced.
    pub(crate) drain_pending: bool,
    /// Settings (`congestion`) and state (`control`) of the congestion control.
    pub(crate) congestion: Congestion,
    pub(crate) control: Option<Box<Control>>,
    pub(crate) recovery: Recovery,
    /// The paths, if there are several.
    pub(crate) paths: Option<Box<Paths>>,
    /// Pace of congestion notifications for received packets.
    pub(crate) cnp_pace: CnpPace,
    /// Whether the next acknowledgement echoes a congestion mark.
    pub(crate) echo_owed: bool,
    /// Telemetry of the newest data packet, and whether the next acknowledgement returns it.
    pub(crate) telemetry: Option<Box<Telemetry>>,
    pub(crate) telemetry_owed: bool,
    /// Whether the arrival of the first packet in RTR has been announced.
    pub(crate) established: bool,
}

/// The IPv4 Identification that the peer of a connection sends, if the device does not see it. Only proven
/// packets change this state, and the decision is final: a peer that counts sends zero in only one of 65,536
/// datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerIdentification {
    /// Undecided: this number of packets had zero, and none had a value that our own peers do not send.
    Undecided(u8),
    /// The peer sends zero or the index in a superpacket; any other value is damage.
    Zero,
    /// The peer counts, so any value may be correct. Zeros do not change this state.
    Counts,
}

impl PeerIdentification {
    /// Number of packets with zero, without another value between them, that decide for [`Self::Zero`].
    const TRUSTED_AFTER: u8 = 4;

    /// Learns from the ICRC check of a proven packet.
    #[inline]
    fn learn(&mut self, integrity: Integrity) {
        let Self::Undecided(zeros) = *self else { return };
        match integrity {
            Integrity::Zero if zeros + 1 >= Self::TRUSTED_AFTER => *self = Self::Zero,
            Integrity::Zero => *self = Self::Undecided(zeros + 1),
            Integrity::Recovered => *self = Self::Counts,
            Integrity::Known | Integrity::Segment => {}
        }
    }
}

impl Default for PeerIdentification {
    fn default() -> Self {
        Self::Undecided(0)
    }
}

/// The way in which a queue pair failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Enter the error state. A completion has reported the reason.
    Reported,
    /// Enter the error state and raise this event, because no completion can report the reason.
    Event(AsyncEvent),
    /// Stop only the send queue (UC, UD).
    SendQueue,
}

impl QpCore {
    /// Tells whether the access flags of the queue pair allow a request of this kind.
    pub(crate) fn lets_in(&self, info: &OpcodeInfo) -> bool {
        let need = match info.operation {
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            // Every queue pair accepts a SEND. A FLUSH checks its own two rights.
            Operation::Send | Operation::Flush => Access::empty(),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Resync
            | Operation::Cnp => return false,
        };
        self.attr.access.contains(need)
    }

    /// Returns the header of an outgoing packet with the fields that this queue pair determines.
    #[inline]
    pub(crate) fn bth(&self, shared: &Shared, opcode: Opcode, psn: Psn) -> Bth {
        let opcode = if self.qp_type.is_xrc() { opcode.with_transport(Transport::Xrc) } else { opcode };
        Bth {
            opcode,
            solicited: false,
            mig_req: shared.config.mig_req,
            pad_count: 0,
            p_key: self.attr.p_key,
            fecn: false,
            becn: false,
            dest_qp: self.attr.dest_qpn,
            ack_req: false,
            psn,
        }
    }

    /// Chooses the source port of the next packets: the one of path `path`, below the number of paths.
    pub(crate) fn leave_by(&mut self, path: u16) {
        let port = port_of(self.first_port(), path);
        if let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.path().source_port != port)
        {
            *outgoing = KnownPath::new(Path { source_port: port, ..*outgoing.path() });
        }
    }

    /// Returns the source port of the first path, which is that of the queue pair.
    fn first_port(&self) -> u16 {
        self.attr.path.map_or(0, |path| path.source_port)
    }

    /// Returns the path with this source port, if it is one of the queue pair's.
    pub(crate) fn path_with(&self, source_port: u16) -> Option<u16> {
        let path = path_of(self.first_port(), source_port);
        (path < self.path_count() && port_of(self.first_port(), path) == source_port).then_some(path)
    }

    /// Returns the number of paths, a power of two. RoCE v1 has no ports.
    pub(crate) fn path_count(&self) -> u16 {
        let has_ports = self.attr.path.is_some_and(|path| path.encapsulation == Encapsulation::RoceV2);
        self.paths.as_ref().filter(|_| has_ports).map_or(1, |paths| paths.count())
    }

    /// Returns the paths besides that of the attributes.
    pub(crate) fn other_paths(&self) -> impl Iterator<Item = Path> + use<'_> {
        let ports = (1..self.path_count()).map(|path| port_of(self.first_port(), path));
        ports.filter_map(|source_port| Some(Path { source_port, ..self.attr.path? }))
    }

    /// Starts congestion control anew, with the current attributes.
    pub(crate) fn start_control(&mut self, shared: &Shared) {
        let mtu = u32::try_from(self.mtu()).unwrap_or(u32::MAX);
        let start = Start { now: shared.now, qpn: self.number, mtu, line_rate: shared.config.line_rate };
        let algorithm = self.congestion.algorithm.make(&start);
        let pacing = &shared.config.pacing;
        self.control =
            algorithm.map(|algorithm| Box::new(Control::new(algorithm, self.number, shared.now, pacing)));
        (self.echo_owed, self.telemetry_owed) = (false, false);
    }

    /// Uses a proven packet: learns the Identification of the peer, and stores the telemetry of data. The
    /// telemetry of an answer was already used ([`take_answer`](Self::take_answer)).
    #[inline]
    pub(crate) fn take_evidence(&mut self, shared: &Shared, integrity: Integrity, direction: Direction) {
        self.has_heard_peer = true;
        self.heard = shared.now;
        if self.qp_type == QpType::Ud {
            // UD receives from many peers.
            return;
        }
        self.peer_identification.learn(integrity);
        if let Some(telemetry) = &shared.telemetry_in
            && direction == Direction::Request
            && self.qp_type.is_reliable()
        {
            **self.telemetry.get_or_insert_default() = *telemetry;
            self.telemetry_owed = true;
        }
    }

    /// Passes the path information of the answer in progress to the congestion control, before its
    /// acknowledgement. The answer had an effect, so it is from the peer. A second call for the same answer
    /// does nothing.
    #[inline]
    pub(crate) fn take_answer(&mut self, shared: &mut Shared) {
        let Some(answer) = shared.answer.take() else { return };
        let Some(control) = &mut self.control else { return };
        control.answered_over(answer.hop_limit);
        if answer.marked {
            control.echo();
        }
        if let Some(telemetry) = &shared.telemetry_in {
            control.stamped(shared.now, telemetry);
        }
    }

    /// Tells whether data leaves with in-band telemetry.
    pub(crate) fn wants_telemetry(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.wants_telemetry())
    }

    /// Tells whether a data packet may leave now. If not, a timer reschedules the queue pair when one may.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        let Some(control) = &mut self.control else { return true };
        let ready = control.ready_at(now);
        self.deadlines.set(Timer::Pace, ready);
        ready.is_none()
    }

    /// Sets the timer for a packet that a window may hold back: it expires when the window changes by itself.
    pub(crate) fn await_window(&mut self) {
        if let Some(control) = &self.control {
            self.deadlines.set(Timer::Pace, control.window_timer());
        }
    }

    /// Charges a data packet that leaves to the rate.
    #[inline]
    pub(crate) fn charge(&mut self, now: Instant, len: NonZeroU16) {
        if let (Some(control), Some(outgoing)) = (&mut self.control, &self.outgoing) {
            control.sent(now, outgoing.path(), len.get().into());
            if control.is_over() {
                self.control = None;
            }
        }
    }

    /// Informs the congestion control of a loss that is about to be retransmitted.
    pub(crate) fn lost(&mut self, now: Instant, loss: Loss) {
        if let Some(control) = &mut self.control {
            control.lost(now, loss);
        }
    }

    /// Handles a loss in the network. Without congestion control, packets are paced from now on.
    pub(crate) fn lost_after(&mut self, shared: &mut Shared, loss: &LostAfter) {
        let (now, pacing) = (shared.now, shared.config.pacing);
        if !pacing.after_loss {
            return;
        }
        // The peer's timeout is unknown; both ends of a connection usually use the same value.
        let is_long = self.attr.timeout != 0 && loss.delay.as_nanos() >= 4_096 << self.attr.timeout;
        let loss = &LostAfter { by_timeout: loss.by_timeout || is_long, ..*loss };
        let mut reduced = false;
        if let Some(control) = &mut self.control {
            control.change_law(now, |law| reduced = law.lost(now, loss));
        } else {
            let mtu = u32::try_from(self.mtu()).unwrap_or(u32::MAX);
            let law = AfterLoss::begin(now, loss, mtu, shared.config.line_rate);
            reduced = law.is_some();
            self.control = law.map(|law| Box::new(Control::after_loss(law, self.number, now, &pacing)));
        }
        if reduced {
            count!(shared, self, loss_rate_cuts);
        }
    }

    /// Handles a repeated request of the peer for data that still waits here to be sent.
    pub(crate) fn too_slow(&mut self, now: Instant) {
        if let Some(control) = &mut self.control {
            control.change_law(now, AfterLoss::too_slow);
        }
    }

    /// Tells whether a packet on `path` comes from the peer of this connection.
    #[inline]
    pub(crate) fn is_from_peer(&self, path: &Path) -> bool {
        self.attr.path.as_ref().is_some_and(|own| {
            own.source == path.destination
                && own.destination == path.source
                && own.encapsulation == path.encapsulation
        })
    }

    /// Handles an arrived request: announces the first one in RTR.
    pub(crate) fn established(&mut self, shared: &mut Shared) {
        if !self.established && self.attr.state == QpState::Rtr {
            self.established = true;
            shared.events.push_async(AsyncEvent::CommunicationEstablished(self.number));
        }
    }

    /// Announces once, if requested, that all requests started before SQD have completed.
    pub(crate) fn drained(&mut self, shared: &mut Shared) {
        if core::mem::take(&mut self.drain_pending) && self.attr.en_sqd_async_notify {
            shared.events.push_async(AsyncEvent::SqDrained(self.number));
        }
    }

    /// Fails the queue pair unless it has already failed; the first reason counts.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
        }
    }

    /// Queues the completion of a successful send request, if it is signaled.
    #[inline]
    pub(crate) fn complete_send(&mut self, shared: &mut Shared, wqe: &Wqe) {
        if !self.signal_all && !wqe.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let qpn = self.number;
        self.push_wc(shared, self.send_cq, false, || Wc {
            wr_id: wqe.wr_id,
            opcode: wqe.wc_opcode(),
            byte_len: wqe.len,
            qpn,
            ..Wc::default()
        });
    }

    /// Fails the queue pair without a completion: raises an event unless a failure was found before.
    pub(crate) fn fail_with_event(&mut self, shared: &Shared, event: AsyncEvent, rule: Rule) {
        self.record(shared, None, rule);
        self.fail(Failure::Event(event));
    }

    /// Keeps the first reason.
    #[cold]
    pub(crate) fn record(&mut self, shared: &Shared, request: Option<(u64, WcStatus)>, rule: Rule) {
        if self.reason.is_none() {
            let (at, from) = (shared.now, self.attr.state);
            let heard = self.has_heard_peer.then_some(self.heard);
            self.reason = Some(Box::new(Reason { at, from, request, rule, heard }));
        }
    }

    /// Returns the rule for a local key that does not allow access to the receive in use.
    #[cold]
    pub(crate) fn receive_denied(&self, shared: &Shared, error: KeyError) -> Rule {
        let (pd, elements) = (self.receive_pd, self.landing.elements());
        Rule::LocalKey(LocalDenial::find(error, &shared.keys, pd, elements, Access::LOCAL_WRITE))
    }

    /// Queues the completion of a send request that failed, signaled or not.
    pub(crate) fn fail_send(&mut self, shared: &mut Shared, wqe: &Wqe, status: WcStatus, rule: Rule) {
        self.record(shared, Some((wqe.wr_id, status)), rule);
        self.end_send(shared, wqe, status, rule.cause());
    }

    /// Queues the completion of a send request that was not carried out, because another one failed.
    pub(crate) fn flush_send(&mut self, shared: &mut Shared, wqe: &Wqe) {
        self.end_send(shared, wqe, WcStatus::WrFlushError, Cause::Flushed);
    }

    fn end_send(&mut self, shared: &mut Shared, wqe: &Wqe, status: WcStatus, cause: Cause) {
        count!(shared, self, req_cqe_error);
        if status == WcStatus::WrFlushError {
            count!(shared, self, req_cqe_flush_error);
        }
        let opcode = wqe.wc_opcode();
        let (qpn, src_qp) = (self.number, self.attr.dest_qpn);
        let wc = Wc { wr_id: wqe.wr_id, status, cause, opcode, qpn, src_qp, ..Wc::default() };
        self.push_wc(shared, self.send_cq, false, || wc);
    }

    /// Queues the completion of a successful receive.
    #[inline]
    pub(crate) fn complete_recv(&mut self, shared: &mut Shared, wc: Wc, solicited: bool) {
        self.push_wc(shared, self.recv_cq, solicited, || wc);
    }

    /// Queues the completion of a receive that failed.
    pub(crate) fn fail_recv(&mut self, shared: &mut Shared, wr_id: u64, status: WcStatus, rule: Rule) {
        self.record(shared, Some((wr_id, status)), rule);
        self.end_recv(shared, wr_id, status, rule.cause());
    }

    /// Queues the completion of a receive that no message used.
    pub(crate) fn flush_recv(&mut self, shared: &mut Shared, wr_id: u64) {
        self.end_recv(shared, wr_id, WcStatus::WrFlushError, Cause::Flushed);
    }

    fn end_recv(&mut self, shared: &mut Shared, wr_id: u64, status: WcStatus, cause: Cause) {
        count!(shared, self, resp_cqe_error);
        if status == WcStatus::WrFlushError {
            count!(shared, self, resp_cqe_flush_error);
        }
        let opcode = crate::completion::WcOpcode::Recv;
        let (qpn, src_qp) = (self.number, self.attr.dest_qpn);
        let wc = Wc { wr_id, status, cause, opcode, qpn, src_qp, ..Wc::default() };
        self.push_wc(shared, self.recv_cq, false, || wc);
    }

    #[inline]
    fn push_wc(&mut self, shared: &mut Shared, cq: CqId, solicited: bool, make: impl FnOnce() -> Wc) {
        if shared.push_wc(cq, solicited, make).is_err() {
            // The completion is lost, so the application cannot know the state of this queue pair.
            self.fail_with_event(shared, AsyncEvent::QpFatal(self.number), Rule::CompletionQueueOverflow(cq));
        }
    }

    /// Takes the next receive from the queue pair's own queue or the shared one.
    pub(crate) fn take_receive(&mut self, shared: &mut Shared) -> Option<Receive> {
        let Some(srq) = self.srq else { return self.rq.pop(&mut self.landing) };
        let (receive, below_limit) = shared.srqs.get_mut(srq.index())?.take(&mut self.landing)?;
        if below_limit {
            shared.events.push_async(AsyncEvent::SrqLimitReached(srq));
        }
        Some(receive)
    }

    /// Returns the capacity in bytes of the next receive, without taking it.
    pub(crate) fn next_receive_capacity(&self, shared: &Shared) -> Option<u64> {
        match self.srq {
            Some(srq) => shared.srqs.get(srq.index())?.queue.next_capacity(),
            None => self.rq.next_capacity(),
        }
    }

    /// Returns the path MTU in bytes.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.attr.path_mtu.bytes()
    }
}

/// Returns the source port of a path. All but the first are in the range of RoCE v2.
fn port_of(first: u16, path: u16) -> u16 {
    if path == 0 { first } else { first.wrapping_add(path) | LOWEST_SOURCE_PORT }
}

/// Returns the path with this source port.
fn path_of(first: u16, port: u16) -> u16 {
    port.wrapping_sub(first) & !LOWEST_SOURCE_PORT
}
