//! The memory of frames, shared with the kernel, in chunks of a page. Receive chunks come first, followed by
//! transmit slots. A slot consists of two adjacent chunks, so a frame for path MTU 4096 is contiguous.

use std::io;

use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

use super::rings::Mapping;
use crate::framed::port::FRAME_ROOM;

/// Bytes of a chunk: the kernel allows at most a page.
pub(super) const CHUNK_LEN: usize = 4096;
/// Number of receive chunks. A burst without free chunks is lost.
pub(super) const RX_CHUNKS: u32 = 4096;
/// Maximum number of frames being sent.
pub(super) const TX_SLOTS: u32 = 1024;
/// Chunks of a slot.
pub(super) const SLOT_CHUNKS: u32 = FRAME_ROOM.div_ceil(CHUNK_LEN) as u32;
/// Maximum number of chunks being sent.
pub(super) const TX_CHUNKS: u32 = TX_SLOTS * SLOT_CHUNKS;
/// Bytes of a slot.
pub(super) const SLOT_LEN: usize = SLOT_CHUNKS as usize * CHUNK_LEN;

const LEN: usize = TX_START + TX_SLOTS as usize * SLOT_LEN;
const TX_START: usize = RX_CHUNKS as usize * CHUNK_LEN;

/// The shared memory.
pub(super) struct Umem {
    mapping: Mapping,
}

impl Umem {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { mapping: Mapping::anonymous(LEN)? })
    }

    /// Returns the registration for the kernel.
    pub(super) fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.mapping.start().as_ptr() as u64,
            len: LEN as u64,
            chunk_size: CHUNK_LEN as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// Returns the addresses of the receive chunks.
    pub(super) fn rx_chunks() -> impl Iterator<Item = u64> {
        (0..RX_CHUNKS).map(|chunk| u64::from(chunk) * CHUNK_LEN as u64)
    }

    /// Returns the receive chunk that contains an address, if any.
    pub(super) const fn rx_chunk_of(address: u64) -> Option<u64> {
        if address < TX_START as u64 { Some(address & !(CHUNK_LEN as u64 - 1)) } else { None }
    }

    /// Returns the address of a slot.
    pub(super) const fn slot_address(slot: u32) -> u64 {
        (TX_START + slot as usize * SLOT_LEN) as u64
    }

    /// Returns the slot that contains an address, if any.
    pub(super) fn slot_of(address: u64) -> Option<u32> {
        let offset = usize::try_from(address).ok()?.checked_sub(TX_START)?;
        u32::try_from(offset / SLOT_LEN).ok().filter(|slot| *slot < TX_SLOTS)
    }

    /// Returns the bytes of a received frame.
    ///
    /// # Safety
    ///
    /// The chunk must have come from the kernel and must not be returned while the bytes are borrowed.
    pub(super) unsafe fn received(&self, address: u64, len: u32) -> Option<&[u8]> {
        let (start, len) = (usize::try_from(address).ok()?, len as usize);
        if len > CHUNK_LEN || start.checked_add(len)? > TX_START {
            return None;
        }
        // SAFETY: the range was just checked to lie inside; the caller guarantees that it is not written to.
        Some(unsafe { std::slice::from_raw_parts(self.mapping.start().add(start).as_ptr(), len) })
    }

    /// Returns the room for a frame.
    ///
    /// # Safety
    ///
    /// The kernel must not be sending from the slot.
    pub(super) unsafe fn slot(&mut self, slot: u32) -> Option<&mut [u8]> {
        if slot >= TX_SLOTS {
            return None;
        }
        let start = TX_START + slot as usize * SLOT_LEN;
        // SAFETY: it lies inside; `self` is borrowed; the caller guarantees that the kernel does not use it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.mapping.start().add(start).as_ptr(), SLOT_LEN) })
    }
}

const _: () = assert!(SLOT_LEN >= FRAME_ROOM);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_belongs_to_one_side() {
        assert_eq!(Umem::rx_chunks().count(), RX_CHUNKS as usize);
        assert_eq!(Umem::rx_chunk_of(256), Some(0));
        assert_eq!(Umem::rx_chunk_of(3 * 4096 + 256), Some(3 * 4096));
        assert_eq!(Umem::rx_chunk_of(TX_START as u64), None);
        assert_eq!(Umem::slot_of(TX_START as u64 - 1), None);
        for slot in [0, 1, TX_SLOTS - 1] {
            let address = Umem::slot_address(slot);
            assert_eq!(Umem::slot_of(address), Some(slot));
            assert_eq!(Umem::slot_of(address + SLOT_LEN as u64 - 1), Some(slot));
        }
        assert_eq!(Umem::slot_of(LEN as u64), None);
        assert_eq!(Umem::slot_of(u64::MAX), None);
    }

    #[test]
    fn nothing_outside_is_given_out() {
        let mut umem = Umem::new().unwrap();
        assert_eq!(umem.mapping.len(), LEN);
        // SAFETY: this memory is unknown to the kernel.
        unsafe {
            assert_eq!(umem.received(0, 4096).map(<[u8]>::len), Some(4096));
            assert!(umem.received(0, 4097).is_none());
            assert!(umem.received(TX_START as u64 - 10, 11).is_none());
            assert!(umem.received(u64::MAX, 1).is_none());
            assert_eq!(umem.slot(TX_SLOTS - 1).map(|slot| slot.len()), Some(SLOT_LEN));
            assert!(umem.slot(TX_SLOTS).is_none());
        }
    }
}
