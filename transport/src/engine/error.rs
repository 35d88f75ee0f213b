//! The errors of the verbs for objects, and the attributes of shared receive queues.

use crate::memory::KeyError;

/// An error of an operation on a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PdError {
    /// The protection domain does not exist.
    #[error("there is no such protection domain")]
    Unknown,
    /// Objects still belong to the protection domain.
    #[error("{members} objects still belong to the protection domain; remove them first")]
    InUse {
        /// Number of objects.
        members: usize,
    },
    /// The configured number of protection domains is in use.
    #[error("all {limit} protection domains are in use")]
    TooMany {
        /// The configured limit.
        limit: usize,
    },
}

/// An error of an operation on a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// The completion queue does not exist.
    #[error("there is no such completion queue")]
    Unknown,
    /// Queue pairs still complete into the completion queue.
    #[error("{users} queue pair halves still complete into this completion queue; destroy them first")]
    InUse {
        /// Number of halves of queue pairs.
        users: usize,
    },
    /// The configured number of completion queues is in use.
    #[error("all {limit} completion queues are in use")]
    TooMany {
        /// The configured limit.
        limit: usize,
    },
    /// The capacity is 0, above the limit, or below the current number of completions in the queue.
    #[error("a completion queue cannot have {have} entries; use {least} to {most}")]
    Capacity {
        /// Requested capacity.
        have: usize,
        /// Smallest capacity possible now.
        least: usize,
        /// Largest possible capacity.
        most: usize,
    },
    /// The queue overflowed and lost completions. Its queue pairs are in the error state or about to enter
    /// it.
    #[error(
        "the completion queue with {capacity} entries overflowed and lost completions; make it larger or poll it more often"
    )]
    Overflowed {
        /// Capacity of the queue.
        capacity: usize,
    },
}

/// An error of an operation on a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// The shared receive queue does not exist.
    #[error("there is no such shared receive queue")]
    Unknown,
    /// The protection domain does not exist.
    #[error("there is no such protection domain")]
    UnknownProtectionDomain,
    /// Queue pairs still take receives from the shared receive queue.
    #[error("{users} queue pairs still take from this shared receive queue; destroy them first")]
    InUse {
        /// Number of queue pairs.
        users: usize,
    },
    /// An XRC domain or a completion queue does not exist.
    #[error("there is no such XRC domain or completion queue")]
    UnknownXrcDomainOrCq,
    /// The configured number of shared receive queues is in use.
    #[error("all {limit} shared receive queues are in use")]
    TooMany {
        /// The configured limit.
        limit: usize,
    },
    /// A size is out of range.
    #[error("{name} is {have}, the maximum is {limit}")]
    OutOfRange {
        /// Name of the field.
        name: &'static str,
        /// Requested size.
        have: usize,
        /// Maximum size.
        limit: usize,
    },
    /// More receives are posted than the new capacity allows.
    #[error("max_wr cannot be {have} while {posted} receives are posted")]
    TooSmall {
        /// Requested capacity.
        have: usize,
        /// Number of receives in the queue.
        posted: usize,
    },
}

/// An error of the removal of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// The queue pair does not exist.
    #[error("there is no such queue pair")]
    UnknownQp,
    /// Only UD queue pairs can be in multicast groups.
    #[error("only UD queue pairs can join multicast groups")]
    NotDatagram,
    /// The key does not exist.
    #[error(transparent)]
    Key(KeyError),
    /// Memory windows are bound over the region.
    #[error("{windows} memory windows are bound over the region; unbind or invalidate them first")]
    WindowsBound {
        /// Number of windows.
        windows: u32,
    },
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Capacity in work requests.
    pub max_wr: usize,
    /// Maximum number of scatter elements of a receive.
    pub max_sge: usize,
    /// The armed limit, or 0 if it is not armed.
    pub limit: usize,
    /// Number of receives that are posted and not taken.
    pub posted: usize,
}
