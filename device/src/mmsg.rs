//! Bursts of messages: `sendmmsg` and `recvmmsg`, called without the C library's wrappers, and their memory.
//!
//! A wrapper is a cancellation point: once a process has a second thread, it enables cancellation before each
//! call and disables it afterwards, with two atomic exchanges. This project cancels no threads, and a device
//! that is polled continuously makes a million of these calls per second.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use socket2::SockAddr;

use crate::cmsg::ControlBuffer;

/// Buffers for the messages of one system call, and the headers that describe them to the kernel. Each
/// message has room for `NAME` bytes of sender address (0 if unused) and `CONTROL` bytes of control messages.
pub(crate) struct Inbox<const NAME: usize, const CONTROL: usize> {
    /// A stretch of `stride` bytes for each message.
    data: KernelMemory<u8>,
    stride: usize,
    /// The other memory that the kernel writes for each message.
    places: KernelMemory<Place<NAME, CONTROL>>,
    /// Point into `data` and `places`.
    headers: Vec<libc::mmsghdr>,
    /// Number of headers that the kernel has changed since they were prepared.
    used: usize,
    /// Number of messages to request. Requesting one more than are available costs 250 ns, so single messages
    /// are requested singly.
    ask: usize,
}

/// Address, control messages and I/O vector of one message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Place<const NAME: usize, const CONTROL: usize> {
    name: [u8; NAME],
    control: ControlBuffer<CONTROL>,
    slice: libc::iovec,
}

/// A message that was received.
pub(crate) struct Message<'a> {
    pub(crate) bytes: &'a [u8],
    /// The address of the sender in the kernel's format.
    #[cfg_attr(not(feature = "udp"), allow(dead_code, reason = "frames have their sender in them"))]
    pub(crate) name: &'a [u8],
    /// The control messages.
    pub(crate) control: &'a [u8],
    /// Whether the end is missing because the message is longer than a buffer.
    pub(crate) is_cut: bool,
}

// SAFETY: the pointers in `headers` and `places` lead to heap memory that the same structure owns, so the
// structure may move to another thread as a whole.
unsafe impl<const NAME: usize, const CONTROL: usize> Send for Inbox<NAME, CONTROL> {}

impl<const NAME: usize, const CONTROL: usize> Inbox<NAME, CONTROL> {
    /// Allocates buffers of `stride` bytes for `count` messages.
    pub(crate) fn new(count: usize, stride: usize) -> Self {
        let data = KernelMemory::new(vec![0_u8; count * stride]);
        let slice = libc::iovec { iov_base: data.start().as_ptr().cast(), iov_len: stride };
        let empty = Place { name: [0; NAME], control: ControlBuffer::EMPTY, slice };
        let places = KernelMemory::new(vec![empty; count]);
        let describe = |index: usize| {
            // SAFETY: all zeros are a valid header; some C libraries have padding fields in it.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut message.msg_hdr;
            // SAFETY: there are `count` places and `count` stretches of data; nothing refers to either yet.
            unsafe {
                let place = places.start().add(index).as_ptr();
                (*place).slice.iov_base = data.start().add(index * stride).as_ptr().cast();
                if NAME > 0 {
                    header.msg_name = (&raw mut (*place).name).cast();
                }
                header.msg_iov = &raw mut (*place).slice;
                header.msg_control = (&raw mut (*place).control).cast();
            }
            header.msg_iovlen = 1;
            message
        };
        let headers = (0..count).map(describe).collect();
        Self { data, stride, places, headers, used: count, ask: 1 }
    }

