//! The requester of RC: chooses the next packet, and goes back after a loss.
//!
//! Each request packet has a PSN; a READ takes as many PSNs as its response has packets. Three PSNs describe
//! the state of the queue, in this order around the circle:
//!
//! ```text
//!   una ............ cursor ............ unsent
//!   oldest that      next packet         first that was
//!   awaits an        to send             never sent
//!   answer
//! ```
//!
//! Without losses `cursor` equals `unsent`; a retransmission moves it back to `una`.

use alloc::boxed::Box;

use roce_packet::{Bth, DatagramWriter, Psn, Telemetry, Transport, Xrceth};

use super::flight::Flight;
use super::loss::LossRecovery as _;
use super::method::Method;
use super::mode::{Mode, Sending};
use super::pieces::{left_of_piece, packets_of};
use super::probes::Early;
use super::spread::Spread;
use crate::completion::WcStatus;
use crate::congestion::{Loss, ReadTurn, SentRequest};
use crate::counters::count;
use crate::io::TxSlot;
use crate::qp::{Failure, QpCapabilities, QpCore, QpType};
use crate::reason::Rule;
use crate::recovery::Recovery;
use crate::segment::{Sealed, segment, write_headers};
use crate::shared::Shared;
use crate::sq::{Progress, SendQueue, Wqe};
use crate::timer::Timer;
use crate::wr::{Course, SendFlags};

/// Value of `since_ack_request` that makes the next packet request an acknowledgement.
pub(super) const LONG_AGO: u32 = u32::MAX / 2;
/// Maximum interval, in packets, between acknowledge requests while packets are spaced after a loss. At a low
/// rate, a quarter of the window would take longer than the retransmission timer.
const SPACED_INTERVAL: u32 = 16;

#[derive(Debug)]
pub(crate) struct RcRequester {
    pub(crate) sq: SendQueue,
    /// The oldest unanswered PSN, and the first PSN that was never sent.
    pub(super) una: Psn,
    pub(super) unsent: Psn,
    /// The next packet to send (`cursor`) and the position of its request.
    pub(super) cursor: Psn,
    pub(super) cursor_wqe: u64,
    /// READ and atomic requests sent and not answered, at most `max_rd_atomic`.
    pub(super) outstanding: u32,
    pub(crate) retries_left: u8,
    pub(crate) rnr_retries_left: u8,
    /// The mode, which may keep the requester from sending the next packet.
    pub(super) mode: Mode,
    pub(super) since_ack_request: u32,
    /// The newest packet in flight whose acknowledgement was requested. Without one, a missing answer does
    /// not show a loss.
    pub(super) asked: Option<Psn>,
    /// The packets sent consecutively, to assess a loss.
    pub(super) flight: Flight,
    /// State of early retransmission.
    pub(super) early: Early,
    pub(super) recovery: Method,
    /// Without selective repeat: the oldest READ response that is known to have been trimmed. Responses are
    /// requested again from it on.
    pub(super) trimmed_response: Option<Psn>,
    /// The turn of the READ request at the cursor, if it waits for one.
    pub(super) read_turn: Option<ReadTurn>,
    /// The paths of the packets in flight, if there are several.
    pub(super) spread: Option<Box<Spread>>,
}

/// The position of the requester before it sends a trimmed packet again.
#[derive(Clone, Copy, Debug)]
struct Aside {
    cursor: Psn,
    cursor_wqe: u64,
}

/// The event that uses up a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// The retransmission timer expired.
    Timeout,
    /// A NAK or a later response shows that a packet was lost.
    Sequence,
}

/// The result of preparing the next packet.
pub(super) enum Next {
    Send,
    Blocked,
    /// A READ request waits for its turn; the timer is set.
    Waits,
    /// A local operation was executed; prepare the next request.
    Again,
}

impl RcRequester {
    pub(crate) fn new(capabilities: &QpCapabilities, recovery: &Recovery) -> Self {
        Self {
            recovery: Method::new(recovery),
            sq: SendQueue::new(capabilities),
            una: Psn::new(0),
            unsent: Psn::new(0),
            cursor: Psn::new(0),
            cursor_wqe: 0,
            outstanding: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            mode: Mode::InOrder,
            since_ack_request: 0,
            asked: None,
            flight: Flight::default(),
            early: Early::default(),
            trimmed_response: None,
            read_turn: None,
            spread: None,
        }
    }

    /// Returns to the initial state, for RESET.
    pub(crate) fn reset(&mut self) {
        self.sq.clear();
        self.spread = None;
        self.start(Psn::new(0));
    }

