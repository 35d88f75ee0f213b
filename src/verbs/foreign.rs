//! Memory that the application allocated itself.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use roce_transport::{Memory, OutOfBounds};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::guarded::{self, Fault};

/// Bytes at any address of this process, for callers that register memory which they allocated elsewhere:
/// `ibv_reg_mr`.
///
/// Every access is a copy, by atomics or as if by atomics. If the application accesses the bytes
/// concurrently, the copy yields a mix of old and new bytes, as with hardware. Atomic operations require an
/// address that is a multiple of 8.
///
/// The memory may lose pages or rights later, for example if a mapped file is truncated. Then an access fails
/// with a protection error of the work request, or with a remote access error for a peer. For this purpose,
/// the first use installs a handler of SIGSEGV and SIGBUS, which passes every other fault to the previous
/// handler. If a thread blocks these signals, such a fault terminates the process.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, _far) = ends()?;
/// # use std::sync::Arc;
/// let buffer = Box::leak(vec![0_u8; 4096].into_boxed_slice());
/// let (start, len) = (buffer.as_mut_ptr(), buffer.len());
/// // SAFETY: the buffer is never freed, and used through the pointer only.
/// let memory = unsafe { ForeignMemory::new(start, len, true)? };
/// let raw = near.context.raw();
/// let pd = raw.allocate_pd()?;
/// let region = raw.register(pd, start as u64, Arc::new(memory), Access::LOCAL_WRITE)?;
/// raw.deregister(region.lkey)?;
/// raw.deallocate_pd(pd)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ForeignMemory {
    start: *mut u8,
    len: usize,
}

// SAFETY: the pointer is used for copies only, which may run in any thread: the promise to `new`.
unsafe impl Send for ForeignMemory {}
// SAFETY: all copies are as if by atomics.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Takes `len` bytes from `start` on, and checks that they can be read and, if `writable`, written. If
    /// the kernel supports it (since Linux 5.14), this also populates all pages, so that no copy waits for a
    /// page fault.
    ///
    /// # Safety
    ///
    /// No Rust reference to the bytes may exist while a peer or a work request may access them. Until the
    /// last region that is registered with this memory is gone, nothing else may be mapped in the range. On
    /// processors other than x86-64 the range must also stay mapped with these rights.
    ///
    /// # Errors
    ///
    /// [`Errno::FAULT`] (`EFAULT`) if a page of the range is not mapped or lacks a right; `EINVAL` if the
    /// range wraps around.
    pub unsafe fn new(start: *mut u8, len: usize, writable: bool) -> io::Result<Self> {
        if (start as usize).checked_add(len).is_none() {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: the advice changes no content, and the caller gave the range away for this.
        unsafe { populate(start, len, writable)? };
        guarded::prepare();
        Ok(Self { start, len })
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        OutOfBounds::check(offset, len, self.len)?;
        // SAFETY: inside the range, or one past its end, which does not wrap around.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Returns the aligned word at an offset.
    fn word(&self, offset: usize) -> Result<*mut u64, OutOfBounds> {
        let at = self.at(offset, 8)?.cast::<u64>();
        if at.is_aligned() { Ok(at) } else { Err(OutOfBounds) }
    }
}

/// Reports a missing page as a range outside the memory.
fn outside(_: Fault) -> OutOfBounds {
    OutOfBounds
}

impl Memory for ForeignMemory {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, out.len())?;
        // SAFETY: a range of the application by the promise to `new`; `out` is exclusively ours, and no
        // reference into the range exists.
        unsafe { guarded::read(source, out) }.map_err(outside)?;
        std::sync::atomic::fence(Ordering::Acquire);
        Ok(())
    }

    #[inline]
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.at(offset, data.len())?;
        // SAFETY: a range of the application by the promise to `new`; `data` is only read.
        unsafe { guarded::write(data, target) }.map_err(outside)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds> {
        // SAFETY: aligned memory of the application by the promise to `new`, accessed as if by atomics alone.
        unsafe { guarded::compare_swap(self.word(offset)?, compare, swap) }.map_err(outside)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        // SAFETY: aligned memory of the application by the promise to `new`, accessed as if by atomics alone.
        unsafe { guarded::fetch_add(self.word(offset)?, add) }.map_err(outside)
    }

    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        // SAFETY: aligned memory of the application by the promise to `new`, accessed as if by atomics alone.
        unsafe { guarded::store(self.word(offset)?, u64::from_ne_bytes(bytes)) }.map_err(outside)
    }
}

/// Length of the pieces in which [`populate`] advises the kernel, that of a huge page. During one call, no
/// other thread can change the address space. With one call for 1 GiB, threads that allocate memory would
/// wait for a second.
const PIECE: usize = 2 << 20;

