//! The mode of the requester: what keeps it from sending the next packet, and for which NAK it went back.

use roce_packet::Psn;

/// The mode of a requester. Progress of the peer always leads back to [`Mode::InOrder`].
///
/// `nak` is the PSN of the NAK that made the requester go back. A second NAK for this PSN is a duplicate
/// until the peer acknowledges something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Packets leave in order, and no NAK has made the requester go back since the last progress.
    #[default]
    InOrder,
    /// Packets leave in order, from the packet that a NAK named.
    WentBack {
        /// The PSN of the NAK.
        nak: Psn,
    },
    /// After a timeout, the oldest packet waits to be sent again. No retransmission timer runs until then.
    Held {
        /// The PSN of the NAK for which the requester went back before, if any.
        nak: Option<Psn>,
    },
    /// No packet leaves, because an RNR NAK requested a pause.
    RnrPause {
        /// The PSN of the NAK for which the requester went back before, if any.
        nak: Option<Psn>,
    },
}

impl Mode {
    /// Returns the mode in which packets leave in order, with the NAK for which the requester went back.
    fn after(nak: Option<Psn>) -> Self {
        nak.map_or(Self::InOrder, |nak| Self::WentBack { nak })
    }

    /// Returns the PSN of the NAK for which the requester went back.
    const fn nak(self) -> Option<Psn> {
        match self {
            Self::InOrder => None,
            Self::WentBack { nak } => Some(nak),
            Self::Held { nak } | Self::RnrPause { nak } => nak,
        }
    }

    /// Tells whether a NAK for this PSN made the requester go back, so that another one is a duplicate.
    pub(super) fn went_back_for(self, psn: Psn) -> bool {
        self.nak() == Some(psn)
    }

    /// Tells whether the pause after an RNR NAK is in progress.
    #[inline]
    pub(super) const fn is_rnr_pause(self) -> bool {
        matches!(self, Self::RnrPause { .. })
    }

    /// Tells whether the oldest packet waits to be sent again after a timeout.
    pub(super) const fn is_held(self) -> bool {
        matches!(self, Self::Held { .. })
    }

    /// Records a NAK for this PSN, for which the requester goes back.
    pub(super) fn record_nak(&mut self, psn: Psn) {
        *self = match *self {
            Self::InOrder | Self::WentBack { .. } => Self::WentBack { nak: psn },
            Self::Held { .. } => Self::Held { nak: Some(psn) },
            Self::RnrPause { .. } => Self::RnrPause { nak: Some(psn) },
        };
    }

    /// Records that the retransmission timer expired: the retransmission was lost as well, so the next NAK is
    /// not a duplicate.
    pub(super) fn time_out(&mut self) {
        *self = match *self {
            Self::InOrder | Self::WentBack { .. } => Self::InOrder,
            Self::Held { .. } => Self::Held { nak: None },
            Self::RnrPause { .. } => Self::RnrPause { nak: None },
        };
    }

    /// Records that the oldest packet waits to be sent again.
    pub(super) fn hold(&mut self) {
        if !self.is_rnr_pause() {
            *self = Self::Held { nak: self.nak() };
        }
    }

    /// Records that a packet left.
    #[inline]
    pub(super) fn sent(&mut self) {
        if let Self::Held { nak } = *self {
            *self = Self::after(nak);
        }
    }

    /// Begins the pause that an RNR NAK requested.
    pub(super) fn begin_rnr_pause(&mut self) {
        *self = Self::RnrPause { nak: self.nak() };
    }

    /// Ends the pause that an RNR NAK requested.
    pub(super) fn end_rnr_pause(&mut self) {
        if let Self::RnrPause { nak } = *self {
            *self = Self::after(nak);
        }
    }
}

/// The packet that the requester writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// The next packet in order.
    Next,
    /// A trimmed packet, alone. The cursor is at it only while it is written.
    Trimmed,
    /// A packet that finds out the state of the peer, alone. The cursor is at it only while it is written.
    Probe,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAK: Psn = Psn::new(7);

    /// Returns the mode after this change.
    fn after(mut mode: Mode, change: impl FnOnce(&mut Mode)) -> Mode {
        change(&mut mode);
        mode
    }

    #[test]
    fn a_nak_is_known_until_the_timer_expires() {
        let mode = after(Mode::InOrder, |mode| mode.record_nak(NAK));
        assert!(mode.went_back_for(NAK) && !mode.went_back_for(NAK.next()));
        let restrictions: [fn(&mut Mode); 2] = [Mode::hold, Mode::begin_rnr_pause];
        for change in restrictions {
            let restricted = after(mode, change);
            assert!(restricted.went_back_for(NAK));
            let freed = after(restricted, |mode| {
                mode.sent();
                mode.end_rnr_pause();
            });
            assert_eq!(freed, mode);
            assert!(!after(restricted, Mode::time_out).went_back_for(NAK));
        }
        assert_eq!(after(mode, Mode::time_out), Mode::InOrder);
    }

    #[test]
    fn only_its_timer_or_progress_ends_an_rnr_pause() {
        let mut mode = after(Mode::InOrder, Mode::begin_rnr_pause);
        let changes: [fn(&mut Mode); 4] =
            [Mode::hold, Mode::sent, Mode::time_out, |mode| mode.record_nak(NAK)];
        for change in changes {
            change(&mut mode);
            assert!(mode.is_rnr_pause() && !mode.is_held());
        }
        mode.end_rnr_pause();
        assert_eq!(mode, Mode::WentBack { nak: NAK });
    }
}
