//! The port of a framed device: it moves Ethernet frames.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use roce_packet::{FrameHeaders, MacAddr, VlanTag};
use roce_transport::Instant;

pub use crate::MAX_DATAGRAM;

/// The properties of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRecord {
    /// The kind of device, as `--device` names it.
    pub kind: &'static str,
    /// The name of the interface.
    pub interface: String,
    /// The source address of every frame.
    pub mac: MacAddr,
    /// The largest IP packet, in bytes: the MTU of the interface.
    pub link_mtu: usize,
    /// The maximum number of datagrams in one frame that the kernel splits; 1 without segmentation offload.
    pub max_segments: u16,
    /// The rate of the link in bits per second, if it has one. Pause times are multiples of its bit time.
    pub bits_per_second: Option<u64>,
}

/// A frame that was written into the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The frame's range in the slot, from the destination address to the last datagram's ICRC, without frame
    /// check sequence. Does not begin at 0: the datagram is written first, at a fixed position, and the
    /// headers are then placed directly before it. They may be IPv4 or IPv6, with or without a tag.
    pub bytes: Range<usize>,
    /// How the kernel splits the frame into several datagrams. `None` for a port whose
    /// [`max_segments`](PortRecord::max_segments) is 1.
    pub split: Option<Split>,
}

/// How the kernel splits one frame into several (UDP segmentation offload). The UDP checksum field holds the
/// sum of the pseudo header, as checksum offload requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Bytes of each datagram except the last.
    pub segment_len: u16,
    /// Offset of the UDP header in the frame.
    pub udp_offset: u16,
    /// Offset of the first datagram in the frame.
    pub headers_len: u16,
    /// Whether layer 3 is IPv4.
    pub is_ipv4: bool,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The first bytes, including all headers.
    pub head: &'a [u8],
    /// The remaining bytes; empty for most ports.
    pub tail: &'a [u8],
    /// If it was joined from several frames: bytes of UDP payload in each frame except the last.
    pub segment_len: Option<u16>,
    /// A tag that the interface removed from the frame.
    pub vlan: Option<VlanTag>,
}

/// Moves frames. Never blocks, except in [`flush`](Self::flush) for the duration of a system call.
///
/// To transmit, call [`slot`](Self::slot), write, [`commit`](Self::commit), repeat, and
/// [`flush`](Self::flush). Until a slot is committed, each call lends the same slot again, with its contents.
///
/// The documentation of [the module](super) has a program with a port in memory.
pub trait FramePort: Send {
    /// Returns the properties of this port.
    fn record(&self) -> &PortRecord;

    /// Lends the buffer of one frame: [`FRAME_ROOM`] bytes, or [`SUPERFRAME_ROOM`] if
    /// [`max_segments`](PortRecord::max_segments) is above 1. Returns `None` if the port is full until
    /// [`flush`](Self::flush) makes progress.
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// Takes the frame that was written into the most recently lent slot.
    fn commit(&mut self, frame: Outgoing);

    /// Hands all committed frames to the wire. Frames that the kernel does not accept yet stay, and the next
    /// call tries them again.
    ///
    /// # Errors
    ///
    /// Returns only errors that are not transient.
    fn flush(&mut self, now: Instant) -> io::Result<()>;

    /// Receives one burst and returns the number of frames. Does not receive frames that the port itself
    /// sent.
    ///
    /// # Errors
    ///
    /// Returns only errors that are not transient.
    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize>;

    /// Returns when [`flush`](Self::flush) must be called again even if nothing new was committed.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns whether no committed frame waits for another [`flush`](Self::flush). Ports with a
    /// [`deadline`](Self::deadline) for other reasons override this method.
    fn is_drained(&mut self) -> bool {
        self.deadline().is_none()
    }

    /// Returns a descriptor that becomes readable when frames can be received; it never changes.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Calls `visit` with name and value of each counter of this port. Names begin with the kind.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

/// Offset of the first datagram in a slot: behind the longest headers, tagged IPv6 and UDP.
pub const HEADROOM: usize = FrameHeaders::MAX_LEN;
/// Bytes of a slot for one datagram.
pub const FRAME_ROOM: usize = HEADROOM + MAX_DATAGRAM;
/// Bytes of a slot for the maximum payload of one UDP header, and one more datagram behind it that turns out
/// not to belong to the frame.
pub const SUPERFRAME_ROOM: usize = HEADROOM + LONGEST_SUPERPACKET + MAX_DATAGRAM;
/// Maximum UDP payload on IPv4.
pub const LONGEST_SUPERPACKET: usize = 65_507;
