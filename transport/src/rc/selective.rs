//! The requester's side of loss recovery: which packets are sent again.
//!
//! Going back (IBTA 9.7.5.1.4) is what the requester does by itself. Anything else is a [`LossRecovery`]: it is told what
//! the responder says and names the packets that a retransmission passes over and where it ends.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use core::fmt;

use roce_packet::Psn;

use super::requester::RcRequester;
use crate::completion::Cause;
use crate::congestion::Loss;
use crate::counters::count;
use crate::qp::QpCore;
use crate::recovery::SelectiveRepeat;
use crate::shared::Shared;
use crate::sq::Progress;
use crate::verdict::{DropReason, Verdict};

/// A way to make up for losses other than going back.
pub(super) trait LossRecovery: fmt::Debug + Send {
    /// PSNs that may be unacknowledged.
    fn window(&self) -> u32;

    /// Nanoseconds without an answer after which something is taken for lost, with so many PSNs in flight.
    fn timeout(&self, in_flight: u32) -> u64;

    /// The responder has `received` but not `una`. Gives the first packet of a retransmission that this begins, and
    /// whether it is the first since everything was well.
    fn on_received(&mut self, una: Psn, unsent: Psn, received: Psn) -> Option<(Psn, bool)>;

    /// A switch trimmed this packet, which is in flight. Returns whether it is to be sent again, unless it already waits for that.
    fn on_trimmed(&mut self, trimmed: Psn) -> bool;

    /// The next trimmed packet that is to be sent again, which is then taken for sent.
    fn next_trimmed(&mut self, una: Psn, unsent: Psn) -> Option<Psn>;

    /// A loss was seen. Returns whether it is the first since everything was well.
    fn begins(&mut self, unsent: Psn) -> bool;

    /// Nothing came for too long: a retransmission begins at `una`.
    fn on_timeout(&mut self, una: Psn, unsent: Psn);

    /// Everything from `before` to `una` is acknowledged.
    fn on_progress(&mut self, before: Psn, una: Psn);

    /// The requester goes back and sends everything again.
    fn on_go_back(&mut self);

    /// Whether a retransmission of its own is under way.
    fn is_resending(&self) -> bool;

    /// The first packet from `cursor` on that is to be sent again; `None` when the retransmission is over.
    fn next(&self, una: Psn, cursor: Psn) -> Option<Psn>;
}

/// Selective repeat: see [`SelectiveRepeat`].
#[derive(Debug)]
pub(super) struct Selective {
    settings: SelectiveRepeat,
    /// What is known of a packet, by the low bits of its PSN; only those in flight count. Empty until something is known.
    known: Box<[Known]>,
    /// Trimmed packets that wait for being sent again.
    trimmed: VecDeque<Psn>,
    /// Packets before this one are sent again unless they were received. `None` while nothing is sent again.
    end: Option<Psn>,
    /// The first packet that was unsent when the loss was seen; beyond it begins another loss.
    until: Option<Psn>,
}

/// What is known of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The responder has it.
    Received,
    /// It was trimmed and waits for being sent again.
    Trimmed,
    /// It was trimmed and sent again since.
    Repeated,
}

impl Selective {
    pub(super) fn new(settings: &SelectiveRepeat) -> Self {
        Self { settings: *settings, known: Box::default(), trimmed: VecDeque::new(), end: None, until: None }
    }

    /// A place that does not exist while nothing is known.
    fn slot(&self, psn: Psn) -> usize {
        psn.get() as usize & self.known.len().wrapping_sub(1)
    }

    fn known(&self, psn: Psn) -> Known {
        self.known.get(self.slot(psn)).copied().unwrap_or(Known::Nothing)
    }

    fn set(&mut self, psn: Psn, known: Known) {
        if self.known.is_empty() && known != Known::Nothing {
            let slots = self.settings.cap().next_power_of_two() as usize;
            self.known = vec![Known::Nothing; slots].into_boxed_slice();
        }
        let slot = self.slot(psn);
        if let Some(place) = self.known.get_mut(slot) {
            *place = known;
        }
    }
}

