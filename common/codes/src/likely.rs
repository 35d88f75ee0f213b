//! Likely causes of failed work requests in their order, each with the next command or change.

use roce_transport::{Cause, WcStatus};

/// A likely cause of a failure, with the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Likely {
    /// The cause, as a statement to check.
    pub cause: &'static str,
    /// The next command or change. It checks the cause or removes it.
    pub next: &'static str,
}

/// One check of this library: its meaning, the usual status of a request that it fails, and likely causes.
pub(super) struct Check {
    pub(super) cause: Cause,
    pub(super) status: WcStatus,
    pub(super) meaning: &'static str,
    pub(super) likely: &'static [Likely],
}

/// Returns the likely causes of a failure of this kind, the most likely one first. The list is empty for
/// [`Cause::None`].
///
/// ```
/// use roce_codes::likely;
/// use roce_transport::Cause;
///
/// assert!(likely(Cause::AckTimeout).iter().any(|likely| likely.next.contains("roce doctor HOST")));
/// ```
#[must_use]
pub fn likely(cause: Cause) -> &'static [Likely] {
    check(cause).map_or(&[], |check| check.likely)
}

/// Returns the row of a cause.
pub(super) fn check(cause: Cause) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.cause == cause)
}

const fn row(cause: Cause, status: WcStatus, meaning: &'static str, likely: &'static [Likely]) -> Check {
    Check { cause, status, meaning, likely }
}

const fn so(cause: &'static str, next: &'static str) -> Likely {
    Likely { cause, next }
}

