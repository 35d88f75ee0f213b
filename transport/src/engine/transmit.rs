//! The send path: selects the queue pair that sends next, and its next packet.

use super::Engine;
use super::qp::{Halves, Qp};
use crate::Instant;
use crate::congestion::{CnpPace, Leaving};
use crate::counters::{QpCounters, count};
use crate::io::{Allowed, Batch, Pending, Transmit, TxSlot};
use crate::qp::QpState;
use crate::rc::{RcRequester, RcResponder};
use crate::segment::{KnownPath, Sealed};
use crate::shared::Shared;

/// Maximum number of requests ahead of a pending acknowledgement that do not join a superpacket.
const MOST_PASSING: u8 = 15;
/// Maximum length of the ready queue for which `pending` examines the queue pairs.
const MOST_LOOKED_AT: usize = 16;

/// The queue pair that a congestion notification is about.
struct Own<'a> {
    counters: &'a mut QpCounters,
}

impl Engine {
    /// Writes the next `allowed` datagram, BTH to ICRC, into the slot, and returns its destination and length
    /// in bytes, or `None` if there is nothing to send now. The slot must have room for the headers and the
    /// path MTU of every queue pair.
    ///
    /// Queue pairs take turns of [`quantum`](crate::EngineConfig::quantum) packets. A device can therefore
    /// put consecutive packets into one superpacket, and a peer that reads gigabytes leaves the others their
    /// share. A call writes one packet. A caller that limits its number of calls asks
    /// [`pending`](Self::pending) whether more packets may be waiting.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        slot: &mut TxSlot<'_>,
        allowed: Allowed,
    ) -> Option<Transmit> {
        self.set_now(now);
        if !self.link_is_free() {
            return None;
        }
        if allowed != Allowed::Requests
            && self.owes_notification()
            && let Some(transmit) = self.transmit_notification(slot)
        {
            return Some(transmit);
        }
        let (index, sealed) = match allowed {
            Allowed::All => self.transmit_next(slot),
            _ => self.transmit_some(slot, allowed),
        }?;
        if self.shared.telemetry_out.is_some() {
            return self.leave_with_telemetry(index, sealed, slot);
        }
        self.leave_on_path(index, sealed)
    }

    /// Finishes a datagram that leaves on the path of its queue pair.
    #[inline]
    pub(super) fn leave_on_path(&mut self, index: usize, sealed: Sealed) -> Option<Transmit> {
        let path = self.qps.get(index)?.core.outgoing.as_ref()?.path();
        if let Some(limit) = &mut self.line_limit {
            limit.sent(path, sealed.len.get().into());
        }
        Some(sealed.on(path))
    }

    /// Returns the next packet of any queue pair, regardless of the link.
    #[inline]
    fn transmit_next(&mut self, slot: &mut TxSlot<'_>) -> Option<(usize, Sealed)> {
        while let Some(&index) = self.ready.front() {
            if matches!(self.ready.len(), 2..=MOST_LOOKED_AT) && self.lets_the_next_pass(index, slot.batch) {
                self.end_turn(0);
                continue;
            }
            let Some(qp) = self.qps.get_mut(index) else {
                self.ready.pop_front();
                continue;
            };
            if self.quantum_left <= 1 {
                // An acknowledgement leaves with the turn of its queue pair.
                qp.passed = MOST_PASSING;
            }
            if let Some(sealed) = qp.transmit(&mut self.shared, slot) {
                self.timers.set(index, qp.core.deadlines.next(self.shared.paused));
                self.take_turn(0);
                return Some((index, sealed));
            }
            self.ready.pop_front();
            self.quantum_left = self.shared.config.quantum;
            if let Some(qp) = self.qps.get_mut(index) {
                qp.scheduled = false;
                if qp.core.failure.is_some() {
                    self.settle(index);
                } else {
                    self.timers.set(index, qp.core.deadlines.next(self.shared.paused));
                }
            }
        }
        None
    }

    /// Tells whether the first queue pair of the ready queue, `index`, leaves its place to the next one: if
    /// it has only an acknowledgement, which would end the open superpacket, and the next one has requests
    /// for the same path. Queue pairs that share a source port then fill superpackets together. An
    /// acknowledgement leaves its place once.
    fn lets_the_next_pass(&mut self, index: usize, batch: &Batch) -> bool {
        let Some(path) = batch.path_with_room() else { return false };
        let stays = |qp: &Qp| qp.passed >= MOST_PASSING || qp.has_requests() || !qp.owes_acknowledgement();
        if self.qps.get(index).is_none_or(|qp| stays(qp)) {
            return false;
        }
        let next = self.ready.get(1).and_then(|next| self.qps.get(*next));
        let follows = next.is_some_and(|next| {
            next.has_requests() && next.core.outgoing.as_ref().is_some_and(|outgoing| outgoing.path() == path)
        });
        if follows && let Some(qp) = self.qps.get_mut(index) {
            qp.passed = MOST_PASSING;
        }
        follows
    }

    /// Returns the next packet of the first queue pair that has an allowed one, regardless of the link.
    #[inline(never)]
    fn transmit_some(&mut self, slot: &mut TxSlot<'_>, allowed: Allowed) -> Option<(usize, Sealed)> {
        for place in 0..self.ready.len() {
            let index = *self.ready.get(place)?;
            let Some(qp) = self.qps.get_mut(index) else { continue };
            let sealed = qp.transmit_allowed(&mut self.shared, slot, allowed);
            self.timers.set(index, qp.core.deadlines.next(self.shared.paused));
            if let Some(sealed) = sealed {
                self.take_turn(place);
                return Some((index, sealed));
            }
            if qp.core.failure.is_some() {
                self.settle(index);
            }
        }
        None
    }

    /// Tells whether a packet may leave now. If not, [`poll_timeout`](Self::poll_timeout) tells when one may.
    #[inline]
    fn link_is_free(&mut self) -> bool {
        let now = self.shared.now;
        self.line_limit.as_mut().is_none_or(|limit| !limit.is_busy(now))
    }

    /// Tells whether a congestion notification is due. Notifications leave before everything else.
    #[inline]
    fn owes_notification(&self) -> bool {
        self.notifier.due(self.shared.now).is_some()
    }

    fn transmit_notification(&mut self, slot: &mut TxSlot<'_>) -> Option<Transmit> {
        let now = self.shared.now;
        while let Some(number) = self.notifier.due(now) {
            let index = self.numbers.get(number.get());
            let mut gone = (CnpPace::default(), QpCounters::default());
            let (pace, counters) = match index.and_then(|index| self.qps.get_mut(index)) {
                Some(qp) => (&mut qp.core.cnp_pace, &mut qp.core.counters),
                None => (&mut gone.0, &mut gone.1),
            };
            let own = Own { counters };
            let shared = &mut self.shared;
            match self.notifier.leave(now, &shared.config.notification, pace, slot)? {
                Leaving::NoRoom => return None,
                Leaving::TooEarly => {
                    count!(shared, own, np_cnp_coalesced);
                }
                Leaving::Sent(transmit) => {
                    count!(shared, own, np_cnp_sent);
                    count!(shared, own, rdma_tx_packets);
                    count!(shared, own, rdma_tx_bytes, transmit.len as u64);
                    if let Some(limit) = &mut self.line_limit {
                        limit.sent(&transmit.path, transmit.len);
                    }
                    let dest_qpn = transmit.remote_qpn.get();
                    tracing::debug!(qpn = number.get(), dest_qpn, "CNP sent");
                    return Some(transmit);
                }
            }
        }
        None
    }

    /// Returns the kind of packets that wait to be sent at `now`. For a caller that stopped before
    /// [`poll_transmit`](Self::poll_transmit) returned `None`, to bound the duration of a call, and for one
    /// that delays acknowledgements. The first sends the rest soon, and receives in between.
    ///
    /// Anything but [`Pending::Nothing`] means that packets may be waiting. The call examines at most 16
    /// queue pairs, and none if no packets are pending.
    #[inline]
    #[must_use]
    pub fn pending(&self, now: Instant) -> Pending {
        if self.notifier.due(self.shared.now.max(now)).is_some() {
            Pending::More
        } else if self.ready.is_empty() {
            Pending::Nothing
        } else {
            self.pending_of_ready()
        }
    }

    /// Returns the kind of packets of the queue pairs in the ready queue, which is not empty.
    fn pending_of_ready(&self) -> Pending {
        if self.ready.len() > MOST_LOOKED_AT {
            return Pending::More;
        }
        let mut pending = Pending::Turns;
        for qp in self.ready.iter().filter_map(|index| self.qps.get(*index)) {
            if !qp.owes_at_most_acknowledgement() {
                return Pending::More;
            }
            if qp.owes_acknowledgement() {
                pending = Pending::Acknowledgements;
            }
        }
        pending
    }

    /// Counts a packet of the queue pair at this position of the ready queue, and moves it to the end when
    /// its turn is over.
    #[inline]
    fn take_turn(&mut self, place: usize) {
        self.quantum_left = self.quantum_left.saturating_sub(1);
        if self.quantum_left == 0 {
            self.end_turn(place);
        }
    }

    fn end_turn(&mut self, place: usize) {
        self.quantum_left = self.shared.config.quantum;
        if let Some(index) = self.ready.remove(place) {
            self.ready.push_back(index);
        }
    }
}