impl LossRecovery for Selective {
    fn window(&self) -> u32 {
        self.settings.cap()
    }

    fn timeout(&self, in_flight: u32) -> u64 {
        let SelectiveRepeat { rto_low, rto_high, few, .. } = self.settings;
        let micros = if in_flight <= few { rto_low } else { rto_high };
        u64::from(micros.max(1)) * 1_000
    }

    fn on_received(&mut self, una: Psn, unsent: Psn, received: Psn) -> Option<(Psn, bool)> {
        let ahead = una.distance_to(received);
        if ahead == 0 || ahead >= self.settings.cap() || ahead >= una.distance_to(unsent) {
            return None;
        }
        self.set(received, Known::Received);
        // Packets in front of it may be late and not lost.
        let late = self.settings.reorder.min(ahead);
        let end = received.sub(late);
        // What was sent again once is given the time to arrive; the timer knows how long.
        let from = self.end.filter(|end| !end.before(una)).unwrap_or(una);
        if !from.before(end) {
            return None;
        }
        self.end = Some(end);
        Some((from, self.begins(unsent)))
    }

    fn on_trimmed(&mut self, trimmed: Psn) -> bool {
        let asks = matches!(self.known(trimmed), Known::Nothing | Known::Repeated);
        if asks {
            self.set(trimmed, Known::Trimmed);
            self.trimmed.push_back(trimmed);
        }
        asks
    }

    fn next_trimmed(&mut self, una: Psn, unsent: Psn) -> Option<Psn> {
        while let Some(psn) = self.trimmed.pop_front() {
            // It may have arrived since: as a copy, or by going back.
            if una.distance_to(psn) < una.distance_to(unsent) && self.known(psn) == Known::Trimmed {
                self.set(psn, Known::Repeated);
                return Some(psn);
            }
        }
        None
    }

    fn begins(&mut self, unsent: Psn) -> bool {
        let is_first = self.until.is_none();
        self.until = self.until.or(Some(unsent));
        is_first
    }

    fn on_timeout(&mut self, _una: Psn, unsent: Psn) {
        self.end = Some(unsent);
        self.until = Some(unsent);
        // What was trimmed is sent again with the rest.
        self.trimmed.clear();
        for known in &mut self.known {
            if *known != Known::Received {
                *known = Known::Nothing;
            }
        }
    }

    fn on_progress(&mut self, before: Psn, una: Psn) {
        let passed = before.distance_to(una);
        if passed as usize >= self.known.len() {
            self.known.fill(Known::Nothing);
        } else {
            for step in 0..passed {
                self.set(before.add(step), Known::Nothing);
            }
        }
        if self.until.is_some_and(|until| !una.before(until)) {
            (self.end, self.until) = (None, None);
        }
    }

    fn on_go_back(&mut self) {
        self.known.fill(Known::Nothing);
        self.trimmed.clear();
        (self.end, self.until) = (None, None);
    }

    fn is_resending(&self) -> bool {
        self.end.is_some()
    }

    fn next(&self, una: Psn, cursor: Psn) -> Option<Psn> {
        let end = self.end?;
        let mut psn = cursor;
        while psn.before(end) {
            match self.known(psn) {
                Known::Nothing => return Some(psn),
                // The oldest one is what the responder waits for, whatever it said before.
                Known::Received if psn == una => return Some(psn),
                // What was trimmed is sent on its own.
                Known::Received | Known::Trimmed | Known::Repeated => {}
            }
            psn = psn.next();
        }
        None
    }
}

