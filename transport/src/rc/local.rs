//! Local operations: memory windows are bound and invalidated without a packet.

use super::requester::{Next, RcRequester};
use crate::completion::WcStatus;
use crate::qp::QpCore;
use crate::reason::Rule;
use crate::shared::Shared;
use crate::sq::{Progress, Wqe};
use crate::wr::SendOp;

impl RcRequester {
    /// Binds or invalidates a memory window. Takes no PSN.
    pub(super) fn execute_local(&mut self, core: &mut QpCore, shared: &mut Shared, wqe: &Wqe) -> Next {
        let result = match &wqe.op {
            SendOp::BindWindow { window, new_rkey, binding } => shared
                .keys
                .bind(*window, Some(*new_rkey), core.pd, Some(core.number), binding)
                .map(|_| ())
                .map_err(|error| (WcStatus::MemoryWindowBindError, Rule::WindowBind { error })),
            SendOp::LocalInvalidate { rkey } => {
                shared.keys.invalidate(*rkey, core.pd, core.number).map_err(|error| {
                    (WcStatus::LocalQpOperationError, Rule::LocalInvalidate { rkey: *rkey, error })
                })
            }
            SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteWithImm { .. }
            | SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. } => return Next::Send,
        };
        if let Err((status, rule)) = result {
            self.fail(core, shared, self.cursor_wqe, status, rule);
            return Next::Blocked;
        }
        if let Some(wqe) = self.sq.get_mut(self.cursor_wqe) {
            wqe.progress = Progress::Done;
        }
        self.cursor_wqe += 1;
        self.retire(core, shared);
        Next::Again
    }
}
