//! Loss recovery of the requester: which packets are sent again, and what a trimmed packet leads to.
//!
//! By default the requester goes back (IBTA 9.7.5.1.4). A [`LossRecovery`] that selects packets is informed
//! of the reports of the responder, and selects the packets and the end of a retransmission.

use roce_packet::Psn;

/// A method of loss recovery. The defaults are those of go-back-N, which selects nothing.
pub(super) trait LossRecovery {
    /// Tells whether the method selects the packets to be sent again. If not, the requester goes back, and
    /// reports of the responder are unexpected.
    fn selects(&self) -> bool {
        false
    }

    /// Returns the maximum number of unacknowledged PSNs.
    fn window(&self) -> u32 {
        u32::MAX
    }

    /// Returns the time in ns after which an unanswered packet counts as lost, with `in_flight` PSNs in
    /// flight. `None` stands for the local ACK timeout of the queue pair.
    fn timeout(&self, _in_flight: u32) -> Option<u64> {
        None
    }

    /// Handles a report that the responder has `received` but not `una`. Returns the first packet of the
    /// retransmission that this starts, and whether it is the first of its loss episode.
    fn on_received(&mut self, _una: Psn, _unsent: Psn, _received: Psn) -> Option<(Psn, bool)> {
        None
    }

    /// Handles a report that a request in flight was trimmed. Returns whether the request had been
    /// trimmed and sent again before, or `None` if it was received or already waits to be sent again.
    fn on_trimmed(&mut self, _trimmed: Psn) -> Option<bool> {
        None
    }

    /// Returns the next trimmed request to be sent again.
    fn next_trimmed(&self) -> Option<Psn> {
        None
    }

    /// Records that the request that [`next_trimmed`](Self::next_trimmed) returns was sent again.
    fn repeated_trimmed(&mut self) {}

    /// Returns the number of packets in flight that have left the network: those that the responder reported
    /// as received, and trimmed ones that wait to be sent again.
    fn absent(&self) -> u32 {
        0
    }

    /// The oldest READ response that is known to have been trimmed. Every method requests responses again
    /// from it on.
    fn trimmed_response(&mut self) -> &mut Option<Psn>;

    /// Records a loss. Returns whether it begins a loss episode.
    fn begins(&mut self, _unsent: Psn) -> bool {
        true
    }

    /// Starts a retransmission at `una` after a timeout.
    fn on_timeout(&mut self, _una: Psn, _unsent: Psn) {}

    /// Handles the acknowledgement of all packets from `before` up to `una`.
    fn on_progress(&mut self, _before: Psn, _una: Psn) {}

    /// Handles a go-back of the requester, which sends everything again.
    fn on_go_back(&mut self);

    /// Tells whether this recovery has a retransmission in progress.
    fn is_resending(&self) -> bool {
        false
    }

    /// Returns the first packet from `cursor` on to be sent again, or `None` if the retransmission is over.
    fn next(&self, _una: Psn, _cursor: Psn) -> Option<Psn> {
        None
    }
}

/// Go-back-N.
#[derive(Debug, Default)]
pub(super) struct GoBackN {
    trimmed_response: Option<Psn>,
}

impl LossRecovery for GoBackN {
    fn trimmed_response(&mut self) -> &mut Option<Psn> {
        &mut self.trimmed_response
    }

    fn on_go_back(&mut self) {
        // Answers to packets sent before the go-back are not awaited.
        self.trimmed_response = None;
    }
}
