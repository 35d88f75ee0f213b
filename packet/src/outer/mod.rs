//! All headers before a RoCE datagram in a captured packet: links, tags, tunnels, IP options.
//!
//! [`Frame::parse`](crate::Frame::parse) is for receivers: it accepts the frames that a RoCE NIC accepts.
//! [`Outer::decode`] is for tools that examine captured packets. It also finds RoCE
//!
//! - in the records of ERF files,
//! - after any number of VLAN tags (802.1Q, 802.1ad) and MPLS labels,
//! - in GRE, NVGRE and ERSPAN I, II and III, in VXLAN, VXLAN-GPE and Geneve, and in GRE and MPLS over UDP,
//! - in IPv4 and IPv6, each in the other or in itself,
//! - after IPv4 options, IPv6 extension headers and the IP authentication header,
//!
//! nested up to [`MAX_LAYERS`] headers, and the same datagrams in native InfiniBand, after a local route
//! header and an optional GRH. A packet whose end is missing is [cut](Cut), which is not an error:
//! only contradictions in the bytes that are present are errors.
//!
//! ```
//! use hex_literal::hex;
//! use roce_packet::fields;
//! use roce_packet::outer::{Link, Outer};
//!
//! // A congestion notification in IPv4 in IPv4.
//! let packet = hex!(
//!     "45000050000040004004b7680a0000010a0000ff"
//!     "45c2003c718c4000401191610a0011010a001201"
//!     "000012b700280000"
//!     "8100ffff4000011800000000"
//!     "00000000000000000000000000000000"
//!     "82fd002a"
//! );
//! let outer = Outer::decode(&packet, Link::Ip, packet.len(), 4791);
//! assert_eq!(outer.tunnel_layers().len(), 1);
//! assert!(core::ptr::eq(outer.tunnel_layers()[0].header, &fields::IPV4));
//! assert!(outer.check_icrc().is_some_and(|icrc| icrc.check.is_good()));
//! ```

use crate::error::ParseError;
use crate::ethernet::{EtherType, EthernetView, VlanTag};
use crate::fields::Header;
use crate::frame::NetworkView;
use crate::lrh::LrhView;
use crate::udp::UdpView;

mod native;
mod roce;
pub(crate) mod tables;
mod walk;

pub use roce::{Guess, IcrcForm, OuterIcrc};

/// Largest number of headers before a datagram. No network nests this deep. A packet with more headers was
/// crafted to keep its reader busy.
pub const MAX_LAYERS: usize = 32;

/// The protocol at the start of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header, or the GRH of RoCE v1.
    Ip,
    /// Four bytes with an address family, then IP, as in loopback captures of BSD.
    AddressFamily,
    /// The 16-byte header of Linux cooked captures, version 1.
    LinuxSll,
    /// The 20-byte header of Linux cooked captures, version 2.
    LinuxSll2,
    /// The LRH of native InfiniBand.
    InfiniBand,
    /// The header of an ERF record, with an Ethernet frame or native InfiniBand behind it.
    Erf,
}

/// A header of a packet.
#[derive(Clone, Copy, Debug)]
pub struct OuterLayer {
    /// Name and fields of the header.
    pub header: &'static Header,
    /// Offset of the header from the start of the packet, in bytes.
    pub offset: usize,
    /// Length of the header with its options, in bytes.
    pub len: usize,
}

impl OuterLayer {
    /// Returns whether this is the header that `header` describes.
    #[must_use]
    pub fn is(&self, header: &Header) -> bool {
        core::ptr::eq(self.header, header)
    }
}

/// Reason for a missing end of a packet. The packet itself need not be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The capture kept only the first bytes (its snap length).
    Capture,
    /// The packet on the captured wire was shorter than its IP header says: a mirror (ERSPAN, a SPAN port or
    /// a sampling agent) had cut it.
    Mirror,
    /// This is the first fragment; the other fragments contain the rest.
    Fragment,
}

