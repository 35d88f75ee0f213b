//! The ways in which the responder of RC refuses a request (section 5.4 of the protocol notes; IBTA 9.9.3).

use roce_packet::{Datagram, NakCode};

use crate::completion::WcStatus;
use crate::ids::RKey;
use crate::inbound::PlaceError;
use crate::memory::KeyError;
use crate::qp::QpCore;
use crate::reason::{Denial, Invalid, Rule};
use crate::shared::Shared;

/// The way in which a request is refused.
pub(super) enum Refusal {
    /// A NAK is sent, and the queue pair fails.
    Nak(NakCode, Rule, WcStatus),
    Rnr,
    /// A remote invalidate failed: the request is not answered, but the receive completes with an error.
    Invalidate {
        wr_id: u64,
        rkey: RKey,
        error: KeyError,
    },
}

impl Refusal {
    /// Refuses a packet that violates a rule.
    #[cold]
    pub(super) fn invalid(datagram: &Datagram<'_>, problem: Invalid) -> Self {
        let rule = Rule::RemoteInvalid { psn: datagram.bth().psn, problem };
        Self::Nak(NakCode::InvalidRequest, rule, WcStatus::RemoteInvalidRequestError)
    }

    /// Refuses an access to memory: the key, the first address and the number of bytes.
    #[cold]
    pub(super) fn access(datagram: &Datagram<'_>, error: KeyError, (rkey, va, len): (u32, u64, u32)) -> Self {
        Self::denied(datagram, Denial { error, rkey: RKey(rkey), va, len })
    }

    fn denied(datagram: &Datagram<'_>, denial: Denial) -> Self {
        let rule = Rule::RemoteAccess { psn: datagram.bth().psn, denial };
        Self::Nak(NakCode::RemoteAccess, rule, WcStatus::LocalAccessError)
    }

    /// Refuses a packet whose payload could not be placed.
    #[cold]
    pub(super) fn place(core: &QpCore, shared: &Shared, datagram: &Datagram<'_>, error: PlaceError) -> Self {
        match error {
            PlaceError::Length => Self::invalid(datagram, Invalid::Length),
            PlaceError::Access(denial) => Self::denied(datagram, denial),
            PlaceError::TooLong { len, capacity } => {
                let rule = Rule::MessageTooLong { len, capacity };
                Self::Nak(NakCode::InvalidRequest, rule, WcStatus::LocalLengthError)
            }
            PlaceError::Local(error) => {
                let rule = core.receive_denied(shared, error);
                Self::Nak(NakCode::RemoteOperational, rule, WcStatus::LocalProtectionError)
            }
        }
    }
}
