//! Receiving: one system call fills many buffers, each with one frame or several that the kernel keeps joined.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;

use roce_packet::VlanTag;

use super::header;
use super::socket::has_lost_interface;
use crate::cmsg::{ControlBuffer, read_control, space};
use crate::counters::counters;
use crate::framed::port::Incoming;
use crate::mmsg;

counters! {
    pub(super) struct Counters {
        /// Frames received.
        frames => "raw_rx_frames",
        /// Their bytes.
        bytes => "raw_rx_bytes",
        /// Frames that the kernel had joined from several.
        superframes => "raw_rx_superframes",
        /// System calls that received.
        calls => "raw_rx_calls",
        /// Frames dropped because they are longer than the buffers.
        too_long => "raw_rx_too_long",
        /// Frames dropped because the kernel joined them as something other than UDP.
        bad_kind => "raw_rx_bad_kind",
    }
}

/// Takes a frame with the header in front of it and the tag that was in it; returns whether it took the frame.
pub(super) type Take<'a> = dyn FnMut(&[u8; header::LEN], &[u8], Option<VlanTag>, &mut Counters) -> bool + 'a;

/// Buffers for one system call, and the headers that describe them to the kernel.
pub(super) struct Receiver {
    /// One stretch of `STRIDE` bytes for each frame. Never reallocated: the headers point into it.
    data: Vec<u8>,
    controls: Vec<ControlBuffer<CONTROL_LEN>>,
    /// Only the kernel reads them, through the headers.
    _slices: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// How many headers the kernel has changed since they were prepared.
    used: usize,
    /// How many frames to ask for: one that comes alone is asked for alone, which is cheaper.
    ask: usize,
    /// The interface went down, and nothing has arrived since.
    is_down: bool,
    pub(super) counters: Counters,
}

// SAFETY: the pointers in `headers` and `_slices` lead to memory that the same structure owns, on the heap,
// so that it may move to another thread as a whole.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new() -> Self {
        let mut data = vec![0_u8; COUNT * STRIDE];
        let mut controls = vec![ControlBuffer::EMPTY; COUNT];
        let mut slices: Vec<libc::iovec> = data
            .chunks_mut(STRIDE)
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: STRIDE })
            .collect();
        let describe = |(control, slice): (&mut ControlBuffer<CONTROL_LEN>, &mut libc::iovec)| {
            // SAFETY: all zeros are a valid header; some C libraries have padding fields in it.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            header.msg_hdr.msg_iov = slice;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.bytes_mut().as_mut_ptr().cast();
            header
        };
        let headers = controls.iter_mut().zip(&mut slices).map(describe).collect();
        let counters = Counters::default();
        Self { data, controls, _slices: slices, headers, used: COUNT, ask: 1, is_down: false, counters }
    }

    /// Receives one burst.
    ///
    /// # Errors
    ///
    /// The socket itself is broken.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        sink: &mut dyn FnMut(&Incoming<'_>),
    ) -> io::Result<usize> {
        self.receive_all(socket, &mut |header, head, vlan, counters| {
            let Ok(segment_len) = header::parse(header) else {
                counters.bad_kind += 1;
                return false;
            };
            counters.superframes += u64::from(segment_len.is_some());
            sink(&Incoming { head, tail: &[], segment_len, vlan });
            true
        })
    }

    /// The same with the headers as the kernel wrote them.
    pub(super) fn receive_all(&mut self, socket: BorrowedFd<'_>, take: &mut Take<'_>) -> io::Result<usize> {
        let filled = match self.fill(socket) {
            Ok(filled) => filled,
            Err(error) => return self.judge(socket, error).map(|()| 0),
        };
        self.is_down = false;
        let Self { data, controls, headers, counters, .. } = self;
        let mut count = 0;
        for ((buffer, message), control) in
            data.chunks(STRIDE).zip(headers.iter()).zip(controls.iter()).take(filled)
        {
            if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                counters.too_long += 1;
                continue;
            }
            let bytes = buffer.get(..message.msg_len as usize).unwrap_or(buffer);
            let Some((header, head)) = bytes.split_first_chunk() else { continue };
            // The type of the length differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let control_len = message.msg_hdr.msg_controllen as usize;
            let vlan = tag_in(control.bytes().get(..control_len).unwrap_or_default());
            if take(header, head, vlan, counters) {
                counters.bytes += head.len() as u64;
                count += 1;
            }
        }
        counters.frames += count as u64;
        Ok(count)
    }

    /// Nothing was received: an error if nothing ever will be.
    fn judge(&mut self, socket: BorrowedFd<'_>, error: io::Error) -> io::Result<()> {
        match error.raw_os_error().unwrap_or(0) {
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT => return Err(error),
            // A superframe of a kind that the kernel cannot describe; it is gone.
            libc::EINVAL => self.counters.bad_kind += 1,
            libc::ENETDOWN => self.is_down = true,
            _ => {}
        }
        // It may come up again, unless it was deleted. The kernel reports once that it went down, and before it is deleted.
        if self.is_down && has_lost_interface(socket) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "its interface has been deleted"));
        }
        Ok(())
    }

    /// One system call; returns how many frames came.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for header in self.headers.iter_mut().take(self.used) {
            header.msg_hdr.msg_controllen = CONTROL_LEN as _;
            header.msg_hdr.msg_flags = 0;
        }
        self.used = 0;
        self.counters.calls += 1;
        let asked = self.ask.min(self.headers.len());
        // SAFETY: the headers point to buffers in `self` with the lengths given, and nothing else refers to
        // these during the call.
        let filled = unsafe { mmsg::receive(socket, &mut self.headers[..asked]) };
        self.used = *filled.as_ref().unwrap_or(&0);
        let more = if self.used == self.ask { 4 * self.ask } else { self.used };
        self.ask = more.clamp(1, COUNT);
        filled
    }
}

/// The tag that the kernel took out of a frame (`struct tpacket_auxdata`).
fn tag_in(control: &[u8]) -> Option<VlanTag> {
    let mut tag = None;
    read_control(control, |level, kind, value| {
        if (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
            && let Some((status, rest)) = value.split_first_chunk()
            && u32::from_ne_bytes(*status) & libc::TP_STATUS_VLAN_VALID != 0
            // Past two lengths and two offsets.
            && let Some(bits) = rest.get(12..14)
        {
            tag = Some(VlanTag::from_bits(u16::from_ne_bytes([bits[0], bits[1]])));
        }
    });
    tag
}

/// Number and size of buffers: the longest IP packet, a tag and the header of the socket.
const COUNT: usize = 32;
const STRIDE: usize = 66 << 10;
/// `struct tpacket_auxdata`.
const CONTROL_LEN: usize = space(20);
