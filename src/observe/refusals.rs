//! The likely cause of a request that this side refused: the violated rule is known, so it comes first.

use roce_transport::{Invalid, KeyError, Rule};

use super::Likely;

/// Returns the likely cause of a refused request of the peer; `None` for other failures.
pub(super) fn of_refusal(rule: &Rule) -> Option<Likely> {
    match rule {
        Rule::RemoteAccess { denial, .. } => Some(of_key(denial.error)),
        Rule::RemoteInvalid { problem, .. } => Some(of_request(*problem)),
        _ => None,
    }
}

const fn so(cause: &'static str, next: &'static str) -> Likely {
    Likely { cause, next }
}

const fn of_key(error: KeyError) -> Likely {
    match error {
        KeyError::Unknown => so(
            "the peer uses the rkey of an earlier registration, or the memory was deregistered too early",
            "compare the rkey with ibv_reg_mr here; keep the memory registered until the peer has finished",
        ),
        KeyError::WrongProtectionDomain => so(
            "region and queue pair were created in different protection domains",
            "create both in one protection domain on this side",
        ),
        KeyError::WrongQueuePair => so(
            "the window of type 2 was bound through another queue pair",
            "bind the window on the queue pair that the peer uses",
        ),
        KeyError::Unbound => so(
            "the memory window is not bound, or was invalidated",
            "bind the window before the peer uses its key",
        ),
        KeyError::PermissionDenied => so(
            "the region was registered without the right for this operation",
            "register it with IBV_ACCESS_REMOTE_READ, REMOTE_WRITE or REMOTE_ATOMIC on this side",
        ),
        KeyError::OutOfRange => so(
            "the address or length of the peer ends outside the region",
            "compare address + length of the request with the region on this side",
        ),
    }
}

const fn of_request(problem: Invalid) -> Likely {
    match problem {
        Invalid::NotAllowed => so(
            "the queue pair does not allow the operation",
            "set qp_access_flags of ibv_modify_qp on this side",
        ),
        Invalid::TooManyOutstanding => so(
            "max_rd_atomic of the peer is larger than max_dest_rd_atomic here",
            "set max_rd_atomic of the peer to at most max_dest_rd_atomic of this side",
        ),
        Invalid::Misaligned => so(
            "the peer uses an address that is not a multiple of 8 for an atomic operation",
            "align the address of the counter to 8 bytes",
        ),
        Invalid::Length => {
            so("the path MTUs of both sides differ", "compare path_mtu of both sides (ibv_query_qp)")
        }
        Invalid::TooLong => so("the message is longer than 2^31 bytes", "divide the message at the peer"),
        Invalid::SharedReceiveQueue => so(
            "the peer has the number of another shared receive queue, or it was destroyed",
            "compare the number with ibv_get_srq_num here",
        ),
        Invalid::Flush => so(
            "the peer asks for a placement that the region does not have",
            "register it with IBV_ACCESS_FLUSH_GLOBAL or FLUSH_PERSISTENT on this side",
        ),
        // Order, operation or headers.
        _ => so("the peer violates the protocol", "roce analyze CAPTURE (record it with --pcap CAPTURE)"),
    }
}