    /// Sets the first PSN, at the transition to RTS.
    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.una = sq_psn;
        self.unsent = sq_psn;
        self.cursor = sq_psn;
        self.cursor_wqe = self.sq.head();
        self.outstanding = 0;
        self.mode = Mode::InOrder;
        self.since_ack_request = 0;
        self.asked = None;
        self.flight = Flight::default();
        self.early = Early::default();
        self.recovery.on_go_back(sq_psn);
        self.trimmed_response = None;
        self.read_turn = None;
        if let Some(spread) = &mut self.spread {
            spread.start(sq_psn);
        }
    }

    /// Reloads the retry counts from the attributes, at the start and after progress.
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

    /// Tells whether all posted requests have been sent.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.sq.get(self.cursor_wqe).is_none()
    }

    /// Returns the number of PSNs that await an answer.
    pub(super) fn in_flight(&self) -> u32 {
        self.una.distance_to(self.unsent)
    }

    /// Tells whether the packet with this PSN, or a READ that covers it, is in flight.
    #[inline]
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        self.una.distance_to(psn) < self.in_flight()
    }

    /// Writes the next packet into `slot`, if one may be sent. Probes and trimmed packets precede all others.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        if self.early.is_due()
            && let Some(sealed) = self.transmit_probe(core, shared, slot)
        {
            return Some(sealed);
        }
        let Some(aside) = self.turn_aside() else {
            return self.transmit_at_cursor(core, shared, slot, Sending::Next);
        };
        let sealed = self.transmit_at_cursor(core, shared, slot, Sending::Trimmed);
        (self.cursor, self.cursor_wqe) = (aside.cursor, aside.cursor_wqe.max(self.sq.head()));
        if sealed.is_some() {
            self.recovery.repeated_trimmed();
        } else if self.recovery.next(self.cursor).is_some_and(|lost| lost.before(self.unsent)) {
            // A window without room blocks the trimmed packet, and not a packet that has left the network.
            return self.transmit_at_cursor(core, shared, slot, Sending::Next);
        }
        sealed
    }

    /// Moves the cursor to the next trimmed packet. The caller must then move it back.
    #[inline]
    fn turn_aside(&mut self) -> Option<Aside> {
        let trimmed = self.recovery.next_trimmed()?;
        let aside = Aside { cursor: self.cursor, cursor_wqe: self.cursor_wqe };
        self.seek(trimmed);
        let is_it = |wqe: &Wqe| wqe.progress == Progress::Started && wqe.contains(trimmed);
        if !self.sq.get(self.cursor_wqe).is_some_and(is_it) {
            (self.cursor, self.cursor_wqe) = (aside.cursor, aside.cursor_wqe);
            self.recovery.repeated_trimmed();
            return None;
        }
        Some(aside)
    }

    /// Writes the packet at the cursor into `slot`, if one may be sent.
    pub(super) fn transmit_at_cursor(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
        sending: Sending,
    ) -> Option<Sealed> {
        loop {
            if self.mode.is_rnr_pause() || core.failure.is_some() {
                return None;
            }
            if self.sq.get(self.cursor_wqe).is_none() || !core.may_send(shared.now) {
                return None;
            }
            if sending == Sending::Next {
                self.pass_over_received();
            }
            match self.prepare(core, shared, sending) {
                Next::Blocked => {
                    core.await_window();
                    return None;
                }
                Next::Waits => return None,
                Next::Again => {}
                Next::Send => break,
            }
        }
        let sent_before = self.cursor != self.unsent;
        let psn = self.cursor.get();
        if sending != Sending::Probe {
            self.flight.leaves(shared.now, self.cursor, self.una);
        }
        self.choose_path(core, shared.now, sending);
        let sealed = match self.sq.get(self.cursor_wqe)?.op.course() {
            Course::Segments => self.send_segment(core, shared, slot, sending)?,
            Course::Read => self.send_read(core, shared, slot, sending)?,
            Course::Single => self.send_single(core, shared, slot, sending)?,
            // `prepare` has executed the local operation.
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
        self.mode.sent();
        if core.deadlines.get(Timer::Retry).is_none() {
            self.arm(core, shared);
        }
        Some(sealed)
    }

    /// Starts the request at the cursor if that is allowed now.
    fn prepare(&mut self, core: &mut QpCore, shared: &mut Shared, sending: Sending) -> Next {
        let Some(wqe) = self.sq.get(self.cursor_wqe) else { return Next::Blocked };
        match wqe.progress {
            Progress::Done => {
                // A local operation executed before a go-back; skip it.
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
        if !self.window_allows(core, shared, wqe, needed, sending) {
            return Next::Blocked;
        }
        if wqe.op.course() == Course::Read && self.waits_for_turn(core, shared, needed, sending) {
            return Next::Waits;
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

    /// Returns the maximum number of unacknowledged PSNs.
    fn window(&self, shared: &Shared) -> u32 {
        shared.config.max_outstanding_packets.min(self.recovery.window())
    }

    /// Tells whether the window has room for the next packet of `wqe`, which takes `psns` PSNs in total.
    fn window_allows(&self, core: &QpCore, shared: &Shared, wqe: &Wqe, psns: u32, sending: Sending) -> bool {
        if sending == Sending::Probe || wqe.op.awaits_response() && self.is_resending(sending) {
            // The packet, or its response, is already in flight.
            return true;
        }
        let window = self.window(shared);
        let used = self.una.distance_to(self.cursor);
        if !wqe.op.awaits_response() {
            return used < window && self.control_allows(core, sending);
        }
        // A limit that was lowered to 0 must not block the requests that are already posted.
        if self.outstanding >= u32::from(core.attr.max_rd_atomic).max(1) {
            return false;
        }
        let index =
            if wqe.progress == Progress::Started { wqe.first_psn.distance_to(self.cursor) } else { 0 };
        if index > 0 && self.una != self.cursor && shared.reads.is_none() {
            // The next piece waits for the previous one, because nothing else limits the responses.
            return false;
        }
        used == 0 || used + left_of_piece(shared, psns, index) <= window
    }

    /// Tells whether the congestion control has room for the next packet.
    fn control_allows(&self, core: &QpCore, sending: Sending) -> bool {
        let Some(control) = &core.control else { return true };
        if sending != Sending::Trimmed && self.is_resending(sending) {
            // The packet is already counted as in flight, but has left the network.
            return true;
        }
        let absent = u64::from(self.recovery.absent()) * core.mtu() as u64;
        control.has_room(absent, self.asked.is_some())
    }

    fn send_segment(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
        sending: Sending,
    ) -> Option<Sealed> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let index = wqe.first_psn.distance_to(self.cursor);
        let segment = segment(Transport::Rc, wqe, index, core.mtu())?;
        let mut bth = core.bth(shared, segment.opcode, self.cursor);
        bth.solicited = segment.is_end && wqe.flags.contains(SendFlags::SOLICITED);
        bth.ack_req = segment.is_end || self.wants_acknowledgement(core, shared, segment.len);
        let mut writer = writer(core, slot.buffer, &bth, wqe)?;
        write_headers(&mut writer, wqe, index, segment.is_end)?;
        self.gather(core, shared, segment.offset, writer.payload_slot(segment.len).ok()?)?;
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        self.since_ack_request = if bth.ack_req { 0 } else { self.since_ack_request + 1 };
        self.note_sent(core, shared, self.cursor, segment.len, bth.ack_req, sending);
        self.advance_cursor(1, segment.is_end);
        Some(sealed)
    }

    /// Copies the part of the request's data at `offset` into a packet. The request fails if its memory may
    /// not be read.
    #[inline]
    pub(super) fn gather(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        offset: u32,
        target: &mut [u8],
    ) -> Option<()> {
        let gathered = self.sq.gather(&shared.keys, core.pd, self.cursor_wqe, offset, target);
        if let Err(error) = gathered {
            let rule = self.sq.denied(&shared.keys, core.pd, self.cursor_wqe, error);
            self.fail(core, shared, self.cursor_wqe, WcStatus::LocalProtectionError, rule);
        }
        gathered.ok()
    }

    /// Records a request at the cursor that the peer answers with a response up to the PSN `last`.
    pub(super) fn note_response_awaited(
        &mut self,
        core: &mut QpCore,
        shared: &Shared,
        last: Psn,
        sending: Sending,
    ) {
        self.since_ack_request = 0;
        if !self.is_resending(sending) {
            self.outstanding += 1;
            if let Some(wqe) = self.sq.get_mut(self.cursor_wqe)
                && wqe.requested_to.before(last)
            {
                wqe.requested_to = last;
            }
        } else if sending == Sending::Next {
            self.recovery.requested_again(last);
        }
        self.note_sent(core, shared, last, 0, true, sending);
    }

    /// Tells whether the packet at the cursor is one of a selective retransmission or a single repeated one.
    pub(super) fn is_resending(&self, sending: Sending) -> bool {
        sending != Sending::Next || self.cursor != self.unsent && self.recovery.is_resending()
    }

    /// Records the packet at the cursor for the congestion control. `psn` is the PSN of its answer.
    pub(super) fn note_sent(
        &mut self,
        core: &mut QpCore,
        shared: &Shared,
        psn: Psn,
        payload: usize,
        ack_req: bool,
        sending: Sending,
    ) {
        // Selective retransmission sends older packets after newer ones.
        if ack_req && self.asked.is_none_or(|asked| asked.before(psn)) {
            self.asked = Some(psn);
        }
        if ack_req && self.cursor == self.unsent && shared.config.retransmission.early {
            // The first packet of a response proves that the peer is alive.
            self.early.leaves(self.cursor, shared.watched());
        }
        if let Some(control) = &mut core.control {
            // The last response packet of a READ arrives after all data, so it is not a round-trip sample;
            // the answer to a retransmission is ambiguous.
            let measures = psn == self.cursor && self.cursor == self.unsent;
            // Going back resets the bytes in flight; selective retransmission does not add to them.
            let payload = if self.is_resending(sending) { 0 } else { payload };
            if self.cursor != self.unsent {
                control.forget_round_trip();
            }
            control.request_sent(shared.now, SentRequest { psn, payload: payload as u64, ack_req, measures });
        }
    }

    /// Requests an acknowledgement at each quarter of the window, so that a long message keeps the window
    /// moving, and on the packet that fills the window. Otherwise only the timer would make progress.
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

    pub(super) fn advance_cursor(&mut self, psns: u32, message_done: bool) {
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
        // The first packet requests an acknowledgement: a responder that already has it reports its position.
        self.since_ack_request = LONG_AGO;
        self.early.went_back();
        // Answers to packets sent before the go-back are not awaited.
        self.asked = None;
        self.trimmed_response = None;
        self.read_turn = None;
        self.forget_paths();
        self.recovery.on_go_back(self.una);
        if let Some(control) = &mut core.control {
            control.went_back();
        }
    }

    /// Handles the loss of the request packet with this PSN. Informs the congestion control, and without one
    /// the rate limit after losses. The latter ignores a loss at a READ or atomic, because the lost packet
    /// may be the peer's response.
    pub(super) fn lost(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, loss: Loss) {
        core.lost(shared.now, loss);
        let is_payload = |wqe: &Wqe| !wqe.op.awaits_response();
        if let Some(loss) = self.flight.lost(shared.now, psn, self.cursor)
            && self.sq.get(self.sq.head()).is_some_and(is_payload)
        {
            core.lost_after(shared, &loss);
        }
    }

    /// Uses up one retry. Fails the oldest request if no retry is left.
    pub(super) fn spend_retry(&mut self, core: &mut QpCore, shared: &mut Shared, after: Retry) -> bool {
        if let Some(left) = self.retries_left.checked_sub(1) {
            self.retries_left = left;
            return true;
        }
        count!(shared, core, req_transport_retries_exceeded);
        let (oldest, retries) = (self.una, core.attr.retry_cnt);
        let rule = match after {
            Retry::Timeout => {
                let (times, wait_ns) = (retries + 1, Self::configured_timeout(core, shared));
                Rule::AckTimeout { times, wait_ns, oldest, next: self.unsent }
            }
            Retry::Sequence => Rule::SequenceRetries { retries, oldest },
        };
        self.fail(core, shared, self.sq.head(), WcStatus::RetryExceededError, rule);
        false
    }

    /// Ends the pause that an RNR NAK requested.
    pub(crate) fn on_rnr_timer(&mut self) {
        self.mode.end_rnr_pause();
    }

    /// Completes the finished requests at the head of the queue, in order.
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

    /// Fails the request at `position`, and with it the queue pair. Older unanswered requests are flushed
    /// first, so that completions stay in order.
    pub(super) fn fail(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        position: u64,
        status: WcStatus,
        rule: Rule,
    ) {
        tracing::debug!(qpn = core.number.get(), ?status, cause = ?rule.cause(), "send request failed");
        while self.sq.head() < position {
            let Some(wqe) = self.sq.pop() else { break };
            match wqe.progress {
                Progress::Done => core.complete_send(shared, &wqe),
                _ => core.flush_send(shared, &wqe),
            }
        }
        if let Some(wqe) = self.sq.pop() {
            core.fail_send(shared, &wqe, status, rule);
        }
        core.fail(Failure::Reported);
    }
}

/// Begins a request packet: its BTH, and for an XRC connection the number of the shared receive queue.
#[inline]
pub(super) fn writer<'a>(
    core: &QpCore,
    buffer: &'a mut [u8],
    bth: &Bth,
    wqe: &Wqe,
) -> Option<DatagramWriter<'a>> {
    let mut writer = DatagramWriter::new(buffer, bth).ok()?;
    if core.qp_type == QpType::XrcSend {
        writer.xrceth(&Xrceth { srq: wqe.remote_srqn }).ok()?;
    }
    Some(writer)
}
