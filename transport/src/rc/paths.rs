//! How requester and responder use the paths of a queue pair with several.

use alloc::boxed::Box;

use roce_packet::Psn;

use super::loss::LossRecovery as _;
use super::mode::Sending;
use super::requester::RcRequester;
use super::responder::RcResponder;
use super::spread::{AnswerPaths, Spread};
use crate::Instant;
use crate::congestion::{PathFeedback, PathSet};
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::sq::Wqe;
use crate::wr::Course;

impl RcRequester {
    /// Begins to use the paths of the queue pair, when its path is set.
    pub(crate) fn spread(&mut self, core: &QpCore) {
        // Each connection has another seed, and every run of a simulation the same.
        let seed = u64::from(core.attr.dest_qpn.get()) << 32 | u64::from(core.number.get());
        let paths = core.paths.as_ref().filter(|_| core.path_count() > 1);
        let paths = paths.and_then(|paths| PathSet::new(paths, seed));
        self.spread = paths.map(|paths| Box::new(Spread::new(paths, core.number, self.una)));
    }

    /// Tells whether there are several paths.
    pub(crate) fn has_paths(&self) -> bool {
        self.spread.is_some()
    }

    /// Chooses the path of the packet at the cursor.
    pub(super) fn choose_path(&mut self, core: &mut QpCore, now: Instant, sending: Sending) {
        let (psn, is_again) = (self.cursor, self.cursor != self.unsent);
        // Selective retransmission shows the loss of this packet, and a probe that of the oldest one.
        let is_lost = match sending {
            Sending::Next => is_again && self.recovery.is_resending(),
            Sending::Probe => psn == self.una,
            Sending::Trimmed => false,
        };
        if is_lost {
            self.blame(now, psn);
        }
        if let Some(spread) = &mut self.spread {
            core.leave_by(spread.leaves(now, psn, is_again));
        }
    }

    /// Tells whether all packets that are taken for lost left on excluded paths. Their loss shows no
    /// congestion.
    pub(super) fn only_probes_are_missing(&self) -> bool {
        let Some(spread) = &self.spread else { return false };
        let mut psn = self.una;
        while let Some(missing) = self.recovery.next(psn) {
            if !spread.is_probe(missing) {
                return false;
            }
            psn = missing.next();
        }
        true
    }

    /// Reports the loss of the packet with this PSN, unless it may be the response that was lost.
    pub(super) fn blame(&mut self, now: Instant, psn: Psn) {
        if self.spread.is_none() {
            return;
        }
        let is_read = |wqe: &Wqe| wqe.op.course() == Course::Read;
        let is_executed = self.recovery.executed().is_some_and(|executed| !executed.before(psn));
        if !is_executed && !self.request_of(psn).is_some_and(is_read) {
            self.report(now, psn, PathFeedback::Lost);
        }
    }

    /// Reports the loss of the oldest packet in flight. The others are sent again, but may have arrived.
    pub(super) fn blame_oldest(&mut self, now: Instant) {
        self.blame(now, self.una);
        self.forget_paths();
    }

    /// Gives up to learn which packets in flight arrive.
    pub(super) fn forget_paths(&mut self) {
        if let Some(spread) = &mut self.spread {
            spread.forget();
        }
    }

    /// Reports that the request packet with this PSN arrived, before its answer takes effect.
    pub(super) fn arrived(&mut self, shared: &Shared, psn: Psn) {
        let is_marked = shared.answer.as_ref().is_some_and(|answer| answer.marked);
        let feedback = if is_marked { PathFeedback::Marked } else { PathFeedback::Delivered };
        self.report(shared.now, psn, feedback);
    }

    /// Reports the fate of the request packet with this PSN, if there are several paths.
    pub(super) fn report(&mut self, now: Instant, psn: Psn, feedback: PathFeedback) {
        if let Some(spread) = &mut self.spread {
            spread.report(now, psn, feedback);
        }
    }

    /// Handles a CNP about a packet with this source port.
    pub(crate) fn notified(&mut self, core: &QpCore, now: Instant, source_port: u16) {
        if let (Some(spread), Some(path)) = (&mut self.spread, core.path_with(source_port)) {
            spread.marked(now, path);
        }
    }
}

impl RcResponder {
    /// Begins to use the paths of the queue pair, when its path is set.
    pub(crate) fn spread(&mut self, core: &QpCore) {
        self.paths = AnswerPaths::new(core.path_count());
    }

    /// Records the source port of a request from the peer.
    pub(crate) fn arrived_on(&mut self, source_port: u16) {
        if let Some(paths) = &mut self.paths {
            paths.arrived_on(source_port);
        }
    }

    /// Chooses the path of the next answer.
    pub(super) fn choose_path(&mut self, core: &mut QpCore, is_response: bool) {
        if let Some(paths) = &mut self.paths {
            core.leave_by(paths.next(is_response));
        }
    }
}
