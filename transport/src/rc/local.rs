//! Local operations: memory windows are bound and invalidated without a packet.

use super::requester::{Next, RcRequester};
use crate::completion::{Cause, WcStatus};
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::sq::{Progress, Wqe};
use crate::wr::SendOp;

impl RcRequester {
    /// Binds or invalidates a memory window. Takes no PSN.
    pub(super) fn execute_local(&mut self, core: &mut QpCore, shared: &mut Shared, wqe: &Wqe) -> Next {
        let (result, status, cause) = match &wqe.op {
            SendOp::BindWindow { window, new_rkey, binding } => (
                shared.keys.bind(*window, Some(*new_rkey), core.pd, Some(core.number), binding).map(|_| ()),
                WcStatus::MemoryWindowBindError,
                Cause::WindowBind,
            ),
            SendOp::LocalInvalidate { rkey } => (
                shared.keys.invalidate(*rkey, core.pd, core.number),
                WcStatus::LocalQpOperationError,
                Cause::LocalInvalidate,
            ),
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
        if result.is_err() {
            self.fail(core, shared, self.cursor_wqe, status, cause);
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
