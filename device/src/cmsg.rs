//! Control messages, which accompany a datagram between this process and the kernel.

#[cfg(feature = "udp")]
use std::mem;
use std::ptr;

/// Room for control messages, aligned as the kernel requires.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct ControlBuffer<const LEN: usize>([u8; LEN]);

impl<const LEN: usize> ControlBuffer<LEN> {
    pub(crate) const EMPTY: Self = Self([0; LEN]);

    /// Returns the bytes for the pointer in a message header.
    pub(crate) const fn bytes_mut(&mut self) -> &mut [u8; LEN] {
        &mut self.0
    }

    pub(crate) const fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

/// Writes consecutive control messages.
#[cfg(feature = "udp")]
pub(crate) struct ControlWriter<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

#[cfg(feature = "udp")]
impl<'a> ControlWriter<'a> {
    pub(crate) const fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    /// Appends one message. The caller lays out the buffer with room for all messages that can occur
    /// together.
    pub(crate) fn push<const LEN: usize>(&mut self, level: i32, kind: i32, value: [u8; LEN]) {
        const { assert!(LEN <= size_of::<u64>()) };
        let (header_end, end) = (self.len + DATA_OFFSET, self.len + space(LEN));
        assert!(end <= self.bytes.len(), "the control buffer is laid out too small");
        // SAFETY: all zeros are a valid header; some C libraries have padding fields in it.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_len = (DATA_OFFSET + LEN) as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: `DATA_OFFSET` is at least the size of the header, so it ends before `end`, which lies in
        // the buffer; no alignment is required.
        unsafe { ptr::write_unaligned(self.bytes[self.len..].as_mut_ptr().cast(), header) };
        self.bytes[header_end..header_end + LEN].copy_from_slice(&value);
        self.len = end;
    }

    /// Returns the number of bytes written.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

/// Calls `visit` with level, type and value of each message that the kernel wrote.
pub(crate) fn read_control(mut bytes: &[u8], mut visit: impl FnMut(i32, i32, &[u8])) {
    while bytes.len() >= DATA_OFFSET {
        // SAFETY: there are at least as many bytes as a header has, it consists of integers only, and no
        // alignment is required.
        let header: libc::cmsghdr = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
        // The type of the length differs between C libraries.
        #[allow(clippy::unnecessary_cast)]
        let len = header.cmsg_len as usize;
        let Some(value) = bytes.get(DATA_OFFSET..len) else { return };
        visit(header.cmsg_level, header.cmsg_type, value);
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
    }
}

/// Reads the number in a message: one byte (the type of service) or an `int` (everything else).
#[cfg(feature = "udp")]
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    match value {
        [byte] => Some((*byte).into()),
        _ => value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
    }
}

/// Returns the number of bytes that a message with a value of `len` bytes occupies.
pub(crate) const fn space(len: usize) -> usize {
    DATA_OFFSET + aligned(len)
}

const fn aligned(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Offset of the value in a message.
const DATA_OFFSET: usize = aligned(size_of::<libc::cmsghdr>());

#[cfg(all(test, feature = "udp"))]
mod tests {
    use super::*;

    #[test]
    fn messages_are_laid_out_as_the_c_library_does() {
        for len in 1..=8 {
            // SAFETY: plain arithmetic.
            unsafe {
                assert_eq!(space(len), libc::CMSG_SPACE(len as u32) as usize);
                assert_eq!(DATA_OFFSET + len, libc::CMSG_LEN(len as u32) as usize);
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut buffer = ControlBuffer::<72>::EMPTY;
        let mut writer = ControlWriter::new(buffer.bytes_mut());
        writer.push(1, 2, 3_i32.to_ne_bytes());
        writer.push(4, 5, 6_u16.to_ne_bytes());
        writer.push(7, 8, [9]);
        let len = writer.len();
        let mut found = Vec::new();
        read_control(&buffer.bytes()[..len], |level, kind, value| found.push((level, kind, value.to_vec())));
        let expected =
            [(1, 2, 3_i32.to_ne_bytes().to_vec()), (4, 5, 6_u16.to_ne_bytes().to_vec()), (7, 8, vec![9])];
        assert_eq!(found, expected);
    }

    #[test]
    fn nonsense_ends_the_list() {
        let mut count = 0;
        for len in 0..64 {
            // A length of 0 or beyond the end must not be followed.
            read_control(&vec![0; len], |_, _, _| count += 1);
            read_control(&vec![0xff; len], |_, _, _| count += 1);
        }
        assert_eq!(count, 0);
        assert_eq!(number(&[7]), Some(7));
        assert_eq!(number(&[1, 2]), None);
    }
}
