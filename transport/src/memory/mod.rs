//! Memory that work requests and peers may access, and the keys that permit the access.

mod keys;
mod region;
mod words;

use core::fmt;

use bitflags::bitflags;

pub use keys::{KeyError, WindowBinding, WindowType};
pub(crate) use keys::{KeyTable, Resolved};
pub use region::{ChangeError, RegionAttributes, RegionChange, RegisterError};
pub use words::WordMemory;

bitflags! {
    /// What may be done to a region, a window or through a queue pair. Bit values are those of
    /// libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The owner's receives, READ responses and atomic results may be written here.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE. Needs [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics. Needs [`Self::LOCAL_WRITE`].
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
    /// Every right that lets a peer in.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);
}

/// An access outside a [`Memory`]. The engine checks bounds before every call, so a `Memory`
/// returns this only if it has become shorter in the meantime.
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
    /// When they do not, or their end is beyond the numbers.
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
/// Methods take `&self` because a peer writes while the owner reads: an implementation must make
/// that race defined, as [`WordMemory`] does with atomics. Torn values are allowed, except for the
/// three 8-byte operations, which are atomic towards each other.
pub trait Memory: Send + Sync + fmt::Debug {
    /// The length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// When the range is not wholly inside.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    ///
    /// When the range is not wholly inside; nothing was written then.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds>;

    /// Replaces the host-endian `u64` at `offset` by `swap` if it equals `compare`; returns the
    /// previous value.
    ///
    /// # Errors
    ///
    /// When the range is not wholly inside or not aligned to 8 bytes.
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds>;

    /// Adds to the host-endian `u64` at `offset`, wrapping; returns the previous value.
    ///
    /// # Errors
    ///
    /// When the range is not wholly inside or not aligned to 8 bytes.
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds>;

    /// Stores 8 bytes at once, so that no reader sees half of them (ATOMIC WRITE).
    ///
    /// # Errors
    ///
    /// When the range is not wholly inside or not aligned to 8 bytes.
    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds>;

    /// Makes earlier writes to the range visible to everyone, and persistent if asked (FLUSH).
    /// Ordinary memory is coherent, so the default does nothing.
    fn flush(&self, offset: usize, len: usize, persistent: bool) {
        let _ = (offset, len, persistent);
    }
}
