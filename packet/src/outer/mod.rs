//! Every header in front of a RoCE datagram in a captured packet: links, tags, tunnels, IP options.
//!
//! [`Frame::parse`](crate::Frame::parse) is for receivers: it accepts what a RoCE NIC accepts. [`Outer::decode`] is
//! for tools that look at the packets of others. It also finds RoCE
//!
//! - behind any number of VLAN tags (802.1Q, 802.1ad) and MPLS labels,
//! - in GRE, NVGRE and ERSPAN I, II and III, in VXLAN, VXLAN-GPE and Geneve, and in GRE and MPLS over UDP,
//! - in IPv4 and IPv6, each in the other or in itself,
//! - behind IPv4 options, IPv6 extension headers and the IP authentication header,
//!
//! nested until there are [`MAX_LAYERS`] headers. A packet whose end is missing is [cut](Cut), which is not an
//! error: only contradictions in the bytes that are present are errors.
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
use crate::udp::UdpView;

mod roce;
pub(crate) mod tables;
mod walk;

pub use roce::{Guess, IcrcForm, OuterIcrc};

/// The most headers in front of a datagram. No network nests this deep; a packet with more was made to occupy its
/// reader.
pub const MAX_LAYERS: usize = 32;

/// What the bytes of a packet begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header, or the GRH of RoCE v1.
    Ip,
    /// Four bytes with an address family, then IP: loopback captures of BSD.
    AddressFamily,
    /// The 16 bytes of Linux cooked captures.
    LinuxSll,
    /// The 20 bytes of the second version of Linux cooked captures.
    LinuxSll2,
}

/// One header.
#[derive(Clone, Copy, Debug)]
pub struct OuterLayer {
    /// Its name and fields.
    pub header: &'static Header,
    /// Where it begins, in bytes from the start of the packet.
    pub offset: usize,
    /// Its bytes, options included.
    pub len: usize,
}

impl OuterLayer {
    /// Whether this is the header that `header` describes.
    #[must_use]
    pub fn is(&self, header: &Header) -> bool {
        core::ptr::eq(self.header, header)
    }
}

/// Where the end of a packet is, if it is not here. The packet itself need not be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The capture kept only the first bytes (its snap length).
    Capture,
    /// The packet was shorter on the captured wire than its IP header says: a mirror (ERSPAN, a SPAN port, a
    /// sampling agent) had cut it.
    Mirror,
    /// This is the first fragment; the others have the rest.
    Fragment,
}

impl Cut {
    /// The reason, for the end of "cut by".
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Capture => "cut by the capture",
            Self::Mirror => "cut by a mirror",
            Self::Fragment => "the first fragment",
        }
    }
}

/// Why a packet is not RoCE, or cannot be recognized as such.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Foreign {
    /// The EtherType is that of another protocol.
    EtherType(EtherType),
    /// The IP protocol is another one.
    Protocol(u8),
    /// UDP to another port.
    Port {
        /// The port of the sender.
        source: u16,
        /// The port of the receiver.
        destination: u16,
    },
    /// A fragment other than the first, which has no ports.
    Fragment,
    /// A tunnel whose header is of an unknown version, or which carries an unknown protocol.
    Tunnel(&'static Header),
    /// There are more than [`MAX_LAYERS`] headers.
    TooDeep,
    /// The packet ends before its protocol is known.
    Short,
}

/// The headers of a packet up to its innermost BTH. Views and offsets are those of the innermost packet.
#[derive(Clone, Copy, Debug)]
pub struct Outer<'a> {
    bytes: &'a [u8],
    layers: [OuterLayer; MAX_LAYERS],
    count: usize,
    tunnel: usize,
    /// Where the link header ends, and what follows it.
    pub link_end: usize,
    /// The protocol behind the link header. For Ethernet that is the Ethernet header itself.
    pub link_type: EtherType,
    /// The Ethernet header.
    pub ethernet: Option<&'a EthernetView>,
    /// The last VLAN tag.
    pub vlan: Option<VlanTag>,
    /// Layer 3.
    pub network: Option<NetworkView<'a>>,
    /// Where layer 3 begins.
    pub network_offset: usize,
    /// Bytes of IPv4 options, extension headers and authentication headers behind the IP header.
    pub extensions_len: usize,
    /// The UDP header.
    pub udp: Option<&'a UdpView>,
    /// Where the UDP header begins.
    pub udp_offset: usize,
    /// BTH to ICRC, as far as it is present; `None` if the packet is not RoCE.
    pub transport: Option<&'a [u8]>,
    /// Where the BTH begins.
    pub transport_offset: usize,
    /// Bytes from BTH to ICRC as the headers have it.
    pub transport_len: usize,
    /// The bytes behind the ICRC.
    pub trailer: &'a [u8],
    /// Where the end of the packet is, if it is not here.
    pub cut: Option<Cut>,
    /// The first contradiction in the headers of the innermost packet.
    pub error: Option<ParseError>,
    /// Why the packet is not RoCE.
    pub foreign: Option<Foreign>,
}

impl<'a> Outer<'a> {
    /// Decodes a packet that had `wire_len` bytes when it was captured, of which `bytes` are the first. `port` is
    /// the UDP port of RoCE v2.
    #[must_use]
    pub fn decode(bytes: &'a [u8], link: Link, wire_len: usize, port: u16) -> Self {
        walk::Walk::new(bytes, wire_len, port).run(link)
    }

    /// The whole packet.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All headers in front of the BTH, in the order of the wire. Link headers other than Ethernet are left out.
    #[must_use]
    pub fn layers(&self) -> &[OuterLayer] {
        self.layers.get(..self.count).unwrap_or_default()
    }

    /// The headers that carry the innermost packet through a network, which the ICRC does not cover. Empty if
    /// there is no tunnel.
    #[must_use]
    pub fn tunnel_layers(&self) -> &[OuterLayer] {
        self.layers.get(..self.tunnel).unwrap_or_default()
    }

    /// The headers of the innermost packet.
    #[must_use]
    pub fn inner_layers(&self) -> &[OuterLayer] {
        self.layers.get(self.tunnel..self.count).unwrap_or_default()
    }

    /// The bytes of a layer.
    #[must_use]
    pub fn layer_bytes(&self, layer: &OuterLayer) -> &'a [u8] {
        self.bytes.get(layer.offset..layer.offset.saturating_add(layer.len)).unwrap_or_default()
    }
}
