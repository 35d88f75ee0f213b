//! Advice for failed work requests: one sentence for each kind of failure.

use roce_transport::{Cause, WcStatus, WorkError};

/// Explains why a work request failed and what to do next. All commands and reports show this text. It names
/// both ends of the connection if the error comes from [`Context::result`](crate::verbs::Context::result).
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use roce::observe::explain;
/// use roce::verbs::{Cause, Ends, Qpn, Wc, WcStatus, WorkError};
///
/// let (status, cause) = (WcStatus::RetryExceededError, Cause::AckTimeout);
/// let wc = Wc { wr_id: 7, status, cause, qpn: Qpn::new(18), src_qp: Qpn::new(52), ..Wc::default() };
/// let [local, remote] = [1, 2].map(|host| Ipv4Addr::new(192, 0, 2, host).into());
/// let text = explain(&WorkError { wc, ends: Some(Ends { local, remote }), rule: None });
/// assert!(text.starts_with(
///     "work request 7 of queue pair 18 at 192.0.2.1 towards queue pair 52 at 192.0.2.2 ended with RETRY_EXC_ERR, AckTimeout: "
/// ));
/// ```
#[must_use]
pub fn explain(error: &WorkError) -> String {
    format!("{error}: {}", advice(error.wc.status, error.wc.cause))
}

/// Returns advice for a work request that ended with this status and cause. The text suits the end of an
/// error message, so it has no capital letter and no full stop.
///
/// ```
/// use roce::observe::advice;
/// use roce::verbs::{Cause, WcStatus};
///
/// let advice = advice(WcStatus::RetryExceededError, Cause::AckTimeout);
/// assert!(advice.contains("UDP port 4791"));
/// ```
#[must_use]
pub const fn advice(status: WcStatus, cause: Cause) -> &'static str {
    match (towards_the_peer(cause), on_this_side(cause)) {
        (Some(advice), _) | (None, Some(advice)) => advice,
        // The engine gives every failure a cause; errors from other sources may have none.
        (None, None) => by_status(status),
    }
}

/// Returns advice for causes at the peer or on the way to it.
const fn towards_the_peer(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::Flushed => {
            "this request is valid: look for the first request that failed on the same queue pair"
        }
        Cause::AckTimeout => {
            "the peer never answered: check that it still runs, that both sides use each other's addresses, and that \
             UDP port 4791 is open in both directions; --pcap on both sides shows how far packets get"
        }
        Cause::SequenceRetries => {
            "too many consecutive packets were lost: look for drops in the counters of both sides, increase \
             the socket buffers (net.core.rmem_max), or keep fewer messages in flight"
        }
        Cause::RnrRetries => {
            "the peer had no receive posted for too long: post more receives there before this side sends, \
             or set rnr_retry to 7, which retries without limit"
        }
        Cause::NakInvalidRequest => {
            "the peer considers the request invalid: check that its receive is long enough, that its queue \
             pair allows the operation, and that both sides use the same path MTU and limit of outstanding \
             READs"
        }
        Cause::NakRemoteAccess => {
            "check the remote address, length and rkey, and that the peer registered this memory with the right that \
             the operation needs"
        }
        Cause::NakRemoteOperational => {
            "the receive that the peer posted is invalid: look there for LOC_PROT_ERR, and correct the lkey \
             or the range of the receive"
        }
        Cause::NakUnknown => {
            "the peer reports an error that this transport does not have: record the packets with --pcap, \
             and examine the NAK with `roce dissect`"
        }
        Cause::UnexpectedResponse => {
            "the response violates the protocol: record the packets with --pcap, and examine the last \
             response with `roce dissect`"
        }
        Cause::ResponseLength => {
            "check that both sides use the same path MTU; if they do, record the packets with --pcap, and \
             examine the last READ response with `roce dissect`"
        }
        _ => return None,
    })
}

