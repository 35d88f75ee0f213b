//! The sending half of RC: chooses the next packet, and goes back when one was lost.
//!
//! Every request packet has a PSN; a READ takes as many as its response has packets. Three PSNs say
//! where the queue stands, in this order around the circle:
//!
//! ```text
//!   una ............ cursor ............ unsent
//!   oldest that      next packet         first that was
//!   awaits an        to send             never sent
//!   answer
//! ```
//!
//! In undisturbed traffic `cursor` equals `unsent`; a retransmission moves it back to `una`.

use alloc::boxed::Box;

use roce_packet::{Bth, DatagramWriter, Opcode, Psn, Reth, Telemetry, Transport, Xrceth};

use super::flight::Flight;
use super::pieces::{packets_of, read_piece};
use super::selective::{LossRecovery, Selective};
use super::single::Single;
use super::timeouts::Early;
use crate::completion::{Cause, WcStatus};
use crate::congestion::{Loss, SentRequest};
use crate::counters::count;
use crate::io::TxSlot;
use crate::qp::{Failure, QpCapabilities, QpCore, QpType};
use crate::recovery::Recovery;
use crate::segment::{Sealed, segment, write_headers};
use crate::shared::Shared;
use crate::sq::{Progress, SendQueue, Wqe, local_cause};
use crate::timer::Timer;
use crate::wr::{Course, SendFlags, SendOp};

/// A count of packets since the last acknowledge request that makes the next packet request one.
pub(super) const LONG_AGO: u32 = u32::MAX / 2;
/// While packets are spaced after a loss, one of so many requests an acknowledgement: at a low rate a quarter of the window would take
/// longer than the timer waits.
const SPACED_INTERVAL: u32 = 16;

#[derive(Debug)]
pub(crate) struct RcRequester {
    pub(crate) sq: SendQueue,
    /// The oldest PSN without an answer, and the first that was never sent.
    pub(super) una: Psn,
    pub(super) unsent: Psn,
    /// The next packet to send: the request it belongs to, and its PSN.
    pub(super) cursor: Psn,
    pub(super) cursor_wqe: u64,
    /// READ and atomic requests sent and not answered; at most `max_rd_atomic`.
    pub(super) outstanding: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// An RNR NAK asked for a pause.
    pub(super) rnr_waiting: bool,
    /// The PSN that a NAK made this half go back to. A second NAK for it is a duplicate.
    pub(super) recovering: Option<Psn>,
    pub(super) since_ack_request: u32,
    /// The newest packet in flight whose answer was requested: only then does a missing answer show a loss.
    pub(super) asked: Option<Psn>,
    /// The oldest packet is to be sent again after a timeout and has not left yet.
    pub(super) is_held: bool,
    /// The packets that left one after the other.
    pub(super) flight: Flight,
    /// The oldest response that is known to have been trimmed.
    pub(super) trimmed_response: Option<Psn>,
    /// The cursor is at a trimmed packet, and returns from there.
    pub(super) is_aside: bool,
    /// Early retransmission.
    pub(super) early: Early,
    /// The loss recovery, unless it is go-back-N.
    pub(super) recovery: Option<Box<dyn LossRecovery>>,
}

/// The result of preparing the next packet.
enum Next {
    Send,
    Blocked,
    /// A local operation was carried out, look again.
    Again,
}

impl RcRequester {
    pub(crate) fn new(capabilities: &QpCapabilities, recovery: &Recovery) -> Self {
        Self {
            recovery: match recovery {
                Recovery::GoBackN => None,
                Recovery::SelectiveRepeat(settings) => Some(Box::new(Selective::new(settings))),
            },
            sq: SendQueue::new(capabilities),
            una: Psn::new(0),
            unsent: Psn::new(0),
            cursor: Psn::new(0),
            cursor_wqe: 0,
            outstanding: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            rnr_waiting: false,
            recovering: None,
            since_ack_request: 0,
            asked: None,
            is_held: false,
            trimmed_response: None,
            is_aside: false,
            flight: Flight::default(),
            early: Early::default(),
        }
    }

    /// Returns to the initial state, for RESET.
    pub(crate) fn reset(&mut self) {
        self.sq.clear();
        self.start(Psn::new(0));
    }

