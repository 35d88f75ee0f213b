//! The headers of a frame before the BTH.

use core::fmt;
use core::net::IpAddr;

use crate::envelope::Envelope;
use crate::error::BufferTooSmall;
use crate::ethernet::{EtherType, EthernetHeader, MacAddr, VlanHeader, VlanTag};
use crate::gid::Gid;
use crate::grh::Grh;
use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::path::{Encapsulation, Path, ROCE_UDP_PORT};
use crate::udp::{IP_PROTOCOL_UDP, UdpHeader};

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
