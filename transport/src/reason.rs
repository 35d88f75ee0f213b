//! The reason for each failure: the check that failed here or the NAK of the peer, with its numbers.
//!
//! A half that fails a request gives a [`Rule`]; its [`Cause`] is the number that the completion carries. The
//! queue pair keeps the first rule as a [`Reason`] until RESET, or until it leaves SQE. It is allocated only
//! then.

use core::fmt;

use roce_packet::{NakCode, Opcode, Psn};

use crate::Instant;
use crate::completion::{Cause, WcStatus};
use crate::ids::{CqId, LKey, RKey};
use crate::memory::{Access, KeyError, KeyTable};
use crate::qp::QpState;
use crate::wr::Sge;

/// The first failure of a queue pair. [`Engine::reason`](crate::Engine::reason) returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// The time of the failure.
    pub at: Instant,
    /// The state of the queue pair before it.
    pub from: QpState,
    /// The identifier and status of the request that failed. `None` if no completion reports the failure.
    pub request: Option<(u64, WcStatus)>,
    /// The check that failed.
    pub rule: Rule,
    /// The time of the last packet that only the peer can have sent. `None` if no such packet arrived.
    pub heard: Option<Instant>,
}

/// A check that failed, with the numbers that it compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The program moved the queue pair to ERR, or the connection service did because the peer disconnected.
    Moved,
    /// The local ACK timer expired without progress of the peer.
    AckTimeout {
        /// Number of expirations.
        times: u8,
        /// The configured time until each expiration, in nanoseconds.
        wait_ns: u64,
        /// The oldest unacknowledged PSN.
        oldest: Psn,
        /// The PSN after the newest one that was sent.
        next: Psn,
    },
    /// Sequence-error NAKs or lost responses used up `retry_cnt`.
    SequenceRetries {
        /// The value of `retry_cnt`.
        retries: u8,
        /// The oldest unacknowledged PSN.
        oldest: Psn,
    },
    /// RNR NAKs used up `rnr_retry`.
    RnrRetries {
        /// The value of `rnr_retry`.
        retries: u8,
        /// The delay that the last NAK requested, in nanoseconds.
        delay_ns: u64,
        /// The PSN of the last NAK.
        psn: Psn,
    },
    /// The peer refused a request.
    Nak {
        /// The code of the NAK.
        code: NakCode,
        /// The PSN of the NAK.
        psn: Psn,
    },
    /// The response has the wrong kind for the oldest outstanding request.
    UnexpectedResponse {
        /// The PSN of the response.
        psn: Psn,
        /// The opcode of the response.
        opcode: Opcode,
    },
    /// The READ response has the wrong length.
    ResponseLength {
        /// The PSN of the response.
        psn: Psn,
        /// Bytes in the response.
        len: u32,
        /// Bytes that its place in the message requires.
        expected: u32,
    },
    /// A local key, range or right is wrong.
    LocalKey(LocalDenial),
    /// A message is longer than its receive.
    MessageTooLong {
        /// Bytes of the message up to the end of the packet.
        len: u64,
        /// Bytes of the receive.
        capacity: u64,
    },
    /// A key in a remote invalidate cannot be invalidated.
    RemoteInvalidate {
        /// The key.
        rkey: RKey,
        /// The reason.
        error: KeyError,
    },
    /// An access of the peer to local memory was refused.
    RemoteAccess {
        /// The PSN of the refused packet.
        psn: Psn,
        /// The access.
        denial: Denial,
    },
    /// A request of the peer is invalid.
    RemoteInvalid {
        /// The PSN of the refused packet.
        psn: Psn,
        /// The violated rule.
        problem: Invalid,
    },
    /// A bind of a memory window was refused.
    WindowBind {
        /// The reason.
        error: KeyError,
    },
    /// A local invalidate was refused.
    LocalInvalidate {
        /// The key.
        rkey: RKey,
        /// The reason.
        error: KeyError,
    },
    /// A completion was lost, because its queue was full.
    CompletionQueueOverflow(CqId),
}

