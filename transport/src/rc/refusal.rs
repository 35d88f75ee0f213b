//! How the responder of RC refuses a request (section 5.4 of the protocol notes; IBTA 9.9.3).

use roce_packet::{Datagram, NakCode, Psn};

use super::owed::Reply;
use super::responder::RcResponder;
use crate::completion::WcStatus;
use crate::counters::count;
use crate::event::AsyncEvent;
use crate::ids::RKey;
use crate::inbound::PlaceError;
use crate::memory::KeyError;
use crate::qp::{Failure, QpCore};
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

impl RcResponder {
    /// Answers a request that was not executed.
    pub(super) fn refuse(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, refusal: Refusal) {
        match refusal {
            Refusal::Rnr => {
                count!(shared, core, out_of_buffer);
                self.nak_sent = true;
                self.paused = true;
                self.forget_trimmed();
                self.reply = Some(Reply::Rnr);
            }
            Refusal::Invalidate { wr_id, rkey, error } => {
                let rule = Rule::RemoteInvalidate { rkey, error };
                core.fail_recv(shared, wr_id, WcStatus::RemoteInvalidRequestError, rule);
                core.fail(Failure::Reported);
            }
            Refusal::Nak(code, rule, status) => {
                tracing::debug!(qpn = core.number.get(), ?code, cause = ?rule.cause(), "request refused");
                if code == NakCode::RemoteAccess {
                    count!(shared, core, resp_remote_access_errors);
                } else if matches!(rule, Rule::MessageTooLong { .. }) {
                    count!(shared, core, resp_local_length_error);
                }
                self.reply = Some(Reply::FatalNak { code, psn });
                self.fail_with(core, shared, code, status, rule);
            }
        }
    }

    /// Reports the failure of the queue pair to the application: by the receive in use, or else by an event.
    pub(super) fn fail_with(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        code: NakCode,
        status: WcStatus,
        rule: Rule,
    ) {
        if let Some(receive) = self.inbound.take_receive() {
            core.fail_recv(shared, receive.wr_id, status, rule);
            core.fail(Failure::Reported);
            return;
        }
        self.inbound = crate::inbound::Inbound::Idle;
        let event = match code {
            NakCode::RemoteAccess => AsyncEvent::QpAccessError(core.number),
            NakCode::PsnSequence
            | NakCode::InvalidRequest
            | NakCode::RemoteOperational
            | NakCode::InvalidRdRequest
            | NakCode::Reserved(_) => AsyncEvent::QpRequestError(core.number),
        };
        core.fail_with_event(shared, event, rule);
    }
}