impl Cut {
    /// Returns the reason in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Capture => "cut by the capture",
            Self::Mirror => "cut by a mirror",
            Self::Fragment => "the first fragment",
        }
    }
}

/// Reason why a packet is not recognized as RoCE.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Foreign {
    /// The EtherType is that of another protocol.
    EtherType(EtherType),
    /// The IP protocol cannot carry RoCE.
    Protocol(u8),
    /// The UDP destination port is another one.
    Port {
        /// The port of the sender.
        source: u16,
        /// The port of the receiver.
        destination: u16,
    },
    /// A fragment other than the first, which has no ports.
    Fragment,
    /// The tunnel header has an unknown version, or carries an unknown protocol.
    Tunnel(&'static Header),
    /// The packet has more than [`MAX_LAYERS`] headers.
    TooDeep,
    /// The packet ends before its protocol is known.
    Short,
}

/// The headers of a packet up to its innermost BTH. Views and offsets belong to the innermost packet.
#[derive(Clone, Copy, Debug)]
pub struct Outer<'a> {
    bytes: &'a [u8],
    layers: [OuterLayer; MAX_LAYERS],
    count: usize,
    tunnel: usize,
    /// Whether headers of the innermost packet contradict each other in more than the IPv4 header checksum.
    is_contradictory: bool,
    /// Offset at which the link header ends.
    pub link_end: usize,
    /// Protocol after the link header. For Ethernet, the protocol is the Ethernet header itself.
    pub link_type: EtherType,
    /// The Ethernet header.
    pub ethernet: Option<&'a EthernetView>,
    /// The local route header of native InfiniBand, which has no Ethernet header.
    pub lrh: Option<&'a LrhView>,
    /// The last VLAN tag.
    pub vlan: Option<VlanTag>,
    /// Layer 3. Native InfiniBand within a subnet has none.
    pub network: Option<NetworkView<'a>>,
    /// Offset of layer 3, or of an LRH without layer 3.
    pub network_offset: usize,
    /// Length of IPv4 options, extension headers and authentication headers after the IP header, in bytes.
    pub extensions_len: usize,
    /// The UDP header.
    pub udp: Option<&'a UdpView>,
    /// Offset of the UDP header.
    pub udp_offset: usize,
    /// BTH to ICRC, as far as present; `None` if the packet is not RoCE.
    pub transport: Option<&'a [u8]>,
    /// Offset of the BTH.
    pub transport_offset: usize,
    /// Length from BTH to ICRC according to the headers, in bytes.
    pub transport_len: usize,
    /// The bytes after the ICRC.
    pub trailer: &'a [u8],
    /// Reason for a missing end of the packet.
    pub cut: Option<Cut>,
    /// The first contradiction in the headers of the innermost packet.
    pub error: Option<ParseError>,
    /// Reason why the packet is not RoCE.
    pub foreign: Option<Foreign>,
}

impl<'a> Outer<'a> {
    /// Returns the bytes of the packet.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns all headers before the BTH, in wire order. Link headers other than Ethernet are not included.
    #[must_use]
    pub fn layers(&self) -> &[OuterLayer] {
        self.layers.get(..self.count).unwrap_or_default()
    }

    /// Returns the headers that carry the innermost packet through a network, which the ICRC does not cover.
    /// Empty without a tunnel.
    #[must_use]
    pub fn tunnel_layers(&self) -> &[OuterLayer] {
        self.layers.get(..self.tunnel).unwrap_or_default()
    }

    /// Returns the headers of the innermost packet.
    #[must_use]
    pub fn inner_layers(&self) -> &[OuterLayer] {
        self.layers.get(self.tunnel..self.count).unwrap_or_default()
    }

    /// Returns the bytes of a layer.
    #[must_use]
    pub fn layer_bytes(&self, layer: &OuterLayer) -> &'a [u8] {
        self.bytes.get(layer.offset..layer.offset.saturating_add(layer.len)).unwrap_or_default()
    }
}
