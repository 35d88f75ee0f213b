//! What the responder of RC does when it refuses a request: it answers, and the queue pair fails.

use roce_packet::{NakCode, Psn};

use super::owed::Reply;
use super::refusal::Refusal;
use super::responder::RcResponder;
use crate::completion::WcStatus;
use crate::counters::count;
use crate::event::AsyncEvent;
use crate::qp::{Failure, QpCore};
use crate::reason::Rule;
use crate::shared::Shared;

impl RcResponder {
    /// Answers a request that was not executed.
    pub(super) fn refuse(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, refusal: Refusal) {
        match refusal {
            Refusal::Rnr => {
                count!(shared, core, out_of_buffer);
                self.nak_sent = true;
                self.paused = true;
                self.forget_reports();
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
