//! The sections of the InfiniBand Architecture Specification, volume 1, that the log names.
//!
//! The document is not public, so these are the numbers on which `docs/reference/conformance.md` and public
//! sources agree: comments of drivers and discussions of kernel developers who quote it. A rule whose own
//! section is not known in this way has the number of the section that contains it.

use roce_packet::NakCode;
use roce_transport::Rule;

/// Work requests that an application posts.
pub(super) const POST: &str = "11.4";
/// PSNs of requests and their responses.
pub(super) const PSN: &str = "9.7.1";
/// The checks of a request before it is executed.
pub(super) const EXECUTE: &str = "9.7.4";
/// The MSN counts completed messages.
pub(super) const MSN: &str = "9.7.7";
/// The responses to a READ.
pub(super) const RESPONSE: &str = "9.7.5.1.3";
/// One acknowledgement covers all packets before it.
pub(super) const ACK: &str = "9.7.5.1.2";
/// Duplicate requests.
pub(super) const DUPLICATE: &str = "9.7.5";
/// One NAK for a gap.
pub(super) const GAP: &str = "9.7.5";
/// Errors, as the responder and the requester handle them.
pub(super) const REFUSAL: &str = "9.9";
/// The receiver is not ready.
pub(super) const RNR: &str = "9.7.5.2.8";
/// A later response shows that an earlier one is missing.
pub(super) const IMPLIED: &str = "9.7.6";
/// Acknowledgements, NAKs and responses at the requester.
pub(super) const ANSWER: &str = "9.7.6";
/// The requester sends again.
pub(super) const RESEND: &str = "9.7.6";
/// The local ACK timeout.
pub(super) const TIMEOUT: &str = "9.7.6.1.3";
/// Atomic operations.
pub(super) const ATOMIC: &str = "9.4.5";
/// The invariant CRC.
pub(super) const ICRC: &str = "7.8.1";
/// The checks of the headers of every packet.
pub(super) const HEADERS: &str = "9.6";
/// Congestion notifications.
pub(super) const CNP: &str = "A17.9";
/// The error state, and the requests that it flushes.
pub(super) const FLUSH: &str = "10.3.1";
/// Keys, rights and ranges of memory.
const MEMORY: &str = "10.6";
/// Selective repeat, which no specification contains.
pub(super) const EXTENSION: &str = "-";

/// Returns the section behind the failure of a queue pair.
pub(super) const fn of(rule: &Rule) -> &'static str {
    match rule {
        Rule::Moved => FLUSH,
        Rule::AckTimeout { .. } => TIMEOUT,
        Rule::SequenceRetries { .. } => RESEND,
        Rule::RnrRetries { .. } => RNR,
        Rule::Nak { code: NakCode::RemoteAccess, .. } | Rule::RemoteAccess { .. } | Rule::LocalKey(_) => {
            MEMORY
        }
        Rule::MessageTooLong { .. } => "9.7.4.1.6",
        Rule::RemoteInvalid { .. } => EXECUTE,
        _ => REFUSAL,
    }
}
