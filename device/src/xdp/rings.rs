//! The four rings that a process and the kernel share: what is received, what is sent, and the chunks of memory
//! that go back and forth. Each has one side that writes entries and one that reads them; a counter for each
//! side, which only that side moves, says how far it is.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// Memory that is given back to the system when it is dropped. While a ring is mapped, the kernel keeps its socket
/// alive, and the queue is not free for the next one.
pub(super) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: memory of the process belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Zeros of its own.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free place.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Self::new(start, len)
    }

    fn of_ring(socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free place.
        let start =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, socket, offset) }?;
        Self::new(start, len)
    }

    fn new(start: *mut c_void, len: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The place of a `T` in it, if it lies inside.
    fn place_of<T>(&self, offset: u64, count: usize) -> io::Result<NonNull<T>> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidData)?;
        let end = size_of::<T>().checked_mul(count).and_then(|len| len.checked_add(offset));
        if end.is_none_or(|end| end > self.len) || !offset.is_multiple_of(align_of::<T>()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: it was just found to lie inside.
        Ok(unsafe { self.start.byte_add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nothing refers to it any more: what does, lives in the same structure
        // as the mapping.
        let result = unsafe { munmap(self.start.as_ptr(), self.len) };
        debug_assert!(result.is_ok());
    }
}

/// What stands in a ring: plain numbers, so that any bits are a valid value.
pub(super) trait Entry: Copy {}
impl Entry for XdpDesc {}
impl Entry for u64 {}

/// A ring as it lies in memory.
struct Ring<T> {
    /// Keeps what the pointers below lead to.
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    /// Kernels before 5.4 have none.
    flags: Option<NonNull<AtomicU32>>,
    entries: NonNull<T>,
    /// One less than the number of entries, a power of two.
    mask: u32,
    _owns: PhantomData<T>,
}

// SAFETY: the pointers lead into the mapping, which the same structure owns.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    fn map(socket: BorrowedFd<'_>, page: u64, offsets: &XdpRingOffset, len: u32) -> io::Result<Self> {
        let entries_len = len as usize * size_of::<T>();
        let start = usize::try_from(offsets.desc).map_err(|_| io::ErrorKind::InvalidData)?;
        let mapping = Mapping::of_ring(socket, page, start + entries_len)?;
        let flags = offsets.flags.map(|offset| mapping.place_of(offset, 1)).transpose()?;
        Ok(Self {
            producer: mapping.place_of(offsets.producer, 1)?,
            consumer: mapping.place_of(offsets.consumer, 1)?,
            flags,
            entries: mapping.place_of(offsets.desc, len as usize)?,
            mask: len - 1,
            _mapping: mapping,
            _owns: PhantomData,
        })
    }

    const fn producer(&self) -> &AtomicU32 {
        // SAFETY: it leads into the mapping and is aligned; both sides access it atomically only.
        unsafe { self.producer.as_ref() }
    }

    const fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    const fn entry(&self, position: u32) -> NonNull<T> {
        // SAFETY: the mask keeps it within the entries.
        unsafe { self.entries.add((position & self.mask) as usize) }
    }

    const fn len(&self) -> u32 {
        self.mask + 1
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: it leads into the mapping and is aligned; both sides access it atomically only.
        let flags = self.flags.map(|flags| unsafe { flags.as_ref() }.load(Ordering::Relaxed));
        flags.is_none_or(|flags| flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0)
    }
}

/// A ring that we write.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Up to where entries are written; the kernel sees them after the next publication.
    written: u32,
    /// Up to where the kernel had read when we last looked.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        len: u32,
    ) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, page, offsets, len)?, written: 0, consumed: 0 })
    }

    /// For how many entries there is room. Where that is less than wanted, it is as many as the kernel has read so far.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.known_room() < wanted {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
        }
        self.known_room()
    }

    const fn known_room(&self) -> u32 {
        self.ring.len().saturating_sub(self.written.wrapping_sub(self.consumed))
    }

    /// Writes an entry. Whether there was room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the kernel has read this entry and does not look at it again before it is submitted.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Shows the kernel everything that was written.
    pub(super) fn submit(&self) {
        self.ring.producer().store(self.written, Ordering::Release);
    }

    /// How many entries the kernel has not read yet.
    pub(super) fn unread(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.written.wrapping_sub(self.consumed)
    }

    /// Whether the kernel needs a system call to continue.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that the kernel writes.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Up to where we have read and given back.
    read: u32,
}

impl<T: Entry> Consumer<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        len: u32,
    ) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, page, offsets, len)?, read: 0 })
    }

    /// How many entries there are.
    pub(super) fn available(&self) -> u32 {
        let produced = self.ring.producer().load(Ordering::Acquire);
        produced.wrapping_sub(self.read).min(self.ring.len())
    }

    /// One of the entries that there are, counted from the oldest. One that is not there yet is nonsense.
    pub(super) fn peek(&self, index: u32) -> T {
        // SAFETY: it lies within the ring, and any bits are a valid entry. The kernel writes those that were given
        // back only, and makes others visible before it says that they are there.
        unsafe { self.ring.entry(self.read.wrapping_add(index)).read() }
    }

    /// Gives entries back, the oldest first.
    pub(super) fn release(&mut self, count: u32) {
        self.read = self.read.wrapping_add(count);
        self.ring.consumer().store(self.read, Ordering::Release);
    }
}
