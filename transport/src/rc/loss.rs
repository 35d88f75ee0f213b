//! Loss recovery of the requester: which packets are sent again, and what a trimmed packet leads to.
//!
//! By default the requester goes back (IBTA 9.7.5.1.4). A [`LossRecovery`] that selects packets is informed
//! of what arrived at the responder and at the requester, and selects the packets and the end of a
//! retransmission.

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

    /// Records that the responder has the request packet with this PSN, which has no response.
    fn note_received(&mut self, _psn: Psn) {}

    /// Records that the responder keeps the request whose responses have the PSNs from `first` to `last`.
    fn note_kept(&mut self, _first: Psn, _last: Psn) {}

    /// Records that the response with this PSN arrived, to a request with the PSNs from `first` to `last`.
    fn note_answered(&mut self, _psn: Psn, (_first, _last): (Psn, Psn)) {}

    /// Tells whether the response with this PSN has arrived before its turn.
    fn is_answered(&self, _psn: Psn) -> bool {
        false
    }

    /// Returns the number of consecutive responses from `psn` on that have arrived.
    fn answered_from(&self, _psn: Psn) -> u32 {
        0
    }

    /// Records that the responder has executed everything up to `psn`, although responses before it are
    /// missing. Returns the first PSN for which this is news, or `None` if it is none.
    fn note_executed(&mut self, _psn: Psn) -> Option<Psn> {
        None
    }

    /// Returns the newest PSN of [`note_executed`](Self::note_executed) that is not before `una`.
    fn executed(&self) -> Option<Psn> {
        None
    }

    /// Decides which packets before `arrived` are lost, which reached the other end before them. Returns the
    /// first packet of the retransmission that this starts, and whether it is the first of its loss episode.
    fn overtaken_by(&mut self, _unsent: Psn, _arrived: Psn) -> Option<(Psn, bool)> {
        None
    }

    /// Returns the time in ns after which the oldest packet in flight counts as lost if it is late: others
    /// overtook it, but too few for it to count as lost now. `None` if it is not late.
    fn lateness(&self) -> Option<u64> {
        None
    }

    /// Decides that all packets that others overtook are lost, because the oldest one has been late for too
    /// long. Returns what [`overtaken_by`](Self::overtaken_by) does, or `None` if it is not late.
    fn on_late(&mut self, _unsent: Psn) -> Option<(Psn, bool)> {
        None
    }

    /// Handles a report that a request in flight was trimmed. Returns whether the request had been
    /// trimmed and sent again before, or `None` if it was received or already waits to be sent again.
    fn on_trimmed(&mut self, _trimmed: Psn) -> Option<bool> {
        None
    }

    /// Handles a trimmed response, which will be requested again. Returns `false` if it has arrived, or
    /// already waits to be requested.
    fn on_trimmed_response(&mut self, _trimmed: Psn) -> bool {
        false
    }

    /// Returns the next trimmed packet to be sent, or requested, again.
    fn next_trimmed(&self) -> Option<Psn> {
        None
    }

    /// Records that the packet that [`next_trimmed`](Self::next_trimmed) returns was sent or requested again.
    fn repeated_trimmed(&mut self) {}

    /// Returns the number of request packets in flight that have left the network: those that the responder
    /// reported as received, and trimmed ones that wait to be sent again.
    fn absent(&self) -> u32 {
        0
    }

    /// Records a loss. Returns whether it begins a loss episode.
    fn begins(&mut self, _unsent: Psn) -> bool {
        true
    }

    /// Starts a retransmission at `una` after a timeout.
    fn on_timeout(&mut self, _unsent: Psn) {}

    /// Handles the acknowledgement of all packets before `una`.
    fn on_progress(&mut self, _una: Psn) {}

    /// Handles a go-back of the requester, which sends everything from `una` on again.
    fn on_go_back(&mut self, _una: Psn) {}

    /// Tells whether this recovery has a retransmission in progress.
    fn is_resending(&self) -> bool {
        false
    }

    /// Returns the first packet from `cursor` on to be sent again, or `None` if the retransmission is over.
    fn next(&self, _cursor: Psn) -> Option<Psn> {
        None
    }

    /// Records that all responses up to `last` were requested again.
    fn requested_again(&mut self, _last: Psn) {}

    /// Returns the number of consecutive responses from `psn` on, at most `most`, to be requested again at
    /// once. The first one is missing.
    fn missing_from(&self, _psn: Psn, most: u32) -> u32 {
        most
    }
}

/// Go-back-N.
#[derive(Debug)]
pub(super) struct GoBackN;

impl LossRecovery for GoBackN {}