    /// Makes one system call and returns the number of messages received.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: the headers point to buffers in `self` with the given lengths, and nothing else refers to
        // these during the call, because `self` is borrowed exclusively.
        self.fill_with(|headers| unsafe { receive(socket, headers) })
    }

    fn fill_with(
        &mut self,
        receive: impl FnOnce(&mut [libc::mmsghdr]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        for header in self.headers.iter_mut().take(self.used) {
            header.msg_hdr.msg_namelen = NAME as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL as _;
            header.msg_hdr.msg_flags = 0;
        }
        self.used = 0;
        let asked = self.ask.min(self.headers.len());
        let filled = receive(&mut self.headers[..asked]);
        self.used = *filled.as_ref().unwrap_or(&0);
        let more = if self.used == self.ask { 4 * self.ask } else { self.used };
        self.ask = more.clamp(1, self.headers.len());
        filled
    }

    /// Returns the messages that the last call of [`fill`](Self::fill) received.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        self.headers.iter().take(self.used).enumerate().map(|(index, header)| {
            let len = self.stride.min(header.msg_len as usize);
            // SAFETY: there are as many places and stretches as headers, `len` is at most the length of a
            // stretch, and the kernel writes only during `fill`, which borrows `self` exclusively.
            let (bytes, place) = unsafe {
                let start = self.data.start().add(index * self.stride).as_ptr();
                (std::slice::from_raw_parts(start, len), self.places.start().add(index).as_ref())
            };
            // The type of the length differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let control_len = header.msg_hdr.msg_controllen as usize;
            let control = place.control.bytes().get(..control_len).unwrap_or_default();
            let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            Message { bytes, name: &place.name, control, is_cut }
        })
    }
}

/// Memory that the kernel writes to repeatedly through stored pointers.
///
/// One raw pointer owns the values, and all other pointers derive from it. Each use of a `Vec` or `Box` would
/// assert unique access, which invalidates older pointers in the aliasing models Stacked Borrows and Tree
/// Borrows. References into the memory live only between two system calls.
struct KernelMemory<T: Copy>(NonNull<[T]>);

impl<T: Copy> KernelMemory<T> {
    fn new(values: Vec<T>) -> Self {
        Self(Box::leak(values.into_boxed_slice()).into())
    }

    const fn start(&self) -> NonNull<T> {
        self.0.cast()
    }
}

impl<T: Copy> Drop for KernelMemory<T> {
    fn drop(&mut self) {
        // SAFETY: `new` took the pointer from this box, and nothing refers to it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Sends up to `RUN` messages without waiting and returns the number that the system accepted. `describe`
/// writes control messages into the buffer and returns the bytes of a message, its destination unless the
/// socket has one, and the length of the control messages.
pub(crate) fn send_run<'a, M: 'a, const RUN: usize, const CONTROL: usize>(
    socket: BorrowedFd<'_>,
    run: impl Iterator<Item = &'a M>,
    describe: impl Fn(&'a M, &mut ControlBuffer<CONTROL>) -> (&'a [u8], Option<&'a SockAddr>, usize),
) -> io::Result<usize> {
    // SAFETY: all zeros are valid for these plain C structures; some C libraries have padding fields in them.
    let mut headers: [libc::mmsghdr; RUN] = unsafe { mem::zeroed() };
    // SAFETY: all zeros are valid for `iovec`, a plain C structure.
    let mut slices: [libc::iovec; RUN] = unsafe { mem::zeroed() };
    let mut controls = [ControlBuffer::<CONTROL>::EMPTY; RUN];
    let mut count = 0;
    for (message, ((header, slice), control)) in
        run.zip(headers.iter_mut().zip(&mut slices).zip(&mut controls))
    {
        let (bytes, to, control_len) = describe(message, control);
        *slice = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let header = &mut header.msg_hdr;
        header.msg_iov = slice;
        header.msg_iovlen = 1;
        if let Some(to) = to {
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.len();
        }
        if control_len > 0 {
            header.msg_control = control.bytes_mut().as_mut_ptr().cast();
            header.msg_controllen = control_len as _;
        }
        count += 1;
    }
    let (headers, flags) = (&mut headers[..count], libc::MSG_DONTWAIT);
    // SAFETY: the headers point to addresses and bytes that `describe` lent for longer than this call, and to
    // slices and control messages on the stack, each with its length; the kernel only reads them.
    let sent = unsafe {
        match headers {
            // `sendmsg` is cheaper for a single message.
            [header] => {
                libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const header.msg_hdr, flags).min(1)
            }
            _ => libc::syscall(
                libc::SYS_sendmmsg,
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len(),
                flags,
            ),
        }
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives messages that have arrived, without waiting, and returns their number.
///
/// # Safety
///
/// The memory that the headers point to must be valid for writes of the given lengths until this function
/// returns, and nothing else may refer to it.
unsafe fn receive(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let (flags, no_timeout) = (libc::MSG_DONTWAIT, std::ptr::null_mut::<libc::timespec>());
    if let [header] = headers {
        // SAFETY: guaranteed by the caller.
        let len =
            unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header.msg_hdr, flags) };
        header.msg_len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
        return Ok(1);
    }
    // SAFETY: the slice has the given length; the caller guarantees the rest.
    let filled = unsafe {
        let (start, count) = (headers.as_mut_ptr(), headers.len());
        libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), start, count, flags, no_timeout)
    };
    usize::try_from(filled).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acts as the kernel: writes through the pointers of a header.
    fn deliver(header: &mut libc::mmsghdr, number: u8) {
        let hdr = &mut header.msg_hdr;
        // SAFETY: the kernel would get exactly these pointers and lengths.
        unsafe {
            let slice = *hdr.msg_iov;
            slice.iov_base.cast::<u8>().write_bytes(number, slice.iov_len);
            hdr.msg_name.cast::<u8>().write_bytes(number, hdr.msg_namelen as usize);
            hdr.msg_control.cast::<u8>().write_bytes(number, 8);
        }
        header.msg_len = 3 + u32::from(number);
        hdr.msg_controllen = 8;
        hdr.msg_flags = if number == 9 { libc::MSG_TRUNC } else { 0 };
    }

