//! The attributes of a region, their changes, and the errors.

use alloc::sync::Arc;

use super::{Access, Memory, OutOfBounds};
use crate::ids::{LKey, PdId, RKey};

/// The reason why a key did not give access. A peer only receives "remote access error".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The number has no entry, or its entry has another variant: the key was revoked or never existed.
    #[error("the key is unknown or was revoked")]
    Unknown,
    /// The entry belongs to another protection domain.
    #[error("the key belongs to another protection domain")]
    WrongProtectionDomain,
    /// The type 2 window is bound to another queue pair.
    #[error("the window is bound to another queue pair")]
    WrongQueuePair,
    /// The memory window is not bound.
    #[error("the memory window is not bound")]
    Unbound,
    /// The entry does not grant this kind of access.
    #[error("the key does not grant this access")]
    PermissionDenied,
    /// The range is not completely inside the entry.
    #[error("the range lies outside the region")]
    OutOfRange,
}

impl From<OutOfBounds> for KeyError {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfRange
    }
}

/// An error of registering memory or creating a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The protection domain does not exist.
    #[error("there is no such protection domain")]
    UnknownProtectionDomain,
    /// Remote writes or atomics are requested without local write permission (IBTA 10.6.3).
    #[error("remote write and remote atomic access need LOCAL_WRITE as well")]
    LocalWriteMissing,
    /// The region is empty.
    #[error("a region of zero bytes cannot be registered")]
    Empty,
    /// The region extends beyond the end of the 64-bit address space.
    #[error("the region at {addr:#x} with {len} bytes reaches past the end of the address space")]
    AddressOverflow {
        /// Requested virtual address.
        addr: u64,
        /// Length in bytes.
        len: usize,
    },
    /// The system does not have enough memory.
    #[error("cannot allocate {len} bytes of memory; request fewer")]
    OutOfMemory {
        /// Requested length in bytes.
        len: usize,
    },
    /// The requested key is in use.
    #[error("the memory key is in use")]
    KeyInUse,
    /// The configured number of keys is in use.
    #[error("all {limit} memory keys are in use; deregister a region or raise the limit")]
    TooManyKeys {
        /// The configured limit.
        limit: usize,
    },
}

/// The attributes of a region, as returned by registration and by a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAttributes {
    /// The key for the owner's work requests.
    pub lkey: LKey,
    /// The key for peers. Its value is equal to that of the L_Key.
    pub rkey: RKey,
    /// The first virtual address, 0 for a zero-based region.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// The granted access rights.
    pub access: Access,
}

/// Changes of a region. An attribute that is `None` is not changed.
#[derive(Clone, Debug, Default)]
pub struct RegionChange {
    /// The new protection domain.
    pub pd: Option<PdId>,
    /// The virtual address of the first byte, and the new memory.
    pub memory: Option<(u64, Arc<dyn Memory>)>,
    /// The new access rights.
    pub access: Option<Access>,
}

/// An error of changing a region. The region is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The key does not belong to a region.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The new attributes cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Windows are bound over the region, each with its own rights and address.
    #[error("{windows} memory windows are bound over the region; unbind or invalidate them first")]
    WindowsBound {
        /// Number of windows.
        windows: u32,
    },
}

/// Checks the attributes of a region and returns its first virtual address.
pub(super) fn check_region(addr: u64, len: usize, access: Access) -> Result<u64, RegisterError> {
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(RegisterError::LocalWriteMissing);
    }
    if len == 0 {
        return Err(RegisterError::Empty);
    }
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
    if start.checked_add(len as u64 - 1).is_none() {
        return Err(RegisterError::AddressOverflow { addr, len });
    }
    Ok(start)
}