impl Qp {
    fn owes_at_most_acknowledgement(&self) -> bool {
        self.core.failure.is_none()
            && match &self.halves {
                Halves::Rc(requester, responder) => {
                    requester.has_sent_all() && responder.owes_at_most_acknowledgement()
                }
                Halves::Uc(requester, _) => requester.sq.len() == 0,
                Halves::Ud(requester, _) => requester.sq.len() == 0,
            }
    }

    /// Tells whether an RC queue pair has requests that it has not sent.
    fn has_requests(&self) -> bool {
        matches!(&self.halves, Halves::Rc(requester, _) if !requester.has_sent_all())
    }

    fn owes_acknowledgement(&self) -> bool {
        matches!(&self.halves, Halves::Rc(_, responder) if responder.owes_only_acknowledgement())
    }

    #[inline]
    fn transmit(&mut self, shared: &mut Shared, slot: &mut TxSlot<'_>) -> Option<Sealed> {
        if !matches!(self.core.attr.state, QpState::Rts | QpState::Sqd) {
            return self.transmit_answer(shared, slot);
        }
        let core = &mut self.core;
        let sealed = match &mut self.halves {
            Halves::Rc(requester, responder) => {
                let turns = (&mut self.requester_turn, &mut self.passed);
                alternate(turns, requester, responder, core, shared, slot)
            }
            Halves::Uc(requester, _) => requester.transmit(core, shared, slot),
            Halves::Ud(requester, _) => requester.transmit(core, shared, slot),
        }?;
        self.count_transmit(shared, sealed);
        Some(sealed)
    }