    /// Takes the first PSN, at the transition to RTS.
    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.una = sq_psn;
        self.unsent = sq_psn;
        self.cursor = sq_psn;
        self.cursor_wqe = self.sq.head();
        self.outstanding = 0;
        self.rnr_waiting = false;
        self.recovering = None;
        self.since_ack_request = 0;
        self.asked = None;
        self.is_held = false;
        self.trimmed_response = None;
        self.flight = Flight::default();
        self.early = Early::default();
        if let Some(recovery) = &mut self.recovery {
            recovery.on_go_back();
        }
    }

    /// Reloads the retry counts from the attributes: at the start and after progress.
    pub(crate) fn reload_retries(&mut self, core: &QpCore) {
        self.retries_left = core.attr.retry_cnt;
        self.rnr_retries_left = core.attr.rnr_retry;
    }

    pub(crate) fn next_psn(&self) -> Psn {
        self.unsent
    }

    pub(crate) fn oldest_unanswered(&self) -> Psn {
        self.una
    }

    /// Whether all requests that were posted are on their way or done.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.sq.get(self.cursor_wqe).is_none()
    }

    /// PSNs that await an answer.
    pub(super) fn in_flight(&self) -> u32 {
        self.una.distance_to(self.unsent)
    }

    /// Whether the packet with this PSN, or a READ that covers it, is in flight.
    #[inline]
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        self.una.distance_to(psn) < self.in_flight()
    }

    /// Writes the packet under the cursor into `slot`, if one may go.
    pub(super) fn transmit_at_cursor(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        loop {
            if self.rnr_waiting || core.failure.is_some() {
                return None;
            }
            if self.sq.get(self.cursor_wqe).is_none() || !core.may_send(shared.now) {
                return None;
            }
            self.pass_over_received();
            match self.prepare(core, shared) {
                Next::Blocked => {
                    core.await_window();
                    return None;
                }
                Next::Again => {}
                Next::Send => break,
            }
        }
        let sent_before = self.cursor != self.unsent;
        let psn = self.cursor.get();
        if !self.early.is_sending() {
            self.flight.leaves(shared.now, self.cursor, self.una);
        }
        let sealed = match self.sq.get(self.cursor_wqe)?.op.course() {
            Course::Segments => self.send_segment(core, shared, slot)?,
            Course::Read => self.send_read(core, shared, slot)?,
            Course::Single => self.send_single(core, shared, slot)?,
            // Carried out when it was prepared.
            Course::Local => return None,
        };
        if sent_before {
            count!(shared, core, retransmitted_packets);
            count!(shared, core, retransmitted_bytes, sealed.len.get().into());
            tracing::debug!(qpn = core.number.get(), psn, bytes = sealed.len.get(), "retransmission");
        }
        core.charge(shared.now, sealed.len);
        if core.wants_telemetry() {
            shared.telemetry_out = Some(Telemetry::default());
        }
        self.is_held = false;
        if core.deadlines.get(Timer::Retry).is_none() {
            self.arm(core, shared);
        }
        Some(sealed)
    }

    /// Looks at the request under the cursor: starts it if that is allowed now.
    fn prepare(&mut self, core: &mut QpCore, shared: &mut Shared) -> Next {
        let Some(wqe) = self.sq.get(self.cursor_wqe) else { return Next::Blocked };
        match wqe.progress {
            Progress::Done => {
                // Executed before a go-back passed over it again.
                self.cursor_wqe += 1;
                return Next::Again;
            }
            Progress::Posted if !core.attr.state.starts_requests() => return Next::Blocked,
            Progress::Posted => {
                if wqe.flags.contains(SendFlags::FENCE) && self.outstanding > 0 {
                    return Next::Blocked;
                }
                if wqe.op.course() == Course::Local {
                    let wqe = *wqe;
                    return self.execute_local(core, shared, &wqe);
                }
            }
            Progress::Started => {}
        }
        let is_posted = wqe.progress == Progress::Posted;
        let needed = if is_posted { packets_of(wqe, core.mtu()) } else { wqe.psns };
        if !self.window_allows(core, shared, wqe, needed) {
            return Next::Blocked;
        }
        if is_posted {
            let cursor = self.cursor;
            if let Some(wqe) = self.sq.get_mut(self.cursor_wqe) {
                wqe.progress = Progress::Started;
                wqe.first_psn = cursor;
                wqe.psns = needed;
                wqe.requested_to = cursor.sub(1);
            }
        }
        Next::Send
    }

    /// PSNs that may be unacknowledged.
    fn window(&self, shared: &Shared) -> u32 {
        let most = shared.config.max_outstanding_packets;
        self.recovery.as_ref().map_or(most, |recovery| most.min(recovery.window()))
    }

    /// Whether the window has room for the next packet of `wqe`, which takes `psns` PSNs in all.
    fn window_allows(&self, core: &QpCore, shared: &Shared, wqe: &Wqe, psns: u32) -> bool {
        if self.early.is_sending() {
            // It is in flight already.
            return true;
        }
        let window = self.window(shared);
        let used = self.una.distance_to(self.cursor);
        if !wqe.op.awaits_response() {
            return used < window && self.control_allows(core);
        }
        if self.outstanding >= u32::from(core.attr.max_rd_atomic) {
            return false;
        }
        if wqe.progress == Progress::Started && wqe.first_psn.before(self.cursor) && self.una != self.cursor {
            // The next piece of a READ waits for the piece before it: then only one end of a piece
            // is outstanding, and a response can be checked against it.
            return false;
        }
        let piece = read_piece(shared, psns);
        used == 0 || used + piece <= window
    }

    /// Whether the congestion control has room for the next packet.
    fn control_allows(&self, core: &QpCore) -> bool {
        let Some(control) = &core.control else { return true };
        if self.is_resending() {
            // It counts as in flight already, and has left the network.
            return true;
        }
        control.has_room(self.asked.is_some())
    }

    /// Binds or invalidates a window; takes no PSN.
    fn execute_local(&mut self, core: &mut QpCore, shared: &mut Shared, wqe: &Wqe) -> Next {
        let (result, status, cause) = match &wqe.op {
            SendOp::BindWindow { window, new_rkey, binding } => (
                shared.keys.bind(*window, Some(*new_rkey), core.pd, Some(core.number), binding).map(|_| ()),
                WcStatus::MemoryWindowBindError,
                Cause::WindowBind,
            ),
            SendOp::LocalInvalidate { rkey } => (
                shared.keys.invalidate(*rkey, core.pd, core.number),
                WcStatus::LocalQpOperationError,
                Cause::LocalInvalidate,
            ),
            SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteWithImm { .. }
            | SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. } => return Next::Send,
        };
        if result.is_err() {
            self.fail(core, shared, self.cursor_wqe, status, cause);
            return Next::Blocked;
        }
        if let Some(wqe) = self.sq.get_mut(self.cursor_wqe) {
            wqe.progress = Progress::Done;
        }
        self.cursor_wqe += 1;
        self.retire(core, shared);
        Next::Again
    }

    fn send_segment(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let index = wqe.first_psn.distance_to(self.cursor);
        let segment = segment(Transport::Rc, wqe, index, core.mtu())?;
        let mut bth = core.bth(shared, segment.opcode, self.cursor);
        bth.solicited = segment.is_end && wqe.flags.contains(SendFlags::SOLICITED);
        bth.ack_req = segment.is_end || self.wants_acknowledgement(core, shared, segment.len);
        let mut writer = writer(core, slot.buffer, &bth, wqe)?;
        write_headers(&mut writer, wqe, index, segment.is_end)?;
        let target = writer.payload_slot(segment.len).ok()?;
        if let Err(error) = self.sq.gather(&shared.keys, core.pd, self.cursor_wqe, segment.offset, target) {
            let status = WcStatus::LocalProtectionError;
            self.fail(core, shared, self.cursor_wqe, status, local_cause(error));
            return None;
        }
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        self.since_ack_request = if bth.ack_req { 0 } else { self.since_ack_request + 1 };
        self.note_sent(core, shared, self.cursor, segment.len, bth.ack_req);
        self.advance_cursor(1, segment.is_end);
        Some(sealed)
    }

    /// Whether the packet under the cursor is one of a selective retransmission.
    fn is_resending(&self) -> bool {
        self.is_aside
            || self.cursor != self.unsent
                && self.recovery.as_ref().is_some_and(|recovery| recovery.is_resending())
    }

    /// Notes a packet under the cursor, whose answer is that to `psn`, and tells the congestion control of it.
    fn note_sent(&mut self, core: &mut QpCore, shared: &Shared, psn: Psn, payload: usize, ack_req: bool) {
        // Selective retransmission sends older packets after newer ones.
        if ack_req && self.asked.is_none_or(|asked| asked.before(psn)) {
            self.asked = Some(psn);
        }
        if ack_req && self.cursor == self.unsent && shared.config.retransmission.early {
            // A response shows a sign of life with its first packet.
            self.early.leaves(self.cursor, shared.watched());
        }
        if let Some(control) = &mut core.control {
            // The response to a READ takes as long as its data, so it is not a sample of the round trip,
            // and a retransmission is ambiguous.
            let measures = psn == self.cursor && self.cursor == self.unsent;
            // Going back resets the bytes in flight; selective retransmission does not add to them.
            let payload = if self.is_resending() { 0 } else { payload };
            if self.cursor != self.unsent {
                control.forget_round_trip();
            }
            control.request_sent(shared.now, SentRequest { psn, payload: payload as u64, ack_req, measures });
        }
    }

    /// Asks for an acknowledgement at quarters of the window, so that a long message keeps the window
    /// moving, and on the packet that fills it: otherwise only the timer would make progress.
    fn wants_acknowledgement(&self, core: &QpCore, shared: &Shared, payload: usize) -> bool {
        if core.congestion.echo {
            return true;
        }
        if let Some(control) = &core.control
            && control.wants_answer(payload as u64, self.since_ack_request.into())
        {
            return true;
        }
        let window = self.window(shared);
        let is_spaced = core.control.as_ref().is_some_and(|control| control.is_spaced_after_loss());
        let interval = if is_spaced { (window / 4).min(SPACED_INTERVAL) } else { window / 4 };
        self.since_ack_request + 1 >= interval.max(1) || self.una.distance_to(self.cursor) + 1 >= window
    }

    fn send_read(&mut self, core: &mut QpCore, shared: &mut Shared, slot: &mut TxSlot<'_>) -> Option<Sealed> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let SendOp::Read { remote_addr, rkey } = wqe.op else { return None };
        let mtu = core.mtu();
        let index = wqe.first_psn.distance_to(self.cursor);
        let left = wqe.psns.saturating_sub(index);
        // A piece that was requested before is requested again up to the same end, so that late
        // responses to the first request still fit.
        let repeated = self.cursor.distance_to(wqe.requested_to.next());
        let piece = if repeated > 0 && repeated <= left { repeated } else { read_piece(shared, left) };
        let offset = index * mtu as u32;
        let end = if piece == left { wqe.len } else { offset + piece * mtu as u32 };
        let mut bth = core.bth(shared, Opcode::RC_RDMA_READ_REQUEST, self.cursor);
        bth.ack_req = true;
        let mut writer = writer(core, slot.buffer, &bth, wqe)?;
        let va = remote_addr.wrapping_add(u64::from(offset));
        writer.reth(&Reth { va, rkey: rkey.0, dma_len: end - offset }).ok()?;
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        let requested_to = self.cursor.add(piece - 1);
        if let Some(wqe) = self.sq.get_mut(self.cursor_wqe) {
            wqe.requested_to = requested_to;
        }
        self.since_ack_request = 0;
        self.outstanding += u32::from(!self.early.is_sending());
        self.note_sent(core, shared, requested_to, 0, true);
        self.advance_cursor(piece, piece == left);
        Some(sealed)
    }

    /// Atomics, ATOMIC WRITE and FLUSH: one packet, one PSN.
    fn send_single(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let single = Single::of(&wqe.op)?;
        let opcode = match single {
            Single::CompareSwap(_) => Opcode::RC_COMPARE_SWAP,
            Single::FetchAdd(_) => Opcode::RC_FETCH_ADD,
            Single::AtomicWrite(_) => Opcode::RC_ATOMIC_WRITE,
            Single::Flush(..) => Opcode::RC_FLUSH,
        };
        let mut bth = core.bth(shared, opcode, self.cursor);
        bth.ack_req = true;
        let mut writer = writer(core, slot.buffer, &bth, wqe)?;
        single.write_headers(&mut writer)?;
        if let Single::AtomicWrite(_) = single {
            let target = writer.payload_slot(8).ok()?;
            if let Err(error) = self.sq.gather(&shared.keys, core.pd, self.cursor_wqe, 0, target) {
                let status = WcStatus::LocalProtectionError;
                self.fail(core, shared, self.cursor_wqe, status, local_cause(error));
                return None;
            }
        }
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        let psn = self.cursor;
        if let Some(wqe) = self.sq.get_mut(self.cursor_wqe) {
            wqe.requested_to = psn;
        }
        self.since_ack_request = 0;
        self.outstanding += u32::from(!self.early.is_sending());
        self.note_sent(core, shared, psn, 0, true);
        self.advance_cursor(1, true);
        Some(sealed)
    }

    fn advance_cursor(&mut self, psns: u32, message_done: bool) {
        let sent_again = self.cursor.distance_to(self.unsent);
        self.cursor = self.cursor.add(psns);
        if message_done {
            self.cursor_wqe += 1;
        }
        if psns > sent_again {
            self.unsent = self.cursor;
        }
    }

    /// Goes back to the oldest unanswered packet.
    pub(super) fn go_back(&mut self, core: &mut QpCore, shared: &mut Shared) {
        count!(shared, core, retransmit_rounds);
        tracing::debug!(qpn = core.number.get(), psn = self.una.get(), "go back");
        self.cursor = self.una;
        self.cursor_wqe = self.sq.head();
        self.outstanding = 0;
        // The first packet requests an acknowledgement: a responder that has it reports its position.
        self.since_ack_request = LONG_AGO;
        self.early.went_back();
        // Answers to what left before are not waited for.
        (self.asked, self.trimmed_response) = (None, None);
        if let Some(recovery) = &mut self.recovery {
            recovery.on_go_back();
        }
        if let Some(control) = &mut core.control {
            control.went_back();
        }
    }

    /// The packet with this PSN was lost on its way to the peer. The congestion control is told; without one the rate may be the
    /// reason. What a READ or an atomic misses may be its answer, which the peer has sent.
    pub(super) fn lost(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, loss: Loss) {
        core.lost(shared.now, loss);
        let is_payload = |wqe: &Wqe| !wqe.op.awaits_response();
        if let Some(loss) = self.flight.lost(shared.now, psn, self.cursor)
            && self.sq.get(self.sq.head()).is_some_and(is_payload)
        {
            core.lost_after(shared, &loss);
        }
    }

    /// Uses up one retry for a timeout or a sequence error; fails the oldest request when none is left.
    pub(super) fn spend_retry(&mut self, core: &mut QpCore, shared: &mut Shared, cause: Cause) -> bool {
        if let Some(left) = self.retries_left.checked_sub(1) {
            self.retries_left = left;
            return true;
        }
        count!(shared, core, req_transport_retries_exceeded);
        self.fail(core, shared, self.sq.head(), WcStatus::RetryExceededError, cause);
        false
    }

    /// The pause that an RNR NAK asked for is over.
    pub(crate) fn on_rnr_timer(&mut self) {
        self.rnr_waiting = false;
    }

    /// Completes every finished request at the head of the queue, in order.
    pub(super) fn retire(&mut self, core: &mut QpCore, shared: &mut Shared) {
        while let Some(wqe) = self.sq.get(self.sq.head()).filter(|wqe| wqe.progress == Progress::Done) {
            core.complete_send(shared, wqe);
            self.sq.skip();
        }
        self.cursor_wqe = self.cursor_wqe.max(self.sq.head());
        if core.drain_pending && self.sq.is_drained() {
            core.drained(shared);
        }
    }

    /// Fails the request at `position` and with it the queue pair. Every older request without an answer
    /// is flushed before it, so that completions stay in order.
    pub(super) fn fail(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        position: u64,
        status: WcStatus,
        cause: Cause,
    ) {
        tracing::debug!(qpn = core.number.get(), ?status, ?cause, "send request failed");
        while self.sq.head() < position {
            let Some(wqe) = self.sq.pop() else { break };
            match wqe.progress {
                Progress::Done => core.complete_send(shared, &wqe),
                _ => core.fail_send(shared, &wqe, WcStatus::WrFlushError, Cause::Flushed),
            }
        }
        if let Some(wqe) = self.sq.pop() {
            core.fail_send(shared, &wqe, status, cause);
        }
        core.fail(Failure::Reported);
    }
}

/// Begins a request packet: its BTH, and for an extended connection the shared receive queue that it is for.
#[inline]
fn writer<'a>(core: &QpCore, buffer: &'a mut [u8], bth: &Bth, wqe: &Wqe) -> Option<DatagramWriter<'a>> {
    let mut writer = DatagramWriter::new(buffer, bth).ok()?;
    if core.qp_type == QpType::XrcSend {
        writer.xrceth(&Xrceth { srq: wqe.remote_srqn }).ok()?;
    }
    Some(writer)
}