/// Populates every page of a range with the required rights.
///
/// # Safety
///
/// The range must not contain pages that may be touched only at certain times, such as pages of a device.
pub(super) unsafe fn populate(start: *mut u8, len: usize, writable: bool) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size();
    let first = start as usize / page * page;
    let Some(end) = (start as usize + len).checked_next_multiple_of(page) else {
        return Err(Errno::INVAL.into());
    };
    let first = start.wrapping_sub(start as usize - first);
    let length = end - first as usize;
    let ask = |advice| {
        (0..length).step_by(PIECE).try_for_each(|offset| {
            let piece = PIECE.min(length - offset);
            // SAFETY: the advice changes no content; a range that is not mapped is an error.
            unsafe { madvise(first.wrapping_add(offset).cast(), piece, advice) }
        })
    };
    match ask(Advice::LinuxPopulateRead) {
        // A kernel before 5.14 does not know the advice; then the first access detects a problem.
        Err(Errno::INVAL) if !can_populate() => return Ok(()),
        Err(Errno::INVAL | Errno::NOMEM | Errno::FAULT | Errno::HWPOISON) => return Err(Errno::FAULT.into()),
        Err(error) => return Err(error.into()),
        Ok(()) => {}
    }
    if writable {
        // The kernel knows the advice, so `EINVAL` means that the mapping cannot be written to.
        match ask(Advice::LinuxPopulateWrite) {
            Err(Errno::INVAL | Errno::NOMEM | Errno::FAULT) => return Err(Errno::FAULT.into()),
            Err(error) => return Err(error.into()),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Returns whether the kernel knows the advice: if so, it accepts it for the page of this static.
fn can_populate() -> bool {
    const UNKNOWN: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    static PLACE: u8 = 0;
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let page = rustix::param::page_size();
            let place = &raw const PLACE;
            let start = place.wrapping_sub(place as usize % page);
            // SAFETY: the advice changes no content.
            let can = unsafe { madvise(start.cast_mut().cast(), page, Advice::LinuxPopulateRead) }.is_ok();
            KNOWN.store(can.into(), Ordering::Relaxed);
            can
        }
        known => known == 1,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

    use super::*;

    /// Maps three pages: the second is read-only and the third is not mapped.
    fn pages() -> (*mut u8, usize) {
        let page = rustix::param::page_size();
        let apart = std::ptr::without_provenance_mut(roce_testing::address_that_stays_free());
        // SAFETY: a new mapping, which nothing else uses.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let start = mmap_anonymous(apart, 3 * page, protection, MapFlags::PRIVATE).unwrap();
            mprotect(start.add(page), page, MprotectFlags::READ).unwrap();
            munmap(start.add(2 * page), page).unwrap();
            start.cast::<u8>()
        };
        (start, page)
    }

    #[test]
    fn what_is_not_mapped_or_not_writable_is_a_fault() {
        let (start, page) = pages();
        let new = |offset: usize, len, writable| {
            // SAFETY: the mapping lives as long as the process.
            unsafe { ForeignMemory::new(start.wrapping_add(offset), len, writable) }
                .map_err(|error| error.raw_os_error().unwrap())
        };
        let fault = Errno::FAULT.raw_os_error();
        assert!(new(0, page, true).is_ok());
        assert!(new(1, 2 * page - 1, false).is_ok());
        assert_eq!(new(page - 1, 2, true).err(), Some(fault));
        assert_eq!(new(2 * page - 1, 2, false).err(), Some(fault));
        assert_eq!(new(2 * page, 1, false).err(), Some(fault));
        assert_eq!(new(0, usize::MAX, false).err(), Some(Errno::INVAL.raw_os_error()));
        assert!(new(0, 0, true).is_ok());
    }

    /// Regression: such pages were accepted, and the first access ended the process. The kernel reports them
    /// as invalid, like an unknown advice.
    #[test]
    fn pages_without_any_right_are_a_fault() {
        let (start, page) = pages();
        // SAFETY: the mapping of this test.
        unsafe { mprotect(start.cast(), page, MprotectFlags::empty()).unwrap() };
        for writable in [false, true] {
            // SAFETY: nothing is accessed.
            let refused = unsafe { ForeignMemory::new(start, 8, writable) }.unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::FAULT.raw_os_error()));
        }
    }

    /// Regression: a peer's request ended the process with SIGSEGV or SIGBUS.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn pages_that_are_lost_later_are_errors_of_the_access() {
        let (start, page) = pages();
        // SAFETY: the mapping of this test.
        let memory = unsafe { ForeignMemory::new(start, page, true).unwrap() };
        memory.write(0, &[7; 200]).unwrap();
        let mut out = [0; 200];
        // SAFETY: the mapping of this test.
        unsafe { mprotect(start.cast(), page, MprotectFlags::READ).unwrap() };
        assert_eq!(memory.read(0, &mut out), Ok(()));
        assert_eq!(out, [7; 200]);
        for _ in 0..2 {
            for len in [1, 8, 64, 200] {
                assert_eq!(memory.write(0, &out[..len]), Err(OutOfBounds), "{len}");
            }
            assert_eq!(memory.fetch_add(0, 1), Err(OutOfBounds));
            assert_eq!(memory.compare_swap(0, 0, 1), Err(OutOfBounds));
            assert_eq!(memory.store(0, [0; 8]), Err(OutOfBounds));
            // SAFETY: the mapping of this test.
            unsafe { mprotect(start.cast(), page, MprotectFlags::empty()).unwrap() };
        }
        assert_eq!(memory.read(0, &mut out), Err(OutOfBounds));
        // A truncated file causes SIGBUS.
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * page as u64).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of this test's file.
        let memory = unsafe {
            let start = mmap(std::ptr::null_mut(), 2 * page, protection, MapFlags::SHARED, &file, 0);
            ForeignMemory::new(start.unwrap().cast(), 2 * page, true).unwrap()
        };
        file.set_len(page as u64).unwrap();
        assert_eq!(memory.write(page - 100, &out), Err(OutOfBounds));
        assert_eq!(memory.write(page - 200, &out), Ok(()));
        assert_eq!(memory.read(page, &mut out), Err(OutOfBounds));
    }

    /// Regression: while 1 GiB was registered, the background thread waited for memory of its own. Another
    /// process that wanted to share the address then found that this one does not answer.
    #[test]
    fn other_threads_change_the_address_space_while_memory_is_registered() {
        let page = rustix::param::page_size();
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let is_present = |address: usize| {
            let mut entry = [0; size_of::<u64>()];
            pagemap.read_exact_at(&mut entry, (address / page * size_of::<u64>()) as u64).unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        let map = |len| {
            // SAFETY: a new mapping, which nothing else uses.
            unsafe {
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE).unwrap()
            }
        };
        let attempt = || {
            let len = 32 * PIECE;
            let mapping = map(len);
            // SAFETY: the mapping of this test. Huge pages would be there too soon.
            unsafe { madvise(mapping, len, Advice::LinuxNoHugepage).unwrap() };
            let start = mapping.expose_provenance();
            let is_partly_there = || is_present(start) && !is_present(start + len - page);
            let mut changed = false;
            std::thread::scope(|scope| {
                let registering = scope.spawn(move || {
                    // SAFETY: the mapping lives longer than this thread.
                    unsafe { ForeignMemory::new(std::ptr::with_exposed_provenance_mut(start), len, true) }
                });
                while !registering.is_finished() {
                    if is_partly_there() {
                        // SAFETY: a mapping that nothing uses.
                        unsafe { munmap(map(page), page).unwrap() };
                        changed |= is_partly_there();
                    }
                }
                registering.join().unwrap().unwrap();
            });
            // SAFETY: the mapping of this test, whose memory is gone.
            unsafe { munmap(mapping, len).unwrap() };
            changed
        };
        // The thread that looks may not run at the right moment.
        assert!((0..200).any(|_| attempt()), "no change while pages were populated");
    }

    #[test]
    fn bytes_at_any_address_are_read_and_written() {
        let (start, page) = pages();
        for shift in [0, 1, 7] {
            // SAFETY: the first page is writable, and only this test uses it.
            let memory = unsafe { ForeignMemory::new(start.wrapping_add(shift), page - 8, true).unwrap() };
            let data: Vec<u8> = (0..200).collect();
            memory.write(3, &data).unwrap();
            let mut back = vec![0; 200];
            memory.read(3, &mut back).unwrap();
            assert_eq!(back, data);
            assert_eq!(memory.write(page - 8, &[1]), Err(OutOfBounds));
            assert_eq!(memory.read(usize::MAX, &mut [0; 2]), Err(OutOfBounds));
            // The real address must be aligned, not the offset.
            let aligned = (8 - shift) % 8;
            memory.store(aligned, 5_u64.to_ne_bytes()).unwrap();
            assert_eq!(memory.fetch_add(aligned, 2), Ok(5));
            assert_eq!(memory.compare_swap(aligned, 7, 9), Ok(7));
            assert_eq!(memory.compare_swap(aligned, 7, 1), Ok(9));
            assert_eq!(memory.fetch_add(aligned + 1, 2), Err(OutOfBounds));
        }
    }
}
