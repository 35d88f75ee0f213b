//! Packets of capture files, and the limits of what is read.

use std::fmt;

use roce_packet::outer::Link;

/// Largest number of bytes of a packet in a file: twice the largest superpacket of Linux. A larger length is
/// treated as damage.
pub const MAX_PACKET: u32 = 1 << 20;

/// Largest number of bytes read of the options of one pcapng block.
pub const MAX_OPTIONS: u32 = 1 << 20;

/// Largest number of interfaces that one pcapng section can describe.
pub const MAX_INTERFACES: usize = 4096;

/// Largest number of bytes kept of an interface name. Longer names are truncated.
pub const LONGEST_NAME: usize = 255;

/// The protocol at the start of a captured packet. The numbers are those of the tcpdump.org registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u32);

impl LinkType {
    /// Four bytes with an address family in the byte order of the capturing machine, then IP.
    pub const NULL: Self = Self(0);
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6.
    pub const RAW_IP: Self = Self(101);
    /// Four bytes with an address family in network byte order, then IP.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture, version 1, as recorded on interface "any": 16 bytes, of which the last two are
    /// an EtherType.
    pub const LINUX_SLL: Self = Self(113);
    /// Records of ERF files, each with its own protocol.
    pub const ERF: Self = Self(197);
    /// Native InfiniBand, from its local route header on.
    pub const INFINIBAND: Self = Self(247);
    /// Linux cooked capture, version 2: 20 bytes, of which the first two are an EtherType.
    pub const LINUX_SLL2: Self = Self(276);
    /// IPv4.
    pub const IPV4: Self = Self(228);
    /// IPv6.
    pub const IPV6: Self = Self(229);

    /// Returns the name in the registry, if the type is common in captures of RoCE.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "NULL",
            1 => "ETHERNET",
            12 | 14 | 101 => "RAW",
            105 => "IEEE802_11",
            108 => "LOOP",
            113 => "LINUX_SLL",
            127 => "IEEE802_11_RADIOTAP",
            197 => "ERF",
            228 => "IPV4",
            229 => "IPV6",
            247 => "INFINIBAND",
            276 => "LINUX_SLL2",
            _ => return None,
        })
    }
}

impl LinkType {
    /// Returns how to decode a packet of this type, or `None` if it cannot carry RoCE or InfiniBand.
    #[must_use]
    pub const fn link(self) -> Option<Link> {
        Some(match self {
            Self::ETHERNET => Link::Ethernet,
            // 12 and 14 are RAW on some systems.
            Self::RAW_IP | Self::IPV4 | Self::IPV6 | Self(12 | 14) => Link::Ip,
            Self::NULL | Self::LOOP => Link::AddressFamily,
            Self::LINUX_SLL => Link::LinuxSll,
            Self::LINUX_SLL2 => Link::LinuxSll2,
            Self::ERF => Link::Erf,
            Self::INFINIBAND => Link::InfiniBand,
            _ => return None,
        })
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Direction of a packet, seen from the capturing machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The file does not contain the direction.
    #[default]
    Unknown,
    /// The packet was received.
    Inbound,
    /// The packet was sent.
    Outbound,
}

impl Direction {
    /// Reads the direction from the pcapng option `epb_flags`.
    pub(super) const fn from_flags(flags: u32) -> Self {
        match flags & 0b11 {
            0b01 => Self::Inbound,
            0b10 => Self::Outbound,
            _ => Self::Unknown,
        }
    }

    pub(super) const fn flags(self) -> u32 {
        match self {
            Self::Unknown => 0b00,
            Self::Inbound => 0b01,
            Self::Outbound => 0b10,
        }
    }
}

/// A packet of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// Number of the packet in the file, from 1.
    pub number: u64,
    /// Time of the capture, in nanoseconds since 1970 UTC; `None` in simple packets of pcapng.
    pub time_ns: Option<u64>,
    /// Protocol at the start of the packet.
    pub link_type: LinkType,
    /// Number of the capturing interface, from 0 in each section of a pcapng file. Classic files have no
    /// interfaces.
    pub interface: Option<u32>,
    /// Name of that interface, if the file contains it.
    pub interface_name: Option<&'a str>,
    /// Direction of the packet.
    pub direction: Direction,
    /// First comment on the packet in the file.
    pub comment: Option<&'a str>,
    /// Length on the wire in bytes.
    pub original_len: u32,
    /// Captured bytes.
    pub bytes: &'a [u8],
}

impl CapturedPacket<'_> {
    /// Returns whether the end is missing because the capture kept only the first bytes of each packet.
    #[must_use]
    pub const fn is_snapped(&self) -> bool {
        self.bytes.len() < self.original_len as usize
    }

    /// Returns whether the comment says that the packet was dropped, as `--fault` and the two hosts of the
    /// page write it.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        const BEGINNINGS: [&str; 2] = ["dropped by --fault", "dropped on the link"];
        self.comment.is_some_and(|comment| BEGINNINGS.iter().any(|begin| comment.starts_with(begin)))
    }
}
