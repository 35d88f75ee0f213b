//! Pages of buffers that the library allocates.

use std::ffi::c_void;

use crate::answer::Errno;

/// Pages of the system that belong to a buffer and to the regions over it.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) first: *mut c_void,
    size: usize,
}

// SAFETY: the pages belong to this object until it is dropped; the application synchronizes access to their
// content.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `size` zero bytes.
    pub(crate) fn map(size: usize) -> Result<Self, Errno> {
        if size == 0 {
            return Err(Errno::INVALID);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the system chooses does not replace another one.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if first == libc::MAP_FAILED { Err(Errno::NO_MEMORY) } else { Ok(Self { first, size }) }
    }

    /// Returns whether the range lies inside the buffer.
    pub(crate) fn contains(&self, addr: *const c_void, length: usize) -> bool {
        let offset = addr.addr().checked_sub(self.first.addr());
        offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= self.size)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which no buffer and no region uses any more.
        unsafe { libc::munmap(self.first, self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_outside_of_a_buffer_is_recognised() {
        let pages = Pages::map(10_000).unwrap();
        assert_eq!(pages.first.addr() % 4096, 0);
        assert!(
            pages.contains(pages.first, 10_000) && pages.contains(pages.first.wrapping_byte_add(9_999), 1)
        );
        for (offset, length) in [(0, 10_001), (1, 10_000), (10_000, 1), (0, usize::MAX), (usize::MAX, 2)] {
            assert!(!pages.contains(pages.first.wrapping_byte_add(offset), length), "{offset} {length}");
        }
        assert_eq!(Pages::map(0).err(), Some(Errno::INVALID));
        assert_eq!(Pages::map(usize::MAX).err(), Some(Errno::NO_MEMORY));
    }
}
