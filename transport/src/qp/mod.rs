//! A queue pair: what its two halves have in common.

mod attr;
mod state;

use core::num::NonZeroU16;

use alloc::boxed::Box;

use roce_packet::{Bth, Direction, Opcode, OpcodeInfo, Operation, Path, Psn, Qpn, Telemetry, Transport};

pub use attr::{
    CreateQpError, DEFAULT_P_KEY, MAX_QP_WR, MAX_RD_ATOMIC, ModifyQpError, QpAttr, QpAttributes,
    QpCapabilities, QpInit, QpOptions,
};
pub use state::{AttrMask, QpState, QpType, Transition, transition};

use crate::completion::{Cause, Wc, WcStatus};
use crate::congestion::{AfterLoss, CnpPace, Congestion, Control, Loss, LostAfter, Start};
use crate::counters::{Counters, count};
use crate::event::AsyncEvent;
use crate::ids::{CqId, PdId, SrqId, XrcdId};
use crate::integrity::Integrity;
use crate::memory::Access;
use crate::recovery::Recovery;
use crate::rq::{Landing, Receive, ReceiveQueue};
use crate::segment::KnownPath;
use crate::shared::Shared;
use crate::sq::Wqe;
use crate::time::Instant;
use crate::timer::{Deadlines, Timer};
use crate::wr::SendFlags;

/// What both halves of a queue pair use.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) number: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdId,
    /// The domain of the memory of receives: that of the shared receive queue, if there is one.
    pub(crate) receive_pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// Of an XRC target, this, the receive completion queue and the protection domain are those of the message that arrives now.
    pub(crate) srq: Option<SrqId>,
    /// Of an XRC target.
    pub(crate) xrcd: Option<XrcdId>,
    pub(crate) rq: ReceiveQueue,
    /// Where the receive in use lands: there is one at a time.
    pub(crate) landing: Landing,
    pub(crate) signal_all: bool,
    pub(crate) capabilities: QpCapabilities,
    pub(crate) attr: QpAttributes,
    /// Where its packets go: follows from the path of the attributes. That of UD is the path of the last message.
    pub(crate) outgoing: Option<KnownPath>,
    pub(crate) counters: Counters,
    pub(crate) deadlines: Deadlines,
    /// Set by a half that met an error; the engine then moves the queue pair to `ERR` (or `SQE`) and
    /// raises the event, if there is one to raise.
    pub(crate) failure: Option<Failure>,
    /// Which IPv4 Identification the peer sends.
    pub(crate) peer_identification: PeerIdentification,
    /// A packet came that only the peer can have sent.
    pub(crate) has_heard_peer: bool,
    /// The next completion of SQD is still to be announced.
    pub(crate) drain_pending: bool,
    /// The congestion control and its state.
    pub(crate) congestion: Congestion,
    pub(crate) control: Option<Box<Control>>,
    pub(crate) recovery: Recovery,
    /// The pace of notifications for what it receives.
    pub(crate) cnp_pace: CnpPace,
    /// A mark is to be echoed in the next acknowledgement.
    pub(crate) echo_owed: bool,
    /// The telemetry of the newest data packet, and whether it is to be returned with the next acknowledgement.
    pub(crate) telemetry: Option<Box<Telemetry>>,
    pub(crate) telemetry_owed: bool,
    /// The first packet in RTR has been announced.
    pub(crate) established: bool,
}

/// Which IPv4 Identification the peer of a connection sends, where the device does not see it. Only proven packets change
/// it, and it is decided once: a peer that counts is at zero once in 65,536 datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerIdentification {
    /// Not known: this many packets had zero, and none a value that our own peers do not send.
    Undecided(u8),
    /// Zero, or the place in a superpacket: any other value is damage.
    Zero,
    /// It counts, so any value may be right. Zeros do not change that.
    Counts,
}

impl PeerIdentification {
    /// Packets with zero, and none with another value between them, that decide for [`Self::Zero`].
    const TRUSTED_AFTER: u8 = 4;

    /// A proven packet had an ICRC that agrees like this.
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

/// How a queue pair failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// To the error state; a completion reported the reason.
    Reported,
    /// To the error state with an event, because no completion could tell.
    Event(AsyncEvent),
    /// Only the send queue stops (UC, UD).
    SendQueue,
}

impl QpCore {
    /// Whether the access flags of the queue pair let a request of this kind in.
    pub(crate) fn lets_in(&self, info: &OpcodeInfo) -> bool {
        let need = match info.operation {
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            // Every queue pair takes a SEND, and a FLUSH checks its own two rights.
            Operation::Send | Operation::Flush => Access::empty(),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Resync
            | Operation::Cnp => return false,
        };
        self.attr.access.contains(need)
    }

    /// The header of an outgoing packet, as this queue pair fills it in.
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

    /// Begins congestion control anew, with what the attributes say by now.
    pub(crate) fn start_control(&mut self, shared: &Shared) {
        let mtu = u32::try_from(self.mtu()).unwrap_or(u32::MAX);
        let start = Start { now: shared.now, qpn: self.number, mtu, line_rate: shared.config.line_rate };
        let algorithm = self.congestion.algorithm.make(&start);
        let pacing = &shared.config.pacing;
        self.control =
            algorithm.map(|algorithm| Box::new(Control::new(algorithm, self.number, shared.now, pacing)));
        (self.echo_owed, self.telemetry_owed) = (false, false);
    }