/// Returns advice for causes in the requests or registrations of this side.
const fn on_this_side(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::LocalKeyUnknown => {
            "use the lkey of a registered region, and keep the region registered until the request is \
             complete"
        }
        Cause::LocalKeyWrongDomain => "register the memory in the protection domain of the queue pair",
        Cause::LocalKeyPermission => {
            "register the memory with LOCAL_WRITE, because receives, READs and atomics write to it"
        }
        Cause::LocalKeyRange => "keep the address and length of every element inside its region",
        Cause::MessageTooLong => {
            "post receives that are as long as the longest message of the peer, for UD 40 bytes longer"
        }
        Cause::RemoteInvalidate => {
            "the peer may invalidate only keys of type 2 windows that are bound on this queue pair and still \
             valid"
        }
        Cause::RemoteAccessRefused => {
            "the peer was still writing to memory that was revoked: keep it registered until the peer has finished"
        }
        Cause::RemoteRequestInvalid => {
            "the peer violated the protocol within a message: check that both sides use the same path MTU, \
             and examine its packets with --pcap and `roce dissect`"
        }
        Cause::WindowBind => {
            "check that the region was registered with MW_BIND, that the range lies inside it, and that the window \
             belongs to the same protection domain and queue pair"
        }
        Cause::LocalInvalidate => {
            "invalidate only keys that exist, in the protection domain of the queue pair, and close the windows over a \
             region first"
        }
        Cause::CompletionQueueOverflow => {
            "create the completion queue with as many entries as requests can complete into it, or poll it \
             more often"
        }
        _ => return None,
    })
}

/// Returns advice if only the status is known.
const fn by_status(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "nothing failed",
        WcStatus::LocalLengthError => "use buffers on the receiving side that are as long as the messages",
        WcStatus::LocalProtectionError => "check lkey, range and rights of the local memory",
        WcStatus::LocalQpOperationError => "check the work request: operation, flags and number of elements",
        WcStatus::WrFlushError => "look for the first request that failed on the same queue pair",
        WcStatus::MemoryWindowBindError => "check the window, its region and the range of the binding",
        WcStatus::BadResponseError => {
            "record the answer of the peer with --pcap, and examine it with `roce dissect`"
        }
        WcStatus::LocalAccessError => {
            "keep memory registered, with the right that peers need, while they use it"
        }
        WcStatus::RemoteInvalidRequestError => "look on the peer's side for the reason of the refusal",
        WcStatus::RemoteAccessError => "check the remote address, length, rkey and rights",
        WcStatus::RemoteOperationError => "look on the peer's side for the receive that failed",
        WcStatus::RetryExceededError | WcStatus::ResponseTimeoutError => {
            "check that the peer runs and that packets pass in both directions"
        }
        WcStatus::RnrRetryExceededError => "post receives on the peer's side before this side sends",
        WcStatus::RemoteAbortedError => "look on the peer's side for the reason why it gave up",
        WcStatus::LocalEecOperationError
        | WcStatus::LocalRddViolationError
        | WcStatus::RemoteInvalidRdRequestError
        | WcStatus::InvalidEecNumberError
        | WcStatus::InvalidEecStateError
        | WcStatus::TagMatchingError
        | WcStatus::TagMatchingRendezvousIncomplete => {
            "roce does not support the feature of this status: report the error with a trace (--trace FILE)"
        }
        WcStatus::FatalError | WcStatus::GeneralError => {
            "open the device again; if that does not help, report the error with a trace (--trace FILE)"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks that the text is one sentence for the end of a message.
    #[track_caller]
    fn check(text: &str, what: &str) {
        assert!(text.len() > 10 && text.len() < 260, "{what}: {text}");
        assert!(
            !text.ends_with(['.', ' ']) && !text.contains(". "),
            "{what}: more than one sentence: {text}"
        );
        assert!(!text.contains("  ") && !text.contains('\n'), "{what}: {text}");
        assert!(text.starts_with(|first: char| first.is_lowercase()), "{what}: {text}");
    }

    #[test]
    fn every_cause_and_every_status_has_advice() {
        let failed = WcStatus::GeneralError;
        let mut seen = BTreeSet::new();
        for cause in Cause::ALL.into_iter().filter(|cause| *cause != Cause::None) {
            let text = advice(failed, cause);
            check(text, &format!("{cause:?}"));
            assert_ne!(text, by_status(failed), "{cause:?} has advice of its own");
            assert!(seen.insert(text), "{cause:?} has the advice of another cause: {text}");
        }
        for status in WcStatus::ALL {
            let text = advice(status, Cause::None);
            check(text, status.name());
            assert_eq!(text, by_status(status));
            assert_eq!(text == "nothing failed", status == WcStatus::Success);
        }
    }
}
