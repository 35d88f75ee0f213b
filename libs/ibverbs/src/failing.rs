//! Work requests and queue pairs that fail on demand. [`roce_fault::verbs`] decides which of them; this
//! module carries the decision out.

use roce::verbs::{Cause, QpAttr, QpState, Qpn, Wc, WcOpcode, WcStatus};
use roce_fault::verbs::{CompletionFate, WorkQueue};

use crate::context::Open;
use crate::faults;

/// Returns the number of a queue pair in the plan's state, which is unique in the process.
pub(crate) fn key(open: &Open, qpn: Qpn) -> u64 {
    u64::from(open.number) << 32 | u64::from(qpn.get())
}

/// Returns the queue pair with this number in the plan's state, if it belongs to this device.
pub(crate) fn qpn_of(open: &Open, key: u64) -> Option<Qpn> {
    (key >> 32 == u64::from(open.number)).then(|| Qpn::new(key as u32))
}

/// Records a queue pair that was created.
pub(crate) fn created(open: &Open, qpn: Qpn) {
    if faults::is_active() {
        faults::with(|active| active.faults.created(key(open, qpn)));
    }
}

/// Records a queue pair that went to RESET.
pub(crate) fn reset(open: &Open, qpn: Qpn) {
    if faults::is_active() {
        faults::with(|active| active.faults.reset(key(open, qpn)));
    }
}

/// Records a queue pair that was destroyed.
pub(crate) fn destroyed(open: &Open, qpn: Qpn) {
    if faults::is_active() {
        faults::with(|active| active.faults.destroyed(key(open, qpn)));
    }
}

/// Moves a queue pair to the error state, which flushes its requests. It may have been destroyed meanwhile.
pub(crate) fn to_error(open: &Open, qpn: Qpn) {
    let _ = open.raw().modify_qp(qpn, &QpAttr { state: Some(QpState::Err), ..QpAttr::default() });
}

/// Gives a completion that succeeded the status that the plan demands.
#[cold]
pub(crate) fn decide(open: &Open, wc: &mut Wc) {
    let queue = match wc.opcode {
        WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => WorkQueue::Receive,
        _ => WorkQueue::Send,
    };
    let fate = faults::with(|active| {
        let now = active.now();
        let fate = active.faults.on_completion(key(open, wc.qpn), queue, now);
        if let Some(CompletionFate::Fails { number, status }) = fate {
            let (name, qpn, wr_id) = (status.name(), wc.qpn.get(), wc.wr_id);
            active.log(format_args!("completion {number} IBV_WC_{name} qp={qpn:#x} wr_id={wr_id}"));
        }
        fate
    });
    match fate.flatten() {
        Some(CompletionFate::Fails { status, .. }) => {
            (wc.status, wc.cause) = (status, cause(status));
            to_error(open, wc.qpn);
        }
        Some(CompletionFate::Flushed) => (wc.status, wc.cause) = (WcStatus::WrFlushError, Cause::Flushed),
        None => {}
    }
}

/// Returns the usual cause of a status, which the application sees as `vendor_err`.
const fn cause(status: WcStatus) -> Cause {
    match status {
        WcStatus::LocalLengthError => Cause::MessageTooLong,
        WcStatus::LocalProtectionError => Cause::LocalKeyUnknown,
        WcStatus::WrFlushError => Cause::Flushed,
        WcStatus::MemoryWindowBindError => Cause::WindowBind,
        WcStatus::BadResponseError => Cause::UnexpectedResponse,
        WcStatus::LocalAccessError => Cause::RemoteAccessRefused,
        WcStatus::RemoteInvalidRequestError => Cause::NakInvalidRequest,
        WcStatus::RemoteAccessError => Cause::NakRemoteAccess,
        WcStatus::RemoteOperationError => Cause::NakRemoteOperational,
        WcStatus::RetryExceededError => Cause::AckTimeout,
        WcStatus::RnrRetryExceededError => Cause::RnrRetries,
        _ => Cause::None,
    }
}