    /// A proven packet came: the Identification of the peer and the telemetry of data count. That of an answer has been
    /// taken already ([`take_answer`](Self::take_answer)).
    #[inline]
    pub(crate) fn take_evidence(&mut self, shared: &Shared, integrity: Integrity, direction: Direction) {
        self.has_heard_peer = true;
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

    /// The answer that is being handled has an effect, so it is from the peer: what it says about its path goes to the congestion
    /// control, before the acknowledgement in it. A second call for an answer does nothing.
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

    /// Whether data leaves with in-band telemetry.
    pub(crate) fn wants_telemetry(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.wants_telemetry())
    }

    /// Whether a data packet may leave now. If not, the queue pair is looked at again when one may.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        let Some(control) = &mut self.control else { return true };
        let ready = control.ready_at(now);
        self.deadlines.set(Timer::Pace, ready);
        ready.is_none()
    }

    /// A window may be what holds the next packet back: it is looked at again when it changes by itself.
    pub(crate) fn await_window(&mut self) {
        if let Some(control) = &self.control {
            self.deadlines.set(Timer::Pace, control.window_timer());
        }
    }

    /// A data packet leaves: it is charged to the rate.
    #[inline]
    pub(crate) fn charge(&mut self, now: Instant, len: NonZeroU16) {
        if let (Some(control), Some(outgoing)) = (&mut self.control, &self.outgoing) {
            control.sent(now, outgoing.path(), len.get().into());
            if control.is_over() {
                self.control = None;
            }
        }
    }

    /// Something was lost and will be sent again.
    pub(crate) fn lost(&mut self, now: Instant, loss: Loss) {
        if let Some(control) = &mut self.control {
            control.lost(now, loss);
        }
    }

    /// Something that was sent got lost in the network: without congestion control, packets are paced from now on.
    pub(crate) fn lost_after(&mut self, shared: &mut Shared, loss: &LostAfter) {
        let (now, pacing) = (shared.now, shared.config.pacing);
        if !pacing.after_loss {
            return;
        }
        // The peer's timer is not known; both ends of a connection usually have the same.
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

    /// The peer repeated a request for something that waits here to be sent.
    pub(crate) fn too_slow(&mut self, now: Instant) {
        if let Some(control) = &mut self.control {
            control.change_law(now, AfterLoss::too_slow);
        }
    }

    /// Whether a packet on `path` comes from the peer of this connection.
    #[inline]
    pub(crate) fn is_from_peer(&self, path: &Path) -> bool {
        self.attr.path.as_ref().is_some_and(|own| {
            own.source == path.destination
                && own.destination == path.source
                && own.encapsulation == path.encapsulation
        })
    }

    /// A request arrived: in RTR the first one is announced.
    pub(crate) fn established(&mut self, shared: &mut Shared) {
        if !self.established && self.attr.state == QpState::Rtr {
            self.established = true;
            shared.events.push_async(AsyncEvent::CommunicationEstablished(self.number));
        }
    }

    /// All requests that had been started before SQD have completed: announces that once, if it is wanted.
    pub(crate) fn drained(&mut self, shared: &mut Shared) {
        if core::mem::take(&mut self.drain_pending) && self.attr.en_sqd_async_notify {
            shared.events.push_async(AsyncEvent::SqDrained(self.number));
        }
    }

    /// Fails the queue pair unless it has failed already; the first reason counts.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
        }
    }

    /// Queues the completion of a send request that succeeded, if it is to be seen.
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

    /// Queues the completion of a send request that failed; it is always seen.
    pub(crate) fn fail_send(&mut self, shared: &mut Shared, wqe: &Wqe, status: WcStatus, cause: Cause) {
        count!(shared, self, req_cqe_error);
        if status == WcStatus::WrFlushError {
            count!(shared, self, req_cqe_flush_error);
        }
        let opcode = wqe.wc_opcode();
        let (qpn, src_qp) = (self.number, self.attr.dest_qpn);
        let wc = Wc { wr_id: wqe.wr_id, status, cause, opcode, qpn, src_qp, ..Wc::default() };
        self.push_wc(shared, self.send_cq, false, || wc);
    }

    /// Queues the completion of a receive that succeeded.
    #[inline]
    pub(crate) fn complete_recv(&mut self, shared: &mut Shared, wc: Wc, solicited: bool) {
        self.push_wc(shared, self.recv_cq, solicited, || wc);
    }

    /// Queues the completion of a receive that failed.
    pub(crate) fn fail_recv(&mut self, shared: &mut Shared, wr_id: u64, status: WcStatus, cause: Cause) {
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
            // Completions are being lost: the application cannot know the state of this queue pair.
            self.fail(Failure::Event(AsyncEvent::QpFatal(self.number)));
        }
    }

    /// Takes the next receive, from the own queue or the shared one.
    pub(crate) fn take_receive(&mut self, shared: &mut Shared) -> Option<Receive> {
        let Some(srq) = self.srq else { return self.rq.pop(&mut self.landing) };
        let (receive, below_limit) = shared.srqs.get_mut(srq.index())?.take(&mut self.landing)?;
        if below_limit {
            shared.events.push_async(AsyncEvent::SrqLimitReached(srq));
        }
        Some(receive)
    }

    /// Bytes that the next receive holds, without taking it.
    pub(crate) fn next_receive_capacity(&self, shared: &Shared) -> Option<u64> {
        match self.srq {
            Some(srq) => shared.srqs.get(srq.index())?.queue.next_capacity(),
            None => self.rq.next_capacity(),
        }
    }

    /// Bytes of the path MTU.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.attr.path_mtu.bytes()
    }
}
