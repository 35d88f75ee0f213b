//! Receiving: one system call fills many buffers, each with one frame or several that the kernel joined.

use std::io;
use std::os::fd::BorrowedFd;

use roce_packet::VlanTag;

use super::socket::has_lost_interface;
use crate::cmsg::{read_control, space};
use crate::counters::counters;
use crate::framed::port::Incoming;
use crate::mmsg::Inbox;
use crate::offload::Offload;

counters! {
    pub(super) struct Counters {
        /// Frames received.
        frames => "raw_rx_frames",
        /// Bytes of these frames.
        bytes => "raw_rx_bytes",
        /// Frames that the kernel joined from several.
        superframes => "raw_rx_superframes",
        /// System calls that received.
        calls => "raw_rx_calls",
        /// Frames dropped because they are longer than the buffers.
        too_long => "raw_rx_too_long",
        /// Frames dropped because the kernel joined them as something other than UDP.
        bad_kind => "raw_rx_bad_kind",
    }
}

/// Handles a frame with its offloads and removed tag; returns whether the frame was accepted.
pub(super) type Take<'a> = dyn FnMut(Offload, &[u8], Option<VlanTag>, &mut Counters) -> bool + 'a;

/// Extracts frames from messages of the kernel.
pub(super) struct Receiver {
    inbox: Inbox<0, CONTROL_LEN>,
    /// Whether the interface went down and nothing has arrived since.
    is_down: bool,
    pub(super) counters: Counters,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self { inbox: Inbox::new(COUNT, STRIDE), is_down: false, counters: Counters::default() }
    }

    /// Receives one burst.
    ///
    /// # Errors
    ///
    /// Fails if the socket itself is broken.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        sink: &mut dyn FnMut(&Incoming<'_>),
    ) -> io::Result<usize> {
        self.receive_all(socket, &mut |offload, head, vlan, counters| {
            let Ok(segment_len) = offload.segment_len() else {
                counters.bad_kind += 1;
                return false;
            };
            counters.superframes += u64::from(segment_len.is_some());
            sink(&Incoming { head, tail: &[], segment_len, vlan });
            true
        })
    }

    /// Receives one burst, with the offloads as the kernel wrote them.
    pub(super) fn receive_all(&mut self, socket: BorrowedFd<'_>, take: &mut Take<'_>) -> io::Result<usize> {
        self.counters.calls += 1;
        if let Err(error) = self.inbox.fill(socket) {
            return self.judge(socket, error).map(|()| 0);
        }
        self.is_down = false;
        let Self { inbox, counters, .. } = self;
        let mut count = 0;
        for message in inbox.messages() {
            if message.is_cut {
                counters.too_long += 1;
                continue;
            }
            let Some((header, head)) = message.bytes.split_first_chunk() else { continue };
            if take(Offload(*header), head, tag_in(message.control), counters) {
                counters.bytes += head.len() as u64;
                count += 1;
            }
        }
        counters.frames += count as u64;
        Ok(count)
    }

    /// Handles an error of receiving; fails if the socket can never receive again.
    fn judge(&mut self, socket: BorrowedFd<'_>, error: io::Error) -> io::Result<()> {
        match error.raw_os_error().unwrap_or(0) {
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT => return Err(error),
            // A superframe of a kind that the kernel cannot describe; it is lost.
            libc::EINVAL => self.counters.bad_kind += 1,
            libc::ENETDOWN => self.is_down = true,
            _ => {}
        }
        // It may come up again unless deleted. The kernel reports going down once, also before a deletion.
        if self.is_down && has_lost_interface(socket) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "its interface has been deleted"));
        }
        Ok(())
    }
}

/// Returns the tag that the kernel removed from a frame (`struct tpacket_auxdata`).
fn tag_in(control: &[u8]) -> Option<VlanTag> {
    let mut tag = None;
    read_control(control, |level, kind, value| {
        if (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
            && let Some((status, rest)) = value.split_first_chunk()
            && u32::from_ne_bytes(*status) & libc::TP_STATUS_VLAN_VALID != 0
            // Skip two lengths and two offsets.
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
