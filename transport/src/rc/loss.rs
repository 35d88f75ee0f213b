//! Loss recovery of the requester: which packets are sent again, and what a trimmed packet leads to.
//!
//! By default the requester goes back (IBTA 9.7.5.1.4). A [`LossRecovery`] that selects packets is informed
//! of the reports of the responder, and selects the packets and the end of a retransmission.

use alloc::boxed::Box;

use roce_packet::Psn;

use super::selective::Selective;
use crate::recovery::Recovery;

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

    /// Handles a report that a request in flight was trimmed. Returns `false` if it was received or already
    /// waits to be sent again.
    fn on_trimmed(&mut self, _trimmed: Psn) -> bool {
        false
    }

    /// Takes the next trimmed request to be sent again. It then counts as sent.
    fn next_trimmed(&mut self, _una: Psn, _unsent: Psn) -> Option<Psn> {
        None
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

/// The method of a queue pair. Go-back-N, which nearly every queue pair uses, needs neither an allocation nor
/// an indirect call.
#[derive(Debug)]
pub(super) enum Method {
    GoBackN(GoBackN),
    Selective(Box<Selective>),
}

impl Method {
    pub(super) fn new(recovery: &Recovery) -> Self {
        match recovery {
            Recovery::GoBackN => Self::GoBackN(GoBackN::default()),
            Recovery::SelectiveRepeat(settings) => Self::Selective(Box::new(Selective::new(settings))),
        }
    }
}

/// Calls the method of a queue pair.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        match $self {
            Self::GoBackN(method) => method.$name($($argument),*),
            Self::Selective(method) => method.$name($($argument),*),
        }
    };
}

impl LossRecovery for Method {
    #[inline]
    fn selects(&self) -> bool {
        call!(self.selects())
    }

    #[inline]
    fn window(&self) -> u32 {
        call!(self.window())
    }

    #[inline]
    fn timeout(&self, in_flight: u32) -> Option<u64> {
        call!(self.timeout(in_flight))
    }

    fn on_received(&mut self, una: Psn, unsent: Psn, received: Psn) -> Option<(Psn, bool)> {
        call!(self.on_received(una, unsent, received))
    }

    fn on_trimmed(&mut self, trimmed: Psn) -> bool {
        call!(self.on_trimmed(trimmed))
    }

    #[inline]
    fn next_trimmed(&mut self, una: Psn, unsent: Psn) -> Option<Psn> {
        call!(self.next_trimmed(una, unsent))
    }

    #[inline]
    fn trimmed_response(&mut self) -> &mut Option<Psn> {
        call!(self.trimmed_response())
    }

    fn begins(&mut self, unsent: Psn) -> bool {
        call!(self.begins(unsent))
    }

    fn on_timeout(&mut self, una: Psn, unsent: Psn) {
        call!(self.on_timeout(una, unsent));
    }

    #[inline]
    fn on_progress(&mut self, before: Psn, una: Psn) {
        call!(self.on_progress(before, una));
    }

    fn on_go_back(&mut self) {
        call!(self.on_go_back());
    }

    #[inline]
    fn is_resending(&self) -> bool {
        call!(self.is_resending())
    }

    fn next(&self, una: Psn, cursor: Psn) -> Option<Psn> {
        call!(self.next(una, cursor))
    }
}
