//! The method of loss recovery of a queue pair.

use alloc::boxed::Box;

use roce_packet::Psn;

use super::loss::{GoBackN, LossRecovery};
use super::selective::Selective;
use crate::recovery::Recovery;

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
            Recovery::GoBackN => Self::GoBackN(GoBackN),
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

    fn note_received(&mut self, psn: Psn) {
        call!(self.note_received(psn));
    }

    fn note_kept(&mut self, first: Psn, last: Psn) {
        call!(self.note_kept(first, last));
    }

    fn note_answered(&mut self, psn: Psn, range: (Psn, Psn)) {
        call!(self.note_answered(psn, range));
    }

    fn is_answered(&self, psn: Psn) -> bool {
        call!(self.is_answered(psn))
    }

    fn answered_from(&self, psn: Psn) -> u32 {
        call!(self.answered_from(psn))
    }

    fn note_executed(&mut self, psn: Psn) -> Option<Psn> {
        call!(self.note_executed(psn))
    }

    fn executed(&self) -> Option<Psn> {
        call!(self.executed())
    }

    fn overtaken_by(&mut self, unsent: Psn, arrived: Psn) -> Option<(Psn, bool)> {
        call!(self.overtaken_by(unsent, arrived))
    }

    fn lateness(&self) -> Option<u64> {
        call!(self.lateness())
    }

    fn on_late(&mut self, unsent: Psn) -> Option<(Psn, bool)> {
        call!(self.on_late(unsent))
    }

    fn on_trimmed(&mut self, trimmed: Psn) -> Option<bool> {
        call!(self.on_trimmed(trimmed))
    }

    fn on_trimmed_response(&mut self, trimmed: Psn) -> bool {
        call!(self.on_trimmed_response(trimmed))
    }

    #[inline]
    fn next_trimmed(&self) -> Option<Psn> {
        call!(self.next_trimmed())
    }

    fn repeated_trimmed(&mut self) {
        call!(self.repeated_trimmed());
    }

    #[inline]
    fn absent(&self) -> u32 {
        call!(self.absent())
    }

    fn begins(&mut self, unsent: Psn) -> bool {
        call!(self.begins(unsent))
    }

    fn on_timeout(&mut self, unsent: Psn) {
        call!(self.on_timeout(unsent));
    }

    #[inline]
    fn on_progress(&mut self, una: Psn) {
        call!(self.on_progress(una));
    }

    fn on_go_back(&mut self, una: Psn) {
        call!(self.on_go_back(una));
    }

    #[inline]
    fn is_resending(&self) -> bool {
        call!(self.is_resending())
    }

    fn next(&self, cursor: Psn) -> Option<Psn> {
        call!(self.next(cursor))
    }

    fn requested_again(&mut self, last: Psn) {
        call!(self.requested_again(last));
    }

    fn missing_from(&self, psn: Psn, most: u32) -> u32 {
        call!(self.missing_from(psn, most))
    }
}
