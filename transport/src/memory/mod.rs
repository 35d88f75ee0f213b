//! Memory that work requests and peers may access, and the keys that permit the access.

mod keys;
mod region;
mod words;

use core::fmt;

use bitflags::bitflags;

pub(crate) use keys::{KeyTable, Resolved};
pub use keys::{WindowBinding, WindowType};
pub use region::{ChangeError, KeyError, RegionAttributes, RegionChange, RegisterError};
pub use words::WordMemory;

bitflags! {
    /// Rights for a region, for a window, or through a queue pair. The bit values are those of libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The owner's receives, READ responses and atomic results may be written to the memory.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE. Requires [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics. Requires [`Self::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound over the region.
        const MW_BIND = 1 << 4;
        /// Peers address the region from zero instead of from its virtual address.
        const ZERO_BASED = 1 << 5;
        /// Peers may FLUSH for global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH for persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order. Accepted; this engine always writes in order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// All rights for access by peers.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);
}

/// An access outside a [`Memory`]. The engine checks bounds before each call, so a `Memory` only returns this
/// error if it has become shorter since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl fmt::Display for OutOfBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("access outside the registered memory")
    }
}

impl core::error::Error for OutOfBounds {}

impl OutOfBounds {
    /// Checks that `len` bytes from `offset` on lie within `size` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the range is not within the bounds, or its end overflows.
    #[inline]
    pub const fn check(offset: usize, len: usize, size: usize) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Self),
        }
    }
}

/// Bytes that an engine reads and writes on behalf of work requests and of peers.
///
/// The methods take `&self` because a peer writes while the owner reads. An implementation must make that
/// race defined, as [`WordMemory`] does with atomics. Torn values are allowed, except for the three 8-byte
/// operations, which are atomic with respect to each other.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Tells whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes, starting at `offset`, into `out`.
    ///
    /// # Errors
    ///
    /// Returns an error if the range is out of bounds.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    ///
    /// Returns an error if the range is out of bounds; nothing is written then.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds>;

    /// Replaces the host-endian `u64` at `offset` with `swap` if it is equal to `compare`. Returns the
    /// previous value.
    ///
    /// # Errors
    ///
    /// Returns an error if the range is out of bounds or not aligned to 8 bytes.
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds>;

    /// Adds to the host-endian `u64` at `offset`, wrapping. Returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns an error if the range is out of bounds or not aligned to 8 bytes.
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds>;

    /// Stores 8 bytes at once, so that no reader sees a part of them (ATOMIC WRITE).
    ///
    /// # Errors
    ///
    /// Returns an error if the range is out of bounds or not aligned to 8 bytes.
    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds>;

    /// Makes earlier writes to the range visible to everyone, and persistent if requested (FLUSH). Ordinary
    /// memory is coherent, so the default implementation does nothing.
    fn flush(&self, offset: usize, len: usize, persistent: bool) {
        let _ = (offset, len, persistent);
    }
}
