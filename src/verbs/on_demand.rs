//! Memory whose pages may come and go: on-demand paging.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use roce_transport::{Memory, OutOfBounds};
use rustix::io::Errno;

use super::foreign::populate;

/// Bytes at any address of this process, not all of which need to be mapped: on-demand paging,
/// `IBV_ACCESS_ON_DEMAND`. With [`whole`](Self::whole) it is the whole address space.
///
/// Each access is a system call that copies and checks every page. If a page is not mapped or lacks the
/// right, the access fails and the process does not fault: a work request gets a protection error, and a peer
/// a remote access error. A write that fails may have changed the pages before the one that failed. If all
/// pages stay mapped, [`ForeignMemory`](super::ForeignMemory) is faster.
#[derive(Debug)]
pub struct OnDemandMemory {
    start: usize,
    len: usize,
}

impl OnDemandMemory {
    /// Takes `len` bytes from `start` on, mapped or not.
    ///
    /// # Safety
    ///
    /// No Rust reference to the bytes may exist while a peer or a work request may access them. Until the
    /// last region that is registered with this memory is gone, no page may be unmapped during an atomic
    /// operation on it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range wraps around.
    pub unsafe fn new(start: *mut u8, len: usize) -> io::Result<Self> {
        let start = start as usize;
        if start.checked_add(len).is_none() {
            return Err(Errno::INVAL.into());
        }
        Ok(Self { start, len })
    }

    /// Takes all addresses of the process but the last; an offset is an address. Register it at address 0.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), for every byte that a peer or a work request names.
    #[must_use]
    pub const unsafe fn whole() -> Self {
        Self { start: 0, len: usize::MAX }
    }

    fn at(&self, offset: usize, len: usize) -> Result<usize, OutOfBounds> {
        OutOfBounds::check(offset, len, self.len)?;
        Ok(self.start + offset)
    }

    /// Returns the aligned word at an offset, after populating its page.
    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let at = std::ptr::with_exposed_provenance_mut::<u64>(self.at(offset, 8)?);
        if !at.is_aligned() {
            return Err(OutOfBounds);
        }
        // A kernel before 5.14 cannot populate a page for writing; this at least checks that it can be read.
        self.read(offset, &mut [0; 8])?;
        // SAFETY: ordinary memory, by the promise to `new`.
        unsafe { populate(at.cast(), 8, true) }.map_err(|_| OutOfBounds)?;
        // SAFETY: mapped and writable, and stays so by the promise to `new`; aligned, and accessed as if by
        // atomics alone.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }
}

/// A function of the kernel that copies between two ranges of this process and checks the pages of `there`.
type Copy = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Copies all bytes, or fails.
///
/// # Safety
///
/// `here` is valid for the direction of `copy`.
unsafe fn transfer(copy: Copy, here: *mut u8, there: usize, len: usize) -> Result<(), OutOfBounds> {
    let mut done = 0;
    while done < len {
        // SAFETY: inside the caller's range.
        let base = unsafe { here.add(done) }.cast::<c_void>();
        let local = libc::iovec { iov_base: base, iov_len: len - done };
        let remote = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(there + done),
            iov_len: len - done,
        };
        // SAFETY: one range on each side; the kernel checks both.
        let copied = unsafe { copy(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(copied) {
            Ok(copied) if copied > 0 => done += copied,
            _ => return Err(OutOfBounds),
        }
    }
    Ok(())
}

impl Memory for OnDemandMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, out.len())?;
        // SAFETY: `out` is exclusively ours.
        unsafe { transfer(libc::process_vm_readv, out.as_mut_ptr(), source, out.len()) }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.at(offset, data.len())?;
        // SAFETY: `data` is only read.
        unsafe { transfer(libc::process_vm_writev, data.as_ptr().cast_mut(), target, data.len()) }
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds> {
        let seen = self.word(offset)?.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Ok(seen.unwrap_or_else(|seen| seen))
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }

    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

    use super::*;

    /// Returns the address of two unmapped pages.
    fn pages() -> (*mut u8, usize) {
        let page = rustix::param::page_size();
        let apart = std::ptr::without_provenance_mut(roce_testing::address_that_stays_free());
        // SAFETY: a new mapping, which is removed at once and which nothing else uses.
        unsafe {
            let start = mmap_anonymous(apart, 2 * page, ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
            munmap(start, 2 * page).unwrap();
            (start.cast(), page)
        }
    }

    /// Maps the first page again at its address.
    fn map(start: *mut u8, page: usize) {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: nothing is mapped there, which the flag ensures.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            mmap(start.cast(), page, protection, flags, &zero, 0).unwrap();
        }
    }

    #[test]
    fn pages_that_come_later_are_found_and_others_refused() {
        let (start, page) = pages();
        // SAFETY: used by this test alone.
        let memory = unsafe { OnDemandMemory::new(start, 2 * page).unwrap() };
        let mut out = [1; 8];
        assert_eq!(memory.read(0, &mut out), Err(OutOfBounds));
        assert_eq!(memory.write(0, &out), Err(OutOfBounds));
        assert_eq!(memory.fetch_add(0, 1), Err(OutOfBounds));
        map(start, page);
        memory.write(8, &[7; 8]).unwrap();
        memory.read(8, &mut out).unwrap();
        assert_eq!(out, [7; 8]);
        assert_eq!(memory.fetch_add(8, 1), Ok(u64::from_ne_bytes([7; 8])));
        assert_eq!(memory.compare_swap(16, 0, 5), Ok(0));
        memory.store(24, [9; 8]).unwrap();
        memory.read(24, &mut out).unwrap();
        assert_eq!(out, [9; 8]);
        // A range beyond the mapped page, one beyond the memory, and an unaligned one.
        assert_eq!(memory.read(page - 4, &mut out), Err(OutOfBounds));
        assert_eq!(memory.write(2 * page - 4, &out), Err(OutOfBounds));
        assert_eq!(memory.fetch_add(4, 1), Err(OutOfBounds));
        // SAFETY: the mapping of this test.
        unsafe {
            mprotect(start.cast(), page, MprotectFlags::READ).unwrap();
            assert_eq!(memory.write(8, &out), Err(OutOfBounds));
            assert_eq!(memory.fetch_add(8, 1), Err(OutOfBounds));
            memory.read(8, &mut out).unwrap();
            munmap(start.cast(), page).unwrap();
        }
        assert_eq!(memory.read(8, &mut out), Err(OutOfBounds));
    }

    #[test]
    fn the_whole_address_space_is_one_memory() {
        let word = Box::into_raw(Box::new(0x0102_u64));
        let address = word.expose_provenance();
        // SAFETY: only the box is accessed, through raw pointers.
        let memory = unsafe { OnDemandMemory::whole() };
        let mut out = [0; 8];
        memory.read(address, &mut out).unwrap();
        assert_eq!(u64::from_ne_bytes(out), 0x0102);
        assert_eq!(memory.fetch_add(address, 1), Ok(0x0102));
        for hostile in [0, 8, usize::MAX - 8, usize::MAX - 3, usize::MAX] {
            assert_eq!(memory.read(hostile, &mut out), Err(OutOfBounds), "{hostile:#x}");
            assert_eq!(memory.write(hostile, &out), Err(OutOfBounds), "{hostile:#x}");
            assert_eq!(memory.fetch_add(hostile, 1), Err(OutOfBounds), "{hostile:#x}");
        }
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(word) });
    }
}
