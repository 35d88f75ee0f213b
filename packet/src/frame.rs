//! Complete Ethernet frames: the headers outside the datagram, and the datagram inside.
//!
//! [`Frame`] is a frame in which all outer headers are consistent. [`Dissection`] also accepts broken frames:
//! it contains the readable parts and the first error.

use core::fmt;
use core::net::IpAddr;

use crate::datagram::Datagram;
use crate::envelope::Envelope;
use crate::error::{BufferTooSmall, Layer, ParseError};
use crate::ethernet::{EtherType, EthernetHeader, MacAddr, VlanHeader, VlanTag};
use crate::gid::Gid;
use crate::grh::Grh;
use crate::icrc;
use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::path::{Encapsulation, Path, ROCE_UDP_PORT};
use crate::telemetry::Telemetry;
use crate::udp::{IP_PROTOCOL_UDP, UdpHeader};

pub use dissect::{Dissection, NetworkView};

mod dissect;

/// The headers that carry the BTH: layer 3, and UDP for RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkHeader {
    /// RoCE v2 on IPv4.
    Ipv4 {
        /// The IPv4 header.
        ip: Ipv4Header,
        /// The UDP header after it.
        udp: UdpHeader,
    },
    /// RoCE v2 on IPv6.
    Ipv6 {
        /// The IPv6 header.
        ip: Ipv6Header,
        /// The UDP header after it.
        udp: UdpHeader,
    },
    /// RoCE v1.
    Grh(Grh),
}

impl NetworkHeader {
    /// Returns the length on the wire, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        match self {
            Self::Ipv4 { .. } => Ipv4Header::LEN + UdpHeader::LEN,
            Self::Ipv6 { .. } => Ipv6Header::LEN + UdpHeader::LEN,
            Self::Grh(_) => Grh::LEN,
        }
    }

    /// Returns the UDP header. RoCE v1 has none.
    #[must_use]
    pub const fn udp(&self) -> Option<&UdpHeader> {
        match self {
            Self::Ipv4 { udp, .. } | Self::Ipv6 { udp, .. } => Some(udp),
            Self::Grh(_) => None,
        }
    }

    const fn ether_type(&self) -> EtherType {
        match self {
            Self::Ipv4 { .. } => EtherType::IPV4,
            Self::Ipv6 { .. } => EtherType::IPV6,
            Self::Grh(_) => EtherType::ROCE_V1,
        }
    }
}

/// All headers before the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeaders {
    /// Ethernet address of the receiver.
    pub destination: MacAddr,
    /// Ethernet address of the sender.
    pub source: MacAddr,
    /// The 802.1Q tag, if the frame has one.
    pub vlan: Option<VlanTag>,
    /// Layers 3 and 4.
    pub network: NetworkHeader,
}

impl FrameHeaders {
    /// Length of the longest headers, in bytes: with a VLAN tag, IPv6 and UDP.
    pub const MAX_LEN: usize = EthernetHeader::LEN + VlanHeader::LEN + Ipv6Header::LEN + UdpHeader::LEN;

