//! What a region is like, how it changes, and what is refused.

use alloc::sync::Arc;

use super::{Access, KeyError, Memory};
use crate::ids::{LKey, PdId, RKey};

/// Why memory could not be registered or a window not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The protection domain does not exist.
    #[error("there is no such protection domain")]
    UnknownProtectionDomain,
    /// Remote writes and atomics need local write permission (IBTA 10.6.3).
    #[error("remote write and remote atomic access need LOCAL_WRITE as well")]
    LocalWriteMissing,
    /// A region has at least one byte.
    #[error("a region of zero bytes cannot be registered")]
    Empty,
    /// The region would reach past the end of the 64-bit address space.
    #[error("the region at {addr:#x} with {len} bytes reaches past the end of the address space")]
    AddressOverflow {
        /// Virtual address asked for.
        addr: u64,
        /// Bytes.
        len: usize,
    },
    /// The system does not give that much memory.
    #[error("{len} bytes of memory cannot be had here; ask for fewer")]
    OutOfMemory {
        /// Bytes asked for.
        len: usize,
    },
    /// The key that was asked for belongs to something else.
    #[error("the memory key is in use")]
    KeyInUse,
    /// The configured number of keys is in use.
    #[error("all {limit} memory keys are in use; deregister a region or raise the limit")]
    TooManyKeys {
        /// The configured limit.
        limit: usize,
    },
}

/// What registering a region gave, and what a query returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAttributes {
    /// For the owner's work requests.
    pub lkey: LKey,
    /// For peers. Equal in value to the L_Key.
    pub rkey: RKey,
    /// The first virtual address, 0 for a zero-based region.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// What is allowed.
    pub access: Access,
}

/// What a region is to become; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct RegionChange {
    /// The protection domain.
    pub pd: Option<PdId>,
    /// The virtual address of the first byte, and the bytes.
    pub memory: Option<(u64, Arc<dyn Memory>)>,
    /// What is allowed.
    pub access: Option<Access>,
}

/// Why a region could not be changed. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// No region has this key.
    #[error("{0}")]
    Key(KeyError),
    /// What it is to become cannot be registered.
    #[error("{0}")]
    Register(#[from] RegisterError),
    /// Windows are bound over the region, each with rights and an address of its own.
    #[error("{windows} memory windows are bound over the region; unbind or invalidate them first")]
    WindowsBound {
        /// How many.
        windows: u32,
    },
}

impl From<KeyError> for ChangeError {
    fn from(error: KeyError) -> Self {
        Self::Key(error)
    }
}

/// The checks of what is to become a region; gives its first virtual address.
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