    /// Sends the next packet, if it is allowed.
    fn transmit_allowed(
        &mut self,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
        allowed: Allowed,
    ) -> Option<Sealed> {
        match allowed {
            Allowed::All => self.transmit(shared, slot),
            Allowed::Requests => self.transmit_request(shared, slot),
            Allowed::Answers => self.transmit_answer(shared, slot),
            Allowed::Data(classes) => {
                let path = self.core.outgoing.as_ref().map(KnownPath::path);
                if path.is_some_and(|path| classes.contains(path)) {
                    self.transmit(shared, slot)
                } else {
                    self.transmit_short_answer(shared, slot)
                }
            }
        }
    }

    /// Sends a packet of the requester.
    fn transmit_request(&mut self, shared: &mut Shared, slot: &mut TxSlot<'_>) -> Option<Sealed> {
        if !matches!(self.core.attr.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        let core = &mut self.core;
        let sealed = match &mut self.halves {
            Halves::Rc(requester, _) => requester.transmit(core, shared, slot),
            Halves::Uc(requester, _) => requester.transmit(core, shared, slot),
            Halves::Ud(requester, _) => requester.transmit(core, shared, slot),
        }?;
        self.count_transmit(shared, sealed);
        Some(sealed)
    }

    /// Sends a packet of the responder of an RC queue pair.
    fn transmit_answer(&mut self, shared: &mut Shared, slot: &mut TxSlot<'_>) -> Option<Sealed> {
        let Halves::Rc(_, responder) = &mut self.halves else { return None };
        let may_send = match self.core.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd => true,
            // The fatal NAK is still sent to the peer.
            QpState::Err => responder.owes_fatal_nak(),
            _ => false,
        };
        let sealed = may_send.then(|| responder.transmit(&mut self.core, shared, slot)).flatten()?;
        self.passed = 0;
        self.count_transmit(shared, sealed);
        Some(sealed)
    }

    /// Sends a packet of the responder unless it is a READ response or must wait for one.
    fn transmit_short_answer(&mut self, shared: &mut Shared, slot: &mut TxSlot<'_>) -> Option<Sealed> {
        let Halves::Rc(_, responder) = &mut self.halves else { return None };
        if responder.sends_read_response() { None } else { self.transmit_answer(shared, slot) }
    }

    #[inline]
    fn count_transmit(&mut self, shared: &mut Shared, sealed: Sealed) {
        count!(shared, self.core, rdma_tx_packets);
        count!(shared, self.core, rdma_tx_bytes, sealed.len.get().into());
    }
}

/// Lets the halves of an RC queue pair take turns. A long READ response therefore does not delay requests,
/// and a long WRITE does not delay the acknowledgements of the other direction.
///
/// Only sending uses up a turn: if packets are paced, both halves often have nothing to send between two
/// packets. A half that sends out of its turn leaves the next turn to the other.
///
/// An acknowledgement is shorter than most requests and so ends its superpacket. Requests therefore go first
/// while it still fits into the same superpacket behind them and the turn of the queue pair lasts; up to
/// [`MOST_PASSING`] of them may begin another. Packets on several paths do not form any.
fn alternate(
    (requester_turn, passed): (&mut bool, &mut u8),
    requester: &mut RcRequester,
    responder: &mut RcResponder,
    core: &mut crate::qp::QpCore,
    shared: &mut Shared,
    slot: &mut TxSlot<'_>,
) -> Option<Sealed> {
    let lets_pass = !*requester_turn
        && *passed < MOST_PASSING
        && !requester.has_paths()
        && responder.owes_only_acknowledgement()
        && slot.batch.leaves_room_behind_another();
    let requester_first = *requester_turn || lets_pass;
    let first = match requester_first {
        true => requester.transmit(core, shared, slot),
        false => responder.transmit(core, shared, slot),
    };
    if let Some(sealed) = first {
        if lets_pass {
            // The first datagram of a superpacket has Identification 0.
            *passed += u8::from(sealed.identification == 0);
        } else {
            *passed = 0;
            *requester_turn = !requester_first;
        }
        return first;
    }
    *passed = 0;
    match requester_first {
        true => responder.transmit(core, shared, slot),
        false => requester.transmit(core, shared, slot),
    }
}
