//! Descriptions of memory that one end sends to the other.

use std::ops::Range;

use roce_transport::{OutOfBounds, RKey, SendOp};

/// Memory of a peer that READs and WRITEs can access: the description of a part of a
/// [`MemoryRegion`](super::MemoryRegion). With the feature `serde` it can be serialized;
/// [`to_bytes`](Self::to_bytes) suits custom messages.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, _far) = ends()?;
/// let region = near.context.alloc_pd()?.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let message = region.remote(1024..2048)?.to_bytes();
/// // At the other end:
/// let there = RemoteMemory::from_bytes(&message);
/// assert_eq!((there.addr, there.len, there.rkey), (region.addr() + 1024, 1024, region.rkey().into()));
/// assert_eq!(there.write(), SendOp::Write { remote_addr: region.addr() + 1024, rkey: region.rkey() });
/// assert_eq!(there.slice(1000..1024)?.len, 24);
/// assert!(there.slice(1000..1025).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteMemory {
    /// First virtual address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// Length of [`to_bytes`](Self::to_bytes) in bytes.
    pub const LEN: usize = 20;

    /// Encodes address, length and key in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes). Any values of a peer are safe: at worst a request
    /// that uses them completes with an error.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let number =
            |range: Range<usize>| bytes[range].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Self { addr: number(0..8), len: number(8..16), rkey: number(16..20) as u32 }
    }

    /// Returns a part of the memory; the range counts bytes from its start.
    ///
    /// # Errors
    ///
    /// Fails if the range exceeds the memory or the end of the address space.
    pub fn slice(&self, range: Range<u64>) -> Result<Self, OutOfBounds> {
        if range.start > range.end || range.end > self.len {
            return Err(OutOfBounds);
        }
        let addr = self.addr.checked_add(range.start).ok_or(OutOfBounds)?;
        Ok(Self { addr, len: range.end - range.start, rkey: self.rkey })
    }

    /// Returns a READ that starts at the first byte.
    #[must_use]
    pub fn read(&self) -> SendOp {
        SendOp::Read { remote_addr: self.addr, rkey: RKey(self.rkey) }
    }

    /// Returns a WRITE that starts at the first byte.
    #[must_use]
    pub fn write(&self) -> SendOp {
        SendOp::Write { remote_addr: self.addr, rkey: RKey(self.rkey) }
    }
}