    /// Creates the headers for a datagram of `datagram_len` bytes, BTH to ICRC, on `path`. UDP has
    /// destination port 4791 and no checksum. IPv4 has DF and `identification`, which IPv6 and RoCE v1 do not
    /// use.
    pub fn new(
        path: &Path,
        identification: u16,
        destination: MacAddr,
        source: MacAddr,
        datagram_len: usize,
    ) -> Result<Self, FrameHeadersError> {
        let network = match (path.encapsulation, path.source, path.destination) {
            (Encapsulation::RoceV1, source, destination) => NetworkHeader::Grh(Grh {
                traffic_class: path.traffic_class,
                flow_label: path.flow_label,
                payload_length: length_field(datagram_len, 0)?,
                hop_limit: path.hop_limit,
                source: Gid::from_ip(source),
                destination: Gid::from_ip(destination),
            }),
            (Encapsulation::RoceV2, IpAddr::V4(source), IpAddr::V4(destination)) => NetworkHeader::Ipv4 {
                ip: Ipv4Header {
                    traffic_class: path.traffic_class,
                    total_length: length_field(datagram_len, Ipv4Header::LEN + UdpHeader::LEN)?,
                    identification,
                    dont_fragment: true,
                    ttl: path.hop_limit,
                    protocol: IP_PROTOCOL_UDP,
                    source,
                    destination,
                },
                udp: udp_header(path, datagram_len)?,
            },
            (Encapsulation::RoceV2, IpAddr::V6(source), IpAddr::V6(destination)) => NetworkHeader::Ipv6 {
                ip: Ipv6Header {
                    traffic_class: path.traffic_class,
                    flow_label: path.flow_label,
                    payload_length: length_field(datagram_len, UdpHeader::LEN)?,
                    next_header: IP_PROTOCOL_UDP,
                    hop_limit: path.hop_limit,
                    source,
                    destination,
                },
                udp: udp_header(path, datagram_len)?,
            },
            (Encapsulation::RoceV2, IpAddr::V4(_), IpAddr::V6(_))
            | (Encapsulation::RoceV2, IpAddr::V6(_), IpAddr::V4(_)) => {
                return Err(FrameHeadersError::MixedAddressFamilies);
            }
        };
        Ok(Self { destination, source, vlan: path.vlan, network })
    }

    /// Returns the length on the wire, in bytes. This is also the offset of the BTH.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.network_offset() + self.network.len_bytes()
    }

    /// Returns the offset of layer 3.
    #[must_use]
    pub const fn network_offset(&self) -> usize {
        if self.vlan.is_some() { EthernetHeader::LEN + VlanHeader::LEN } else { EthernetHeader::LEN }
    }

    /// Returns the offset of the UDP header. RoCE v1 has none.
    #[must_use]
    pub const fn udp_offset(&self) -> Option<usize> {
        match self.network {
            NetworkHeader::Ipv4 { .. } | NetworkHeader::Ipv6 { .. } => {
                Some(self.len_bytes() - UdpHeader::LEN)
            }
            NetworkHeader::Grh(_) => None,
        }
    }

    /// Returns the path of the datagram. The UDP source port is 0 for RoCE v1, and the flow label is 0 for
    /// IPv4.
    #[must_use]
    pub const fn path(&self) -> Path {
        let (encapsulation, source, destination, traffic_class, hop_limit, flow_label) = match &self.network {
            NetworkHeader::Ipv4 { ip, .. } => {
                let (source, destination) = (IpAddr::V4(ip.source), IpAddr::V4(ip.destination));
                (Encapsulation::RoceV2, source, destination, ip.traffic_class, ip.ttl, 0)
            }
            NetworkHeader::Ipv6 { ip, .. } => {
                let (source, destination) = (IpAddr::V6(ip.source), IpAddr::V6(ip.destination));
                (Encapsulation::RoceV2, source, destination, ip.traffic_class, ip.hop_limit, ip.flow_label)
            }
            NetworkHeader::Grh(grh) => {
                let (source, destination) = (grh.source.to_ip(), grh.destination.to_ip());
                (Encapsulation::RoceV1, source, destination, grh.traffic_class, grh.hop_limit, grh.flow_label)
            }
        };
        let source_port = match self.network.udp() {
            Some(udp) => udp.source_port,
            None => 0,
        };
        let vlan = self.vlan;
        Path { encapsulation, source, destination, source_port, traffic_class, hop_limit, flow_label, vlan }
    }

    /// Returns the fields of these headers that the ICRC covers.
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        let path = self.path();
        let identification = match &self.network {
            NetworkHeader::Ipv4 { ip, .. } => ip.identification,
            NetworkHeader::Ipv6 { .. } | NetworkHeader::Grh(_) => 0,
        };
        let mut envelope = Envelope::new(&path, identification);
        if let NetworkHeader::Ipv4 { ip, .. } = &self.network {
            envelope.dont_fragment = ip.dont_fragment;
        }
        if let Some(udp) = self.network.udp() {
            envelope.destination_port = udp.destination_port;
        }
        envelope
    }

    /// Writes the headers to the start of `out` and returns their length in bytes.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let need = self.len_bytes();
        let too_small = BufferTooSmall { need, have: out.len() };
        let ether_type = self.network.ether_type();
        let (ethernet, mut rest) = out.split_first_chunk_mut().ok_or(too_small)?;
        EthernetHeader {
            destination: self.destination,
            source: self.source,
            ether_type: if self.vlan.is_some() { EtherType::VLAN } else { ether_type },
        }
        .emit(ethernet);
        if let Some(tag) = self.vlan {
            let (vlan, behind) = rest.split_first_chunk_mut().ok_or(too_small)?;
            VlanHeader { tag, ether_type }.emit(vlan);
            rest = behind;
        }
        let rest = match &self.network {
            NetworkHeader::Ipv4 { ip, .. } => {
                let (network, rest) = rest.split_first_chunk_mut().ok_or(too_small)?;
                ip.emit(network);
                rest
            }
            NetworkHeader::Ipv6 { ip, .. } => {
                let (network, rest) = rest.split_first_chunk_mut().ok_or(too_small)?;
                ip.emit(network);
                rest
            }
            NetworkHeader::Grh(grh) => {
                let (network, rest) = rest.split_first_chunk_mut().ok_or(too_small)?;
                grh.emit(network);
                rest
            }
        };
        if let Some(udp) = self.network.udp() {
            udp.emit(rest.first_chunk_mut().ok_or(too_small)?);
        }
        Ok(need)
    }
}

