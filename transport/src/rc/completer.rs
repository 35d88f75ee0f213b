//! The receive path of the requester: acknowledgements, NAKs and responses (IBTA 9.7.5.2, 9.7.6).

use roce_packet::{Datagram, NakCode, Operation, Position, Psn, RnrTimer, Syndrome};

use super::loss::LossRecovery as _;
use super::pieces::{payload_before, piece_of};
use super::requester::{RcRequester, Retry};
use super::timeouts::disarm;
use crate::completion::WcStatus;
use crate::congestion::Loss;
use crate::counters::count;
use crate::qp::QpCore;
use crate::reason::Rule;
use crate::recovery::{SELECTIVE_SYNDROME, TRIMMED_SYNDROME};
use crate::segment::packets;
use crate::shared::Shared;
use crate::sq::{Progress, Wqe};
use crate::timer::Timer;
use crate::verdict::{DropReason, Verdict};
use crate::wr::SendOp;

/// The result of a cumulative acknowledgement.
#[derive(Clone, Copy)]
pub(super) struct Advance {
    /// Whether at least one unacknowledged PSN is now acknowledged.
    pub(super) moved: bool,
    /// Whether an earlier READ or atomic is unanswered because its response was lost. Otherwise everything up
    /// to the PSN is answered.
    response_missing: bool,
}

impl Advance {
    /// Returns the verdict on a packet that had no further effect.
    pub(super) const fn verdict(self, reason: DropReason) -> Verdict {
        if self.moved { Verdict::Handled } else { Verdict::Dropped(reason) }
    }
}