/// A refused access of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The reason.
    pub error: KeyError,
    /// The key of the peer.
    pub rkey: RKey,
    /// The first virtual address.
    pub va: u64,
    /// The number of bytes. 0 for a later packet of a message, whose key was revoked after the first one, and
    /// for a FLUSH of a whole region; their address is unknown or irrelevant.
    pub len: u32,
}

/// A refused local access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalDenial {
    /// The reason.
    pub error: KeyError,
    /// The index of the element. `None` if every element passes the checks of its key, for example if the
    /// memory behind a region became smaller.
    pub index: Option<u8>,
    /// The element, or an empty one if the index is unknown.
    pub element: Sge,
}

impl LocalDenial {
    /// Finds the element that caused an error.
    #[cold]
    pub(crate) fn find(
        error: KeyError,
        keys: &KeyTable,
        pd: crate::ids::PdId,
        elements: &[Sge],
        need: Access,
    ) -> Self {
        let is_refused = |element: &&Sge| {
            let range = (element.addr, u64::from(element.length));
            element.length > 0 && keys.local(element.lkey, pd, range, need).is_err()
        };
        let found = (0..=u8::MAX).zip(elements).find(|(_, element)| is_refused(element));
        match found {
            Some((index, element)) => Self { error, index: Some(index), element: *element },
            None => Self { error, index: None, element: Sge::default() },
        }
    }
}

/// A rule that a request of the peer violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalid {
    /// First, Middle, Last and Only do not follow each other in this way, or change the operation.
    Order,
    /// The access flags of the queue pair do not allow the operation.
    NotAllowed,
    /// The operation is not a request.
    NotRequest,
    /// The shared receive queue of the request does not exist in the XRC domain, or changes in a message.
    SharedReceiveQueue,
    /// The payload contradicts the opcode, the path MTU or the length in the RETH.
    Length,
    /// The message is longer than 2^31 bytes.
    TooLong,
    /// An extended header is missing.
    Header,
    /// More READs and atomics are outstanding than `max_dest_rd_atomic`.
    TooManyOutstanding,
    /// The address of an atomic operation is not a multiple of 8.
    Misaligned,
    /// A FLUSH has no placement, one that is not allowed, or a reserved selectivity.
    Flush,
}

impl Invalid {
    const fn text(self) -> &'static str {
        match self {
            Self::Order => "the packet does not continue the message in progress",
            Self::NotAllowed => "the access flags of the queue pair do not allow the operation",
            Self::NotRequest => "the operation is not a request",
            Self::SharedReceiveQueue => "the shared receive queue of the request does not exist",
            Self::Length => "the payload contradicts the opcode, the path MTU or the length in the RETH",
            Self::TooLong => "the message is longer than 2^31 bytes",
            Self::Header => "an extended header is missing",
            Self::TooManyOutstanding => "more READs and atomics are outstanding than max_dest_rd_atomic",
            Self::Misaligned => "the address of an atomic operation is not a multiple of 8",
            Self::Flush => "the placement or selectivity of the FLUSH is not allowed",
        }
    }
}

impl Rule {
    /// Returns the kind of the failure, which completions carry.
    #[must_use]
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Moved => Cause::Flushed,
            Self::AckTimeout { .. } => Cause::AckTimeout,
            Self::SequenceRetries { .. } => Cause::SequenceRetries,
            Self::RnrRetries { .. } => Cause::RnrRetries,
            Self::Nak { code: NakCode::InvalidRequest, .. } => Cause::NakInvalidRequest,
            Self::Nak { code: NakCode::RemoteAccess, .. } => Cause::NakRemoteAccess,
            Self::Nak { code: NakCode::RemoteOperational, .. } => Cause::NakRemoteOperational,
            Self::Nak {
                code: NakCode::PsnSequence | NakCode::InvalidRdRequest | NakCode::Reserved(_),
                ..
            } => Cause::NakUnknown,
            Self::UnexpectedResponse { .. } => Cause::UnexpectedResponse,
            Self::ResponseLength { .. } => Cause::ResponseLength,
            Self::LocalKey(LocalDenial { error, .. }) => local_cause(*error),
            Self::MessageTooLong { .. } => Cause::MessageTooLong,
            Self::RemoteInvalidate { .. } => Cause::RemoteInvalidate,
            Self::RemoteAccess { .. } => Cause::RemoteAccessRefused,
            Self::RemoteInvalid { .. } => Cause::RemoteRequestInvalid,
            Self::WindowBind { .. } => Cause::WindowBind,
            Self::LocalInvalidate { .. } => Cause::LocalInvalidate,
            Self::CompletionQueueOverflow(_) => Cause::CompletionQueueOverflow,
        }
    }
}