/// The error for a datagram that cannot have headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameHeadersError {
    /// One address is IPv4 and the other one is IPv6.
    MixedAddressFamilies,
    /// The length of the datagram exceeds a 16-bit length field.
    TooLong {
        /// Length of the datagram, in bytes.
        datagram_len: usize,
    },
}

impl fmt::Display for FrameHeadersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MixedAddressFamilies => {
                f.write_str("source and destination address are not of the same IP version")
            }
            Self::TooLong { datagram_len } => {
                write!(f, "{datagram_len} bytes do not fit into one packet")
            }
        }
    }
}

impl core::error::Error for FrameHeadersError {}

fn length_field(datagram_len: usize, headers_len: usize) -> Result<u16, FrameHeadersError> {
    datagram_len
        .checked_add(headers_len)
        .and_then(|length| u16::try_from(length).ok())
        .ok_or(FrameHeadersError::TooLong { datagram_len })
}

fn udp_header(path: &Path, datagram_len: usize) -> Result<UdpHeader, FrameHeadersError> {
    Ok(UdpHeader {
        source_port: path.source_port,
        destination_port: ROCE_UDP_PORT,
        length: length_field(datagram_len, UdpHeader::LEN)?,
        checksum: 0,
    })
}

/// A frame with consistent outer headers that announce RoCE.
///
/// The datagram inside is not checked yet: [`Self::datagram`] parses it, and [`Self::verify_icrc`] checks its
/// ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Everything before the BTH.
    pub headers: FrameHeaders,
    /// BTH to ICRC, with the length from the IP header or the GRH.
    pub transport: &'a [u8],
    /// The bytes after the packet, usually the padding of short Ethernet frames.
    pub trailer: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses a frame, starting at its Ethernet header.
    ///
    /// Returns [`ParseErrorKind::NotRoce`](crate::ParseErrorKind::NotRoce) for a frame of another protocol.
    /// Every other error means that the frame, as far as it is readable, is a RoCE frame that is broken or
    /// not supported. A frame may have one 802.1Q tag. Frames with more tags are not examined further.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_on_port(bytes, ROCE_UDP_PORT)
    }

    /// Parses a frame as [`Self::parse`] does, with another UDP port for RoCE v2.
    pub fn parse_on_port(bytes: &'a [u8], port: u16) -> Result<Self, ParseError> {
        Dissection::on_port(bytes, port).into_frame()
    }

    /// Parses a frame as [`Self::parse_on_port`] does, but from two slices, as some devices deliver long
    /// frames. The first slice must contain all headers before the BTH. [`Datagram::parse`] also requires the
    /// extended headers in it.
    pub fn parse_split(head: &'a [u8], tail: &'a [u8], port: u16) -> Result<SplitFrame<'a>, ParseError> {
        let frame_len = head.len().saturating_add(tail.len());
        let dissection = Dissection::of_part(head, frame_len, port);
        let (headers, head) = dissection.headers()?;
        let tail_len = dissection.transport_len.saturating_sub(head.len());
        // The dissection has checked that the two slices together contain the length in the headers.
        let tail = tail.get(..tail_len).unwrap_or(tail);
        Ok(SplitFrame { headers, head, tail })
    }

    /// Returns the length of the whole frame, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.headers.len_bytes() + self.transport.len() + self.trailer.len()
    }

    /// Returns the path of the datagram.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.headers.path()
    }

    /// Returns the fields of the headers that the ICRC covers.
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        self.headers.envelope()
    }

    /// Parses the datagram in the frame. Offsets in errors count from the start of the frame.
    pub fn datagram(&self) -> Result<Datagram<'a>, ParseError> {
        Datagram::parse(self.transport, &[]).map_err(|error| error.moved_by(self.headers.len_bytes()))
    }

    /// Computes the ICRC and compares it with the one in the frame, for any opcode.
    pub fn verify_icrc(&self) -> Result<IcrcCheck, ParseError> {
        let (covered, found) = self.split_icrc()?;
        let computed = icrc::compute(&self.envelope(), covered, &[]);
        Ok(IcrcCheck { computed, found })
    }

    /// Returns the packet without its trailer of in-band telemetry, and the telemetry. Returns `None` unless
    /// the packet has a trailer and the ICRC before the trailer is correct. See [`Telemetry`].
    #[must_use]
    pub fn split_telemetry(&self) -> Option<(Self, Telemetry)> {
        let (transport, _, telemetry) = Telemetry::split_off(self.transport, &[])?;
        let rest = Self { transport, ..*self };
        rest.verify_icrc().is_ok_and(|check| check.is_good()).then_some((rest, telemetry))
    }

    /// Returns the bytes from BTH to padding, and the ICRC.
    fn split_icrc(&self) -> Result<(&'a [u8], u32), ParseError> {
        let have = self.transport.len();
        match self.transport.split_last_chunk() {
            Some((covered, found)) if have >= BTH_AND_ICRC_LEN => Ok((covered, u32::from_le_bytes(*found))),
            _ => Err(ParseError::truncated(Layer::Bth, self.headers.len_bytes(), BTH_AND_ICRC_LEN, have)),
        }
    }

    /// Writes the frame, trailer included, to the start of `out` and returns its length. The output of a
    /// parsed frame equals its input, except for the reserved bit in the IPv4 flags.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let need = self.len_bytes();
        let too_small = BufferTooSmall { need, have: out.len() };
        let out = out.get_mut(..need).ok_or(too_small)?;
        let (headers, rest) = out.split_at_mut_checked(self.headers.len_bytes()).ok_or(too_small)?;
        self.headers.emit(headers)?;
        let (transport, trailer) = rest.split_at_mut_checked(self.transport.len()).ok_or(too_small)?;
        transport.copy_from_slice(self.transport);
        trailer.copy_from_slice(self.trailer);
        Ok(need)
    }
}

/// A frame in two slices, with consistent outer headers that announce RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitFrame<'a> {
    /// Everything before the BTH.
    pub headers: FrameHeaders,
    /// The BTH and the bytes after it in the first slice.
    pub head: &'a [u8],
    /// The remaining bytes up to the ICRC, in the second slice. Empty if the first slice contains them.
    pub tail: &'a [u8],
}

/// The ICRC of a packet: the computed value and the one in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcCheck {
    /// The computed value.
    pub computed: u32,
    /// The value in the packet.
    pub found: u32,
}

impl IcrcCheck {
    /// Returns whether the ICRC is correct.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.computed == self.found
    }
}

/// Length of the shortest datagram, a BTH and an ICRC, in bytes.
const BTH_AND_ICRC_LEN: usize = 16;
