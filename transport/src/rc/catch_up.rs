//! The responder with selective repeat: it keeps early requests and executes them when the gap is closed.

use roce_packet::Datagram;

use super::owed::Reply;
use super::reorder::Kept;
use super::responder::RcResponder;
use crate::counters::count;
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::verdict::Verdict;

impl RcResponder {
    /// With selective repeat, keeps a packet ahead of the expected one, and reports its arrival.
    pub(super) fn keep_early(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        let kept = self.reorder.as_mut().map_or(Kept::No, |reorder| reorder.keep(self.epsn, datagram));
        if kept == Kept::No {
            return self.gap(core, shared);
        }
        count!(shared, core, out_of_sequence);
        if !self.paused {
            self.nak_sent = true;
            self.set_kept_aside();
            self.reply = Some(Reply::Kept(datagram.bth().psn));
        }
        Verdict::Handled
    }

    /// Executes the kept packets that follow the expected one, up to the next gap.
    pub(super) fn catch_up(&mut self, core: &mut QpCore, shared: &mut Shared) {
        let mut caught_up = false;
        while core.failure.is_none() {
            let psn = self.epsn;
            let Some(early) = self.reorder.as_mut().and_then(|reorder| reorder.take(psn)) else { break };
            caught_up = true;
            match early.datagram().map(|datagram| self.execute(core, shared, &datagram)) {
                Some(Ok(())) => {}
                Some(Err(refusal)) => return self.refuse(core, shared, psn, refusal),
                None => break,
            }
        }
        if caught_up {
            self.forget_executed();
        }
        if caught_up && core.failure.is_none() {
            // The peer waits for this acknowledgement, whether or not a packet requested it.
            self.owe_acknowledgement(core, shared);
        }
    }
}