/// What a [`LossRecovery`] makes of the cursor.
impl RcRequester {
    /// Moves the cursor to a packet that is in flight, or to the first unsent one.
    pub(super) fn seek(&mut self, psn: Psn) {
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position) {
            if wqe.progress == Progress::Posted || wqe.contains(psn) {
                break;
            }
            position += 1;
        }
        (self.cursor, self.cursor_wqe) = (psn, position);
    }

    /// In a retransmission: moves the cursor over what the responder has, and at its end to what was never sent.
    pub(super) fn pass_over_received(&mut self) {
        let Some(recovery) = self.recovery.as_ref().filter(|recovery| recovery.is_resending()) else {
            return;
        };
        if self.cursor == self.unsent || self.is_aside {
            return;
        }
        let next = recovery.next(self.una, self.cursor).unwrap_or(self.unsent);
        if next != self.cursor {
            self.seek(next);
        }
    }

    /// Whether a READ or atomic is in flight, whose answer has to come in order.
    pub(super) fn awaits_responses(&self) -> bool {
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position).filter(|wqe| wqe.progress != Progress::Posted) {
            if wqe.progress == Progress::Started && wqe.op.awaits_response() {
                return true;
            }
            position += 1;
        }
        false
    }

    /// The responder kept `received` and misses `psn`.
    pub(super) fn on_selective_nak(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        psn: Psn,
        received: Psn,
    ) -> Verdict {
        if self.recovery.is_none() {
            return Verdict::Dropped(DropReason::ReservedSyndrome);
        }
        if self.awaits_responses() {
            return self.on_sequence_nak(core, shared, psn);
        }
        let advance = match self.advance_before(core, shared, psn) {
            Ok(advance) => advance,
            Err(verdict) => return verdict,
        };
        let (una, unsent) = (self.una, self.unsent);
        // Where everything is being sent again there is nothing to choose.
        let goes_back = self.cursor != unsent;
        let Some(recovery) = &mut self.recovery else { return Verdict::Handled };
        if una != psn || goes_back && !recovery.is_resending() {
            return advance.verdict(DropReason::StaleResponse);
        }
        let Some((from, is_first)) = recovery.on_received(una, unsent, received) else {
            return Verdict::Handled;
        };
        if is_first {
            if !self.spend_retry(core, shared, Cause::SequenceRetries) {
                return Verdict::Handled;
            }
            count!(shared, core, packet_seq_err);
            count!(shared, core, retransmit_rounds);
            self.lost(core, shared, psn, Loss::Nak);
            self.arm(core, shared);
        }
        if from.before(self.cursor) {
            self.seek(from);
        }
        Verdict::Handled
    }

    /// After a timeout: retransmits what the responder has not reported as received, if that is possible.
    pub(super) fn resend_after_timeout(&mut self, core: &mut QpCore, shared: &mut Shared) -> bool {
        if self.recovery.is_none() || self.awaits_responses() {
            return false;
        }
        count!(shared, core, retransmit_rounds);
        let (una, unsent) = (self.una, self.unsent);
        if let Some(recovery) = &mut self.recovery {
            recovery.on_timeout(una, unsent);
        }
        self.seek(una);
        self.is_held = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_late_and_not_lost_until_enough_others_have_overtaken_it() {
        let mut selective = Selective::new(&SelectiveRepeat { reorder: 3, ..SelectiveRepeat::default() });
        // Near the end of the number space, where numbers start again.
        let una = Psn::new(0xff_fffe);
        let unsent = una.add(20);
        for ahead in 1..=3 {
            assert_eq!(selective.on_received(una, unsent, una.add(ahead)), None, "{ahead} ahead");
            assert!(!selective.is_resending());
        }
        assert_eq!(selective.on_received(una, unsent, una.add(4)), Some((una, true)), "it is lost");
        assert_eq!(selective.next(una, una), Some(una));
        assert_eq!(selective.next(una, una.add(1)), None, "the others may be late only");
        // Packets 5 and 7 are missing, too; 5 is four behind 9.
        for ahead in [6, 8] {
            assert_eq!(selective.on_received(una, unsent, una.add(ahead)), Some((una.add(ahead - 5), false)));
            assert_eq!(selective.next(una, una.add(1)), None);
        }
        assert_eq!(selective.on_received(una, unsent, una.add(9)), Some((una.add(5), false)));
        assert_eq!(selective.next(una, una.add(1)), Some(una.add(5)));
        selective.on_timeout(una, unsent);
        assert_eq!(
            selective.next(una, una.add(6)),
            Some(una.add(7)),
            "after a timeout everything is sent that is missing"
        );
    }
}