/// Returns the cause to report for an invalid local key.
const fn local_cause(error: KeyError) -> Cause {
    match error {
        KeyError::Unknown | KeyError::Unbound | KeyError::WrongQueuePair => Cause::LocalKeyUnknown,
        KeyError::WrongProtectionDomain => Cause::LocalKeyWrongDomain,
        KeyError::PermissionDenied => Cause::LocalKeyPermission,
        KeyError::OutOfRange => Cause::LocalKeyRange,
    }
}

/// Prints nanoseconds in milliseconds.
struct Milliseconds(u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:02} ms", self.0 / 1_000_000, self.0 / 10_000 % 100)
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, rkey: RKey(rkey), va, len } = self;
        match len {
            0 => write!(formatter, "{error} (rkey {rkey:#x})"),
            _ => write!(formatter, "{error} (rkey {rkey:#x}, {len} bytes at {va:#x})"),
        }
    }
}

impl fmt::Display for LocalDenial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, index, element: Sge { addr, length, lkey: LKey(lkey) } } = self;
        match index {
            Some(index) => {
                write!(formatter, "element {index} (lkey {lkey:#x}, {length} bytes at {addr:#x}): {error}")
            }
            None => write!(formatter, "local memory: {error}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved => write!(formatter, "the program or a disconnect moved the queue pair to ERR"),
            Self::AckTimeout { times, wait_ns, oldest, next } => write!(
                formatter,
                "{times} timeouts of {}, PSN {} to {} unacknowledged",
                Milliseconds(*wait_ns),
                oldest.get(),
                next.sub(1).get()
            ),
            Self::SequenceRetries { retries, oldest } => {
                write!(formatter, "{retries} retries without progress, PSN {} is missing", oldest.get())
            }
            Self::RnrRetries { retries, delay_ns, psn } => write!(
                formatter,
                "{} RNR NAKs, the last for PSN {} asked for {}",
                u32::from(*retries) + 1,
                psn.get(),
                Milliseconds(*delay_ns)
            ),
            Self::Nak { code, psn } => {
                write!(formatter, "NAK {:#x} ({code}) for PSN {}", 0x60 | code.code(), psn.get())
            }
            Self::UnexpectedResponse { psn, opcode } => {
                write!(formatter, "{opcode} with PSN {} does not answer the oldest request", psn.get())
            }
            Self::ResponseLength { psn, len, expected } => {
                write!(formatter, "the response with PSN {} has {len} bytes instead of {expected}", psn.get())
            }
            Self::LocalKey(denial) => write!(formatter, "{denial}"),
            Self::MessageTooLong { len, capacity } => {
                write!(formatter, "{len} bytes or more arrived for a receive of {capacity}")
            }
            Self::RemoteInvalidate { rkey: RKey(rkey), error } => {
                write!(formatter, "the peer invalidates rkey {rkey:#x}: {error}")
            }
            Self::RemoteAccess { psn, denial } => write!(formatter, "PSN {}: {denial}", psn.get()),
            Self::RemoteInvalid { psn, problem } => {
                write!(formatter, "PSN {}: {}", psn.get(), problem.text())
            }
            Self::WindowBind { error } => write!(formatter, "{error}"),
            Self::LocalInvalidate { rkey: RKey(rkey), error } => {
                write!(formatter, "rkey {rkey:#x}: {error}")
            }
            Self::CompletionQueueOverflow(cq) => write!(formatter, "{cq} is full"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A completion error contains a rule, and a large error slows down every call that may return one.
    #[test]
    fn a_rule_is_small() {
        assert!(size_of::<Rule>() <= 32, "{}", size_of::<Rule>());
    }
}