    /// Miri runs this test (`cargo miri test -p roce-device mmsg`): the kernel's pointers stay valid although
    /// written memory is read between calls, and although the structure moves.
    #[test]
    fn the_pointers_of_the_kernel_stay_valid_while_messages_are_read() {
        let mut inbox = Inbox::<16, 24>::new(4, 64);
        let mut asked = Vec::new();
        for round in 0..5_u8 {
            let filled = inbox.fill_with(|headers| {
                asked.push(headers.len());
                headers.iter_mut().for_each(|header| deliver(header, 5 + round));
                Ok(headers.len())
            });
            let messages: Vec<_> = inbox.messages().collect();
            assert_eq!(filled.unwrap(), messages.len());
            for message in &messages {
                assert_eq!(message.bytes, vec![5 + round; 8 + usize::from(round)]);
                assert_eq!((message.name, message.control), (&[5 + round; 16][..], &[5 + round; 8][..]));
                assert_eq!(message.is_cut, round == 4);
            }
            drop(messages);
            inbox = std::hint::black_box(inbox);
        }
        assert_eq!(asked, [1, 4, 4, 4, 4]);
        // After an error there are no messages, and the next call requests one.
        assert!(inbox.fill_with(|_| Err(io::ErrorKind::WouldBlock.into())).is_err());
        assert_eq!(inbox.messages().count(), 0);
        let _ = inbox.fill_with(|headers| {
            assert_eq!(headers.len(), 1);
            Ok(0)
        });
    }

    #[test]
    fn a_length_beyond_the_buffer_ends_with_the_buffer() {
        let mut inbox = Inbox::<0, 0>::new(1, 16);
        let filled = inbox.fill_with(|headers| {
            assert!(headers[0].msg_hdr.msg_name.is_null());
            headers[0].msg_len = u32::MAX;
            headers[0].msg_hdr.msg_controllen = usize::MAX as _;
            Ok(1)
        });
        assert_eq!(filled.unwrap(), 1);
        let message = inbox.messages().next().unwrap();
        assert_eq!((message.bytes.len(), message.name.len(), message.control.len()), (16, 0, 0));
    }
}
