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
    /// The interface.
    pub interface: String,
    /// Source address of every frame.
    pub mac: MacAddr,
    /// The largest IP packet, in bytes: the MTU of the interface.
    pub link_mtu: usize,
    /// The most datagrams that one frame can carry, for the kernel to split; 1 without segmentation offload.
    pub max_segments: u16,
    /// The rate of the link in bits per second, if it has one. Pause times are counted in its bit times.
    pub bits_per_second: Option<u64>,
}

/// A frame that was written into the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where in the slot it lies, from the destination address to the last datagram's ICRC, without frame check
    /// sequence. Does not begin at 0: the datagram is written first, always at the same place, and the headers
    /// then go right in front of it, which may be IPv4 or IPv6 and with or without a tag.
    pub bytes: Range<usize>,
    /// Several datagrams, for the kernel to split. Never given to a port whose
    /// [`max_segments`](PortRecord::max_segments) is 1.
    pub split: Option<Split>,
}

/// How the kernel splits one frame into several (UDP segmentation offload). The UDP checksum field holds the
/// sum of the pseudo header, as checksum offload wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Bytes of each datagram but the last.
    pub segment_len: u16,
    /// Where the UDP header begins, from the start of the frame.
    pub udp_offset: u16,
    /// Where the first datagram begins, from the start of the frame.
    pub headers_len: u16,
    /// Whether layer 3 is IPv4.
    pub is_ipv4: bool,
}

/// A frame as it was received.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The first bytes; all headers lie here.
    pub head: &'a [u8],
    /// The rest; empty for most ports.
    pub tail: &'a [u8],
    /// If it stands for several frames: bytes of UDP payload in each but the last.
    pub segment_len: Option<u16>,
    /// A tag that was taken out of the frame on the way.
    pub vlan: Option<VlanTag>,
}

/// Moves frames. Never blocks, but in [`flush`](Self::flush) as long as a system call takes.
///
/// Transmit: [`slot`](Self::slot), write, [`commit`](Self::commit), repeat, [`flush`](Self::flush). As long as a
/// slot is not committed, the next call lends the same one again, with what was written into it.
///
/// The page of [the module](super) has a port in memory as a program.
pub trait FramePort: Send {
    /// The properties of this port.
    fn record(&self) -> &PortRecord;

    /// Lends the buffer of one frame: [`FRAME_ROOM`] bytes, or [`SUPERFRAME_ROOM`] where
    /// [`max_segments`](PortRecord::max_segments) is above 1. `None` when the port is full until
    /// [`flush`](Self::flush) makes progress.
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// Takes what was written into the slot lent last.
    fn commit(&mut self, frame: Outgoing);

    /// Hands all committed frames to the wire. Those that the kernel does not take now stay and are tried again at the
    /// next call.
    ///
    /// # Errors
    ///
    /// Only errors that do not pass by themselves.
    fn flush(&mut self, now: Instant) -> io::Result<()>;

    /// Receives one burst and returns how many frames there were. Frames that the port itself sent do not
    /// come back.
    ///
    /// # Errors
    ///
    /// Only errors that do not pass by themselves.
    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize>;

    /// When [`flush`](Self::flush) must be called again although nothing new was committed.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether nothing that was committed waits for another [`flush`](Self::flush). Ports with a [`deadline`](Self::deadline)
    /// for other reasons say so themselves.
    fn is_drained(&mut self) -> bool {
        self.deadline().is_none()
    }

    /// A descriptor that becomes readable when something can be received; the same as long as the port lives.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Name and value of each counter of this port. Names begin with the kind.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

/// Where in a slot the first datagram begins: behind the longest headers, tagged IPv6 and UDP.
pub const HEADROOM: usize = FrameHeaders::MAX_LEN;
/// Bytes of a slot for one datagram.
pub const FRAME_ROOM: usize = HEADROOM + MAX_DATAGRAM;
/// Bytes of a slot for as many datagrams as one UDP header can count, and one more behind them that turns
/// out not to belong to them.
pub const SUPERFRAME_ROOM: usize = HEADROOM + LONGEST_SUPERPACKET + MAX_DATAGRAM;
/// The longest UDP payload on IPv4.
pub const LONGEST_SUPERPACKET: usize = 65_507;
