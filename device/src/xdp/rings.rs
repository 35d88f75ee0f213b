//! The four rings shared with the kernel: received frames, frames to send, and the memory chunks passed in
//! each direction. In each ring, one side writes entries and the other reads them. Each side has a counter of
//! its progress, which only that side advances.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// Memory that is unmapped on drop. While a ring is mapped, the kernel keeps its socket alive and its queue
/// occupied.
pub(super) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: memory of a process is not bound to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps private memory, filled with zeros.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free range.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Self::new(start, len)
    }

    fn of_ring(socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free range.
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

    /// Returns a pointer to `count` values of type `T` at `offset`, if they lie inside the mapping.
    fn place_of<T>(&self, offset: u64, count: usize) -> io::Result<NonNull<T>> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidData)?;
        let end = size_of::<T>().checked_mul(count).and_then(|len| len.checked_add(offset));
        if end.is_none_or(|end| end > self.len) || !offset.is_multiple_of(align_of::<T>()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the range was just checked to lie inside.
        Ok(unsafe { self.start.byte_add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped, and nothing refers to it any more: all pointers to it are stored in
        // the structure that owns the mapping.
        let result = unsafe { munmap(self.start.as_ptr(), self.len) };
        debug_assert!(result.is_ok());
    }
}

/// An entry of a ring: plain integers, so all bit patterns are valid.
pub(super) trait Entry: Copy {}
impl Entry for XdpDesc {}
impl Entry for u64 {}

/// The memory of a ring.
struct Ring<T> {
    /// Keeps the targets of the pointers below.
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    /// `None` on kernels before 5.4.
    flags: Option<NonNull<AtomicU32>>,
    entries: NonNull<T>,
    /// The number of entries minus one; that number is a power of two.
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
        // SAFETY: the pointer leads into the mapping and is aligned; both sides access it only atomically.
        unsafe { self.producer.as_ref() }
    }

    const fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.consumer.as_ref() }
    }

    const fn entry(&self, position: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index within the entries.
        unsafe { self.entries.add((position & self.mask) as usize) }
    }

    const fn len(&self) -> u32 {
        self.mask + 1
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: the pointer leads into the mapping and is aligned; both sides access it only atomically.
        let flags = self.flags.map(|flags| unsafe { flags.as_ref() }.load(Ordering::Relaxed));
        flags.is_none_or(|flags| flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0)
    }
}

/// A ring that this process writes.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Position behind the last written entry; the kernel sees entries after `submit`.
    written: u32,
    /// The kernel's read position when it was last loaded.
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

    /// Returns the number of free entries. If that is less than `wanted`, the number is up to date.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.known_room() < wanted {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
        }
        self.known_room()
    }

    const fn known_room(&self) -> u32 {
        self.ring.len().saturating_sub(self.written.wrapping_sub(self.consumed))
    }

    /// Writes an entry; returns whether there was room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the kernel has read the old entry and does not access this one before it is submitted.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Shows all written entries to the kernel.
    pub(super) fn submit(&self) {
        self.ring.producer().store(self.written, Ordering::Release);
    }

    /// Returns the number of entries that the kernel has not read yet.
    pub(super) fn unread(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.written.wrapping_sub(self.consumed)
    }

    /// Returns whether the kernel needs a system call to continue.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that the kernel writes.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Position behind the last entry that was read and returned.
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

    /// Returns the number of available entries.
    pub(super) fn available(&self) -> u32 {
        let produced = self.ring.producer().load(Ordering::Acquire);
        produced.wrapping_sub(self.read).min(self.ring.len())
    }

    /// Returns an available entry, counted from the oldest. The contents of other entries are meaningless.
    pub(super) fn peek(&self, index: u32) -> T {
        // SAFETY: the entry lies within the ring, and any bits are valid. The kernel writes only returned
        // entries, and makes them visible before it advances the counter.
        unsafe { self.ring.entry(self.read.wrapping_add(index)).read() }
    }

    /// Returns entries to the kernel, the oldest first.
    pub(super) fn release(&mut self, count: u32) {
        self.read = self.read.wrapping_add(count);
        self.ring.consumer().store(self.read, Ordering::Release);
    }
}
