//! Bursts of messages: `sendmmsg` and `recvmmsg`, called without the C library's wrappers, and the memory that they use.
//!
//! A wrapper is a cancellation point: as soon as a process has a second thread, it switches cancellation on before and off
//! after each call, with two atomic exchanges. No thread is cancelled here, and a device that is looked at all the time
//! makes a million of these calls a second.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use socket2::SockAddr;

use crate::cmsg::ControlBuffer;

/// Buffers for the messages of one system call, and the headers that describe them to the kernel. Senders have addresses
/// of `NAME` bytes, or 0 where they are not used; control messages have room for `CONTROL` bytes.
pub(crate) struct Inbox<const NAME: usize, const CONTROL: usize> {
    /// One stretch of `stride` bytes for each message.
    data: KernelMemory<u8>,
    stride: usize,
    /// What else the kernel writes for each message.
    places: KernelMemory<Place<NAME, CONTROL>>,
    /// They point into `data` and `places`.
    headers: Vec<libc::mmsghdr>,
    /// How many headers the kernel has changed since they were prepared.
    used: usize,
    /// How many messages to ask for. Asking for one more than there is costs a quarter microsecond, so that one that
    /// comes alone is asked for alone.
    ask: usize,
}

/// What belongs to one message besides its bytes.
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
    /// The address of the sender as the kernel writes it.
    #[cfg_attr(not(feature = "udp"), allow(dead_code, reason = "frames have their sender in them"))]
    pub(crate) name: &'a [u8],
    /// The control messages.
    pub(crate) control: &'a [u8],
    /// Its end is missing, because it is longer than a buffer.
    pub(crate) is_cut: bool,
}

// SAFETY: the pointers in `headers` and `places` lead to memory that the same structure owns, on the heap, so that it may
// move to another thread as a whole.
unsafe impl<const NAME: usize, const CONTROL: usize> Send for Inbox<NAME, CONTROL> {}

impl<const NAME: usize, const CONTROL: usize> Inbox<NAME, CONTROL> {
    /// Buffers of `stride` bytes for `count` messages.
    pub(crate) fn new(count: usize, stride: usize) -> Self {
        let data = KernelMemory::new(vec![0_u8; count * stride]);
        let slice = libc::iovec { iov_base: data.start().as_ptr().cast(), iov_len: stride };
        let empty = Place { name: [0; NAME], control: ControlBuffer::EMPTY, slice };
        let places = KernelMemory::new(vec![empty; count]);
        let describe = |index: usize| {
            // SAFETY: all zeros are a valid header; some C libraries have padding fields in it.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut message.msg_hdr;
            // SAFETY: there are `count` places and `count` stretches of data, and nothing refers to either yet.
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

    /// One system call; returns how many messages came.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: the headers point to buffers in `self` with the lengths given, and nothing else refers to these during
        // the call, because `self` is borrowed exclusively.
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

    /// The messages that the last call of [`fill`](Self::fill) received.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        self.headers.iter().take(self.used).enumerate().map(|(index, header)| {
            let len = self.stride.min(header.msg_len as usize);
            // SAFETY: there are as many places and stretches of data as headers, `len` is not above the length of a
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

/// Memory that the kernel writes to through pointers that it gets again and again.
///
/// The values are owned through one raw pointer, from which all others are made. A `Vec` or a `Box` in its place would
/// take the memory for its own at each use, which makes older pointers invalid (in the aliasing models Stacked Borrows
/// and Tree Borrows). A reference into it lives only between two calls of the kernel.
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
        // SAFETY: this is the box that `new` took the pointer of, and nothing refers to it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Sends up to `RUN` messages without waiting; returns how many the system took. `describe` gives the bytes of a message
/// and its destination, where the socket does not know it, and writes control messages into the buffer; it returns the
/// length of these as well.
pub(crate) fn send_run<'a, M: 'a, const RUN: usize, const CONTROL: usize>(
    socket: BorrowedFd<'_>,
    run: impl Iterator<Item = &'a M>,
    describe: impl Fn(&'a M, &mut ControlBuffer<CONTROL>) -> (&'a [u8], Option<&'a SockAddr>, usize),
) -> io::Result<usize> {
    // SAFETY: all zeros are valid for these plain C structures; some C libraries have padding fields in them.
    let mut headers: [libc::mmsghdr; RUN] = unsafe { mem::zeroed() };
    // SAFETY: as above.
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
    // SAFETY: the headers point to addresses and bytes that `describe` lent for longer than this call, and to slices and
    // control messages on the stack, each with its length; the kernel only reads them.
    let sent = unsafe {
        match headers {
            // The call for one message has less to do.
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

/// Takes in messages that have arrived, without waiting; returns how many.
///
/// # Safety
///
/// What the headers point to is valid for writes until this returns, with the lengths that they give, and nothing else
/// refers to it.
unsafe fn receive(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let (flags, no_timeout) = (libc::MSG_DONTWAIT, std::ptr::null_mut::<libc::timespec>());
    if let [header] = headers {
        // SAFETY: the caller guarantees it.
        let len =
            unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header.msg_hdr, flags) };
        header.msg_len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
        return Ok(1);
    }
    // SAFETY: the slice is as long as its length says; the caller guarantees the rest.
    let filled = unsafe {
        let (start, count) = (headers.as_mut_ptr(), headers.len());
        libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), start, count, flags, no_timeout)
    };
    usize::try_from(filled).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does what the kernel does: writes through the pointers of a header.
    fn deliver(header: &mut libc::mmsghdr, number: u8) {
        let hdr = &mut header.msg_hdr;
        // SAFETY: these are the pointers that the kernel would get, and the lengths are those that it would see.
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

    /// Miri runs this test (`cargo miri test -p roce-device mmsg`): the kernel's pointers stay valid although what it
    /// wrote is looked at between its calls, and although the structure moves.
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
        // After an error there are none, and one is asked for.
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