impl RcRequester {
    /// Handles a response packet: an acknowledgement, or the answer to a READ or atomic.
    pub(crate) fn handle_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        let psn = datagram.bth().psn;
        if !self.awaits(psn) && !self.is_overtaken_report(datagram, psn) {
            return self.outside_window(core, shared, psn);
        }
        let Some(aeth) = datagram.aeth().map(|aeth| aeth.syndrome).or_else(|| middle_syndrome(datagram))
        else {
            return Verdict::Dropped(DropReason::Malformed);
        };
        match (datagram.info().operation, aeth) {
            (Operation::Acknowledge, Syndrome::Reserved(SELECTIVE_SYNDROME)) => {
                let received = datagram.aeth().map_or(psn, |aeth| Psn::new(aeth.msn.get()));
                self.on_selective_nak(core, shared, psn, received)
            }
            (Operation::Acknowledge, Syndrome::Reserved(TRIMMED_SYNDROME)) => {
                let trimmed = datagram.aeth().map_or(psn, |aeth| Psn::new(aeth.msn.get()));
                self.on_trimmed_report(core, shared, (psn, trimmed))
            }
            (_, Syndrome::Reserved(_)) => Verdict::Dropped(DropReason::ReservedSyndrome),
            (Operation::Acknowledge, Syndrome::Ack { .. }) => self.on_ack(core, shared, psn),
            (Operation::Acknowledge, Syndrome::RnrNak { timer }) => self.on_rnr(core, shared, psn, timer),
            (Operation::Acknowledge, Syndrome::Nak(NakCode::PsnSequence)) => {
                self.on_sequence_nak(core, shared, psn)
            }
            (Operation::Acknowledge, Syndrome::Nak(code)) => self.on_fatal_nak(core, shared, psn, code),
            (Operation::ReadResponse | Operation::AtomicAcknowledge, Syndrome::Ack { .. }) => {
                self.on_response(core, shared, datagram)
            }
            (
                Operation::ReadResponse
                | Operation::AtomicAcknowledge
                | Operation::Send
                | Operation::Write
                | Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Resync
                | Operation::Flush
                | Operation::AtomicWrite
                | Operation::Cnp,
                Syndrome::Ack { .. } | Syndrome::RnrNak { .. } | Syndrome::Nak(_),
            ) => self.unexpected_response(core, shared, datagram),
        }
    }

    /// Tells whether this is the report of a trimmed request that a later acknowledgement overtook. The
    /// request is still missing, so the report counts.
    fn is_overtaken_report(&self, datagram: &Datagram<'_>, psn: Psn) -> bool {
        let is_report = || {
            datagram.info().operation == Operation::Acknowledge
                && datagram.aeth().is_some_and(|aeth| aeth.syndrome == Syndrome::Reserved(TRIMMED_SYNDROME))
        };
        self.recovery.selects() && psn.before(self.una) && is_report()
    }

    /// Handles a PSN that is not outstanding: a duplicate of an old one, or one that was never sent.
    fn outside_window(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) -> Verdict {
        if psn.before(self.una) {
            count!(shared, core, stale_responses);
            Verdict::Dropped(DropReason::StaleResponse)
        } else {
            Verdict::Dropped(DropReason::UnsentPsn)
        }
    }

    /// Acknowledges everything up to and including `psn`, except READs and atomics, which need a response.
    fn advance(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) -> Advance {
        if psn.before(self.una) {
            return Advance { moved: false, response_missing: false };
        }
        let before = self.una;
        let mut payload = 0;
        let mut response_missing = false;
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get_mut(position) {
            position += 1;
            match wqe.progress {
                Progress::Done => continue,
                Progress::Posted => break,
                Progress::Started => {}
            }
            if wqe.is_behind(psn, before) {
                break;
            }
            if wqe.op.awaits_response() {
                response_missing = true;
                break;
            }
            let last = wqe.last_psn();
            // A partial acknowledgement may have arrived before.
            let from = if self.una.before(wqe.first_psn) { wqe.first_psn } else { self.una };
            self.una = if psn.before(last) { psn.next() } else { last.next() };
            let index = |psn| payload_before(wqe, wqe.first_psn.distance_to(psn), core.mtu());
            payload += index(self.una) - index(from);
            if psn.before(last) {
                break;
            }
            wqe.progress = Progress::Done;
        }
        let moved = self.una != before;
        if moved {
            self.passed();
            self.progressed(core, shared, payload);
        }
        Advance { moved, response_missing }
    }

    /// Handles progress of `una` over `payload` bytes: reloads the retry counts, restarts the timer, and
    /// completes finished requests.
    fn progressed(&mut self, core: &mut QpCore, shared: &mut Shared, payload: u64) {
        if let Some(spread) = &mut self.spread {
            spread.passed(shared.now, self.una);
        }
        core.take_answer(shared);
        self.asked = self.asked.filter(|psn| !psn.before(self.una));
        core.deadlines.set(Timer::Late, None);
        if let Some(control) = &mut core.control {
            control.acknowledged(shared.now, self.una, payload);
        }
        self.reload_retries(core);
        self.early.answered(self.una, shared.watched());
        if core::mem::take(&mut self.mode).is_rnr_pause() {
            core.deadlines.set(Timer::Rnr, None);
        }
        if self.cursor.before(self.una) {
            // The acknowledgement arrived before the retransmission left.
            count!(shared, core, spurious_retransmits);
            self.cursor = self.una;
            self.cursor_wqe = self.sq.head();
            self.read_turn = None;
        }
        self.arm(core, shared);
        self.retire(core, shared);
    }

    /// Tells the loss recovery that `una` moved.
    fn passed(&mut self) {
        let was_resending = self.recovery.is_resending();
        self.recovery.on_progress(self.una);
        if was_resending && !self.recovery.is_resending() {
            // What was not sent again by now was not lost.
            self.seek(self.unsent);
        }
    }

    fn on_ack(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) -> Verdict {
        self.arrived(shared, psn);
        let advance = self.advance(core, shared, psn);
        if !advance.response_missing {
            return Verdict::Handled;
        }
        if !self.recovery.selects() {
            return self.on_lost_response(core, shared, advance);
        }
        self.note_executed(psn);
        self.on_overtaken(core, shared, psn);
        Verdict::Handled
    }

    /// Handles a later answer while a READ or atomic is unanswered: an implied NAK (IBTA 9.7.5.2.9).
    fn on_lost_response(&mut self, core: &mut QpCore, shared: &mut Shared, advance: Advance) -> Verdict {
        if self.mode.went_back_for(self.una) || self.cursor == self.una {
            // The request is already being retransmitted; the arriving packets were sent before that.
            return advance.verdict(DropReason::ResponseGap);
        }
        if self.spend_retry(core, shared, Retry::Sequence) {
            count!(shared, core, implied_nak_seq_err);
            core.lost(shared.now, Loss::Nak);
            self.mode.record_nak(self.una);
            self.blame_oldest(shared.now);
            self.go_back(core, shared);
            self.arm(core, shared);
        }
        Verdict::Handled
    }

    /// Acknowledges every PSN before `psn`, which a NAK or a response names.
    ///
    /// # Errors
    ///
    /// Returns the verdict on the packet if the response to an earlier READ or atomic is missing. Never fails
    /// with selective repeat, because the response may be late.
    pub(super) fn advance_before(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        psn: Psn,
    ) -> Result<Advance, Verdict> {
        let advance = self.advance(core, shared, psn.sub(1));
        if !advance.response_missing {
            return Ok(advance);
        }
        if !self.recovery.selects() {
            return Err(self.on_lost_response(core, shared, advance));
        }
        self.note_executed(psn.sub(1));
        Ok(advance)
    }

    pub(super) fn on_sequence_nak(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) -> Verdict {
        let advance = match self.advance_before(core, shared, psn) {
            Ok(advance) => advance,
            Err(verdict) => return verdict,
        };
        if self.mode.went_back_for(psn) || self.cursor == psn {
            // Already retransmitted. The NAK may still have acknowledged earlier packets.
            if !advance.moved {
                count!(shared, core, stale_responses);
            }
            return advance.verdict(DropReason::StaleResponse);
        }
        if self.spend_retry(core, shared, Retry::Sequence) {
            count!(shared, core, packet_seq_err);
            self.lost(core, shared, psn, Loss::Nak);
            self.mode.record_nak(psn);
            self.blame(shared.now, psn);
            self.go_back(core, shared);
            self.arm(core, shared);
        }
        Verdict::Handled
    }

    fn on_rnr(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, timer: RnrTimer) -> Verdict {
        self.arrived(shared, psn);
        if let Err(verdict) = self.advance_before(core, shared, psn) {
            return verdict;
        }
        if self.mode.is_rnr_pause() {
            count!(shared, core, stale_responses);
            return Verdict::Dropped(DropReason::StaleResponse);
        }
        match (core.attr.rnr_retry, self.rnr_retries_left.checked_sub(1)) {
            (7, _) => {}
            (_, Some(left)) => self.rnr_retries_left = left,
            // With selective repeat, a response before it may still be missing. The next RNR NAK counts.
            (_, None) if self.una != psn => {}
            (_, None) => {
                count!(shared, core, req_rnr_retries_exceeded);
                let (retries, delay_ns) = (core.attr.rnr_retry, timer.delay_ns());
                let (status, rule) =
                    (WcStatus::RnrRetryExceededError, Rule::RnrRetries { retries, delay_ns, psn });
                self.fail(core, shared, self.sq.head(), status, rule);
                return Verdict::Handled;
            }
        }
        count!(shared, core, rnr_nak_retry_err);
        self.mode.begin_rnr_pause();
        self.go_back(core, shared);
        disarm(core);
        core.deadlines.set(Timer::Rnr, Some(shared.now.plus_nanos(timer.delay_ns())));
        Verdict::Handled
    }

    fn on_fatal_nak(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, code: NakCode) -> Verdict {
        if let Err(verdict) = self.advance_before(core, shared, psn) {
            return verdict;
        }
        let status = match code {
            NakCode::RemoteAccess => {
                count!(shared, core, req_remote_access_errors);
                WcStatus::RemoteAccessError
            }
            NakCode::RemoteOperational => WcStatus::RemoteOperationError,
            NakCode::InvalidRequest => {
                count!(shared, core, req_remote_invalid_request);
                WcStatus::RemoteInvalidRequestError
            }
            NakCode::PsnSequence | NakCode::InvalidRdRequest | NakCode::Reserved(_) => {
                WcStatus::RemoteInvalidRequestError
            }
        };
        let position = self.position_of(psn);
        self.fail(core, shared, position, status, Rule::Nak { code, psn });
        Verdict::Handled
    }

    /// Returns the position of the request that contains `psn`, or of the oldest request if none contains it.
    fn position_of(&self, psn: Psn) -> u64 {
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position) {
            if wqe.contains(psn) {
                return position;
            }
            position += 1;
        }
        self.sq.head()
    }

    /// Returns the request that contains `psn`.
    pub(super) fn request_of(&self, psn: Psn) -> Option<&Wqe> {
        self.sq.get(self.position_of(psn)).filter(|wqe| wqe.contains(psn))
    }

    /// Handles the answer to a READ, an atomic, an ATOMIC WRITE or a FLUSH.
    fn on_response(&mut self, core: &mut QpCore, shared: &mut Shared, datagram: &Datagram<'_>) -> Verdict {
        let psn = datagram.bth().psn;
        if let Err(verdict) = self.advance_before(core, shared, psn) {
            return verdict;
        }
        let position = self.position_of(psn);
        let is_requested = |wqe: &Wqe| wqe.contains(psn) && !wqe.requested_to.before(psn);
        let Some(wqe) = self.sq.get(position).copied().filter(is_requested) else {
            return self.unexpected_response(core, shared, datagram);
        };
        if self.recovery.is_answered(psn) {
            count!(shared, core, stale_responses);
            return Verdict::Dropped(DropReason::StaleResponse);
        }
        let info = datagram.info();
        let is_read_response = info.operation == Operation::ReadResponse;
        let expected = match wqe.op {
            SendOp::Read { .. } => is_read_response,
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => {
                is_read_response && info.position == Position::Only && datagram.payload_len() == 0
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => !is_read_response,
            SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteWithImm { .. }
            | SendOp::BindWindow { .. }
            | SendOp::LocalInvalidate { .. } => false,
        };
        if !expected {
            return self.unexpected_response(core, shared, datagram);
        }
        let piece = piece_of(shared, &wqe, psn);
        let original = datagram.atomic_ack_eth().map(|ack| ack.original.to_ne_bytes());
        let (offset, payload) = match &original {
            Some(bytes) => (0, (bytes.as_slice(), [].as_slice())),
            None => {
                let index = wqe.first_psn.distance_to(psn);
                // With selective repeat, a request for missing responses may end anywhere.
                let must_end = psn == piece.1;
                let may_end = must_end || self.recovery.selects();
                if let Err(rule) = check_read_response(&wqe, index, core.mtu(), datagram, (must_end, may_end))
                {
                    return self.bad_response(core, shared, psn, rule);
                }
                (index * core.mtu() as u32, datagram.payload())
            }
        };
        if let Err(error) = self.sq.scatter(&shared.keys, core.pd, position, offset, payload) {
            let rule = self.sq.denied(&shared.keys, core.pd, position, error);
            self.fail(core, shared, position, WcStatus::LocalProtectionError, rule);
            return Verdict::Handled;
        }
        // The request for the piece, or the one for a part of it.
        self.arrived(shared, piece.0);
        self.arrived(shared, psn);
        if psn == self.una {
            self.pass_responses(core, shared, 1);
            self.pass_answered(core, shared);
            self.ask_for_trimmed(core, shared);
            return Verdict::Handled;
        }
        self.recovery.note_answered(psn, piece);
        self.note_executed(psn);
        self.on_overtaken(core, shared, psn);
        Verdict::Handled
    }

    /// Moves `una` past this number of responses in one piece of the oldest request, which have arrived.
    fn pass_responses(&mut self, core: &mut QpCore, shared: &mut Shared, count: u32) {
        let position = self.sq.head();
        let Some(wqe) = self.sq.get_mut(position) else { return };
        let (_, last) = piece_of(shared, wqe, self.una);
        let ends = self.una.distance_to(last) < count;
        self.una = self.una.add(count);
        if wqe.last_psn().before(self.una) {
            wqe.progress = Progress::Done;
        }
        if ends {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        self.passed();
        self.progressed(core, shared, 0);
    }

    /// With selective repeat, moves `una` past what arrived, or was acknowledged, before its turn.
    fn pass_answered(&mut self, core: &mut QpCore, shared: &mut Shared) {
        if !self.recovery.selects() {
            return;
        }
        loop {
            if let Some(executed) = self.recovery.executed() {
                self.advance(core, shared, executed);
            }
            let answered = self.recovery.answered_from(self.una);
            let Some(wqe) = self.sq.get(self.sq.head()).filter(|wqe| wqe.contains(self.una)) else { return };
            let (_, last) = piece_of(shared, wqe, self.una);
            let count = answered.min(self.una.distance_to(last) + 1);
            if count == 0 {
                return;
            }
            self.pass_responses(core, shared, count);
        }
    }

    /// Handles a response of the wrong kind for the oldest outstanding request.
    fn unexpected_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        self.bad_response(core, shared, datagram.bth().psn, unexpected(datagram))
    }

    /// Handles an impossible response: fails the request that it claims to answer (IBTA 9.9.2.3).
    fn bad_response(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, rule: Rule) -> Verdict {
        let position = self.position_of(psn);
        self.fail(core, shared, position, WcStatus::BadResponseError, rule);
        Verdict::Handled
    }
}

