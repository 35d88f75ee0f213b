//! Acknowledgements, NAKs and reports that a responder still has to send.

use alloc::collections::VecDeque;

use roce_packet::{NakCode, Psn};

/// The pending acknowledgement or NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Everything before the expected PSN arrived.
    Ack,
    /// A packet with a later PSN arrived instead of the expected one.
    SequenceNak,
    /// A packet with this later PSN arrived instead of the expected one, and is kept.
    Kept(Psn),
    /// The packet with this PSN was trimmed. Several reports and another reply may be pending at once, so
    /// they are stored separately.
    Trimmed(Psn),
    /// The packet with the expected PSN needs a receive, but none is posted.
    Rnr,
    /// The packet with this PSN was refused, and the connection ends.
    FatalNak { code: NakCode, psn: Psn },
}

/// Reports about single requests that the peer does not have yet.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// With selective repeat: trimmed requests with a pending report. At most as many as the responder keeps
    /// ahead, without repetitions.
    pub(super) trimmed: VecDeque<Psn>,
    /// Requests that the responder keeps, and whose report another reply would replace. The same limits.
    pub(super) kept: VecDeque<Psn>,
    /// With go-back-N: the first trimmed request, for which a NAK can be sent once it is the expected one.
    pub(super) first: Option<Psn>,
}
