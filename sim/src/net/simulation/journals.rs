//! The journals of trace events of a run.

use crate::net::journal::{self, Journal};

/// Trace events between windows.
#[derive(Default)]
pub(super) struct Journals {
    /// Whether trace events are kept.
    pub(super) kept: bool,
    /// Events of planned actions. For equal time and node, planned actions come before the windows.
    pub(super) planned: Journal,
    /// Events of ended flows. For equal time and node, ends of flows come after the windows.
    pub(super) ended: Journal,
}

impl Journals {
    /// Records planned actions until [`Self::leave_planned`].
    pub(super) fn enter_planned(&mut self) {
        if self.kept {
            std::mem::take(&mut self.planned).enter();
        }
    }

    pub(super) fn leave_planned(&mut self) {
        if self.kept {
            self.planned = journal::leave();
        }
    }

    /// Records the ends of flows until [`Self::leave_ended`].
    pub(super) fn enter_ended(&mut self) {
        if self.kept {
            std::mem::take(&mut self.ended).enter();
        }
    }

    pub(super) fn leave_ended(&mut self) {
        if self.kept {
            self.ended = journal::leave();
        }
    }
}