/// All checks, by the number of their cause.
pub(super) const CHECKS: &[Check] = &[
    row(
        Cause::Flushed,
        WcStatus::WrFlushError,
        "the queue pair failed or was moved to ERR before this request completed",
        &[
            so(
                "an earlier request of the queue pair failed",
                "look for the first completion with another status, and explain that one: roce why STATUS",
            ),
            so("the peer disconnected, or this program moved the queue pair to ERR", "roce why --pid PID"),
        ],
    ),
    row(
        Cause::AckTimeout,
        WcStatus::RetryExceededError,
        "the local ACK timer expired retry_cnt + 1 times, and the peer acknowledged nothing in that time",
        &[
            so(
                "the peer has ended, or its queue pair failed first",
                "roce stat --all (on the peer), and read its log",
            ),
            so(
                "a firewall drops UDP port 4791 in one direction",
                "roce doctor HOST (start roce doctor on the peer first)",
            ),
            so(
                "the GID index selects another address, or RoCE v1",
                "roce devices --verbose (or ibv_devinfo -v) on both sides, then set the GID index of the IPv4 address",
            ),
            so(
                "packets of the path MTU do not fit through the network",
                "roce ping HOST --mtu 1024 --size 4096",
            ),
            so(
                "timeout or retry_cnt is too small for this network or peer",
                "roce perf write bw HOST --qp-timeout 18, then raise timeout and retry_cnt of the program",
            ),
        ],
    ),
    row(
        Cause::SequenceRetries,
        WcStatus::RetryExceededError,
        "NAKs for missing packets, or lost responses, used up retry_cnt without progress",
        &[
            so(
                "a socket buffer on the way overflows",
                "roce stat --watch 1 (on both sides), then sysctl net.core.rmem_max",
            ),
            so("a switch or interface drops packets", "ethtool -S INTERFACE | grep -i -e drop -e discard"),
            so("faults are injected", "leave --fault and --receive-fault out, on both sides and on a bridge"),
            so("packets of one size are lost", "roce ping HOST --mtu 1024 --size 4096"),
        ],
    ),
    row(
        Cause::RnrRetries,
        WcStatus::RnrRetryExceededError,
        "the peer answered with RNR NAKs, because it had no receive posted, until rnr_retry was used up",
        &[
            so(
                "the peer posts receives too late or too few",
                "post receives on the peer before this side sends",
            ),
            so("rnr_retry is too small", "set rnr_retry to 7, which retries without limit"),
            so(
                "the peer is slow or stopped",
                "roce stat --watch 1 (on the peer), and raise min_rnr_timer of its queue pair",
            ),
        ],
    ),
    row(
        Cause::NakInvalidRequest,
        WcStatus::RemoteInvalidRequestError,
        "the peer sent NAK 0x61: it considers the request invalid",
        &[
            so(
                "the receive of the peer is shorter than the message",
                "compare the lengths of send and receive",
            ),
            so(
                "the queue pair of the peer does not allow the operation",
                "check qp_access_flags on the peer",
            ),
            so(
                "more READs or atomics are outstanding than the peer holds",
                "set max_rd_atomic here to max_dest_rd_atomic of the peer",
            ),
            so("the path MTUs of both sides differ", "roce dissect CAPTURE (record it with --pcap CAPTURE)"),
        ],
    ),
    row(
        Cause::NakRemoteAccess,
        WcStatus::RemoteAccessError,
        "the peer sent NAK 0x62: the rkey, range or right of the access is wrong",
        &[
            so(
                "the rkey or address is that of an earlier registration",
                "compare rkey and address with those of the peer's ibv_reg_mr",
            ),
            so("the range ends outside the region", "compare address + length with the region of the peer"),
            so(
                "the region lacks the right of the operation",
                "register it with IBV_ACCESS_REMOTE_READ, REMOTE_WRITE or REMOTE_ATOMIC on the peer",
            ),
            so(
                "the region belongs to another protection domain",
                "create region and queue pair in one protection domain on the peer",
            ),
            so("the peer is roce and knows the failed check", "roce why --pid PID (on the peer)"),
        ],
    ),
    row(
        Cause::NakRemoteOperational,
        WcStatus::RemoteOperationError,
        "the peer sent NAK 0x63: it could not execute the request",
        &[
            so(
                "the receive that the peer posted has a wrong lkey or range",
                "look on the peer for LOC_PROT_ERR",
            ),
            so("the device of the peer failed", "dmesg (on the peer)"),
        ],
    ),
    row(
        Cause::NakUnknown,
        WcStatus::RemoteInvalidRequestError,
        "the peer sent a NAK code that RC does not have",
        &[so("the peer violates the protocol", "roce dissect CAPTURE (record it with --pcap CAPTURE)")],
    ),
    row(
        Cause::UnexpectedResponse,
        WcStatus::BadResponseError,
        "the response had the wrong kind for the oldest outstanding request",
        &[
            so("the peer violates the protocol", "roce dissect CAPTURE (record it with --pcap CAPTURE)"),
            so("another connection with the same numbers still sends", "roce stat --all (on both sides)"),
        ],
    ),
    row(
        Cause::ResponseLength,
        WcStatus::BadResponseError,
        "a READ response had more or fewer bytes than its place in the message requires",
        &[
            so("the path MTUs of both sides differ", "compare path_mtu of both sides (ibv_query_qp)"),
            so("the peer violates the protocol", "roce dissect CAPTURE (record it with --pcap CAPTURE)"),
        ],
    ),
    row(
        Cause::LocalKeyUnknown,
        WcStatus::LocalProtectionError,
        "a local key of the request is unknown or was revoked",
        &[
            so(
                "the region was deregistered too early",
                "keep the region registered until its last request has completed",
            ),
            so(
                "the request has the key of another device or context",
                "check sg_list[i].lkey of the request",
            ),
        ],
    ),
    row(
        Cause::LocalKeyWrongDomain,
        WcStatus::LocalProtectionError,
        "a local key of the request belongs to another protection domain",
        &[so(
            "region and queue pair are in two protection domains",
            "register the memory in the domain of the queue pair",
        )],
    ),
    row(
        Cause::LocalKeyPermission,
        WcStatus::LocalProtectionError,
        "a local region lacks the right that the request needs",
        &[so(
            "the region was registered for reading only",
            "register it with IBV_ACCESS_LOCAL_WRITE: receives, READs and atomics write to it",
        )],
    ),
    row(
        Cause::LocalKeyRange,
        WcStatus::LocalProtectionError,
        "an element of the request ends outside its region",
        &[
            so(
                "address or length of an element is wrong",
                "compare sg_list[i].addr and length with the region",
            ),
            so(
                "the memory was truncated or unmapped",
                "keep files and mappings as long as their region is registered",
            ),
        ],
    ),
    row(
        Cause::MessageTooLong,
        WcStatus::LocalLengthError,
        "the incoming message was longer than the posted receive",
        &[
            so(
                "both sides use different message sizes",
                "post receives as long as the longest message of the peer",
            ),
            so("the 40 bytes of the GRH were forgotten (UD)", "post receives that are 40 bytes longer"),
        ],
    ),
    row(
        Cause::RemoteInvalidate,
        WcStatus::RemoteInvalidRequestError,
        "the key in a SEND with invalidate cannot be invalidated",
        &[so(
            "the key is not that of a bound type 2 window of this queue pair",
            "send the rkey of such a window to the peer",
        )],
    ),
    row(
        Cause::RemoteAccessRefused,
        WcStatus::LocalAccessError,
        "an access of the peer to memory of this side was refused, and the peer received NAK 0x62",
        &[
            so(
                "the memory was deregistered while the peer used it",
                "keep it registered until the peer has finished",
            ),
            so(
                "the peer has a wrong rkey, address or length",
                "compare those of the refused packet with ibv_reg_mr",
            ),
            so(
                "the region or the queue pair lacks the right",
                "check the access flags of ibv_reg_mr and ibv_modify_qp",
            ),
        ],
    ),
    row(
        Cause::RemoteRequestInvalid,
        WcStatus::RemoteInvalidRequestError,
        "a request of the peer was invalid, and the peer received NAK 0x61",
        &[
            so("the path MTUs of both sides differ", "compare path_mtu of both sides (ibv_query_qp)"),
            so(
                "the queue pair does not allow the operation",
                "check qp_access_flags and max_dest_rd_atomic here",
            ),
            so("the peer violates the protocol", "roce dissect CAPTURE (record it with --pcap CAPTURE)"),
        ],
    ),
    row(
        Cause::WindowBind,
        WcStatus::MemoryWindowBindError,
        "the bind of a memory window was refused",
        &[
            so("the region lacks the right to bind", "register it with IBV_ACCESS_MW_BIND"),
            so("the range of the window ends outside the region", "compare both ranges"),
            so(
                "window, region and queue pair are in different domains",
                "create them in one protection domain",
            ),
        ],
    ),
    row(
        Cause::LocalInvalidate,
        WcStatus::LocalQpOperationError,
        "a local invalidate was refused",
        &[
            so("the key was invalidated before", "invalidate each key once"),
            so("windows over the region are still bound", "unbind them first"),
        ],
    ),
    row(
        Cause::CompletionQueueOverflow,
        WcStatus::GeneralError,
        "the completion queue was full, so a completion was lost",
        &[
            so(
                "the queue is too small for all requests that complete into it",
                "create it with more entries",
            ),
            so("the program polls too rarely", "roce stat --watch 1"),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_likely_causes_and_a_next_step() {
        for (cause, check) in Cause::ALL.into_iter().skip(1).zip(CHECKS) {
            assert_eq!(check.cause, cause, "the table has the order of the numbers");
        }
        assert_eq!(CHECKS.len() + 1, Cause::ALL.len());
        assert!(likely(Cause::None).is_empty());
        for check in CHECKS {
            assert!(!check.likely.is_empty() && check.status != WcStatus::Success, "{:?}", check.cause);
            for Likely { cause, next } in check.likely {
                for text in [check.meaning, cause, next] {
                    assert!((10..120).contains(&text.len()), "{text}");
                    assert!(!text.ends_with(['.', ' ']) && !text.contains('\n'), "{text}");
                }
            }
        }
    }
}