/// Returns the syndrome of a READ Response Middle, which has no AETH and counts as an acknowledgement.
fn middle_syndrome(datagram: &Datagram<'_>) -> Option<Syndrome> {
    (datagram.info().operation == Operation::ReadResponse).then_some(Syndrome::Ack { credit_code: 31 })
}

/// Checks the position and the length of the response packet with this index, where the response must end or
/// may end. First and Middle are not distinguished: a late Middle of the first request may arrive where the
/// second one begins.
fn check_read_response(
    wqe: &Wqe,
    index: u32,
    mtu: usize,
    datagram: &Datagram<'_>,
    (must_end, may_end): (bool, bool),
) -> Result<(), Rule> {
    if !matches!(wqe.op, SendOp::Read { .. }) {
        return Ok(());
    }
    let is_end = matches!(datagram.info().position, Position::Last | Position::Only);
    if is_end && !may_end || must_end && !is_end {
        return Err(unexpected(datagram));
    }
    let expected =
        if index + 1 < packets(wqe.len, mtu) { mtu } else { wqe.len as usize - index as usize * mtu };
    if datagram.payload_len() == expected {
        return Ok(());
    }
    let (psn, len, expected) = (datagram.bth().psn, datagram.payload_len() as u32, expected as u32);
    Err(Rule::ResponseLength { psn, len, expected })
}

/// Returns the rule for a response of the wrong kind.
fn unexpected(datagram: &Datagram<'_>) -> Rule {
    Rule::UnexpectedResponse { psn: datagram.bth().psn, opcode: datagram.bth().opcode }
}
