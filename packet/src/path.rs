//! Addresses of a datagram, and its treatment by the network.

use core::net::IpAddr;

use crate::ethernet::VlanTag;

/// The UDP destination port of RoCE v2 (Annex A17).
pub const ROCE_UDP_PORT: u16 = 4791;

/// The headers between Ethernet and the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// A GRH directly on Ethernet, EtherType 0x8915 (Annex A16).
    RoceV1,
    /// UDP on IPv4 or IPv6 (Annex A17).
    RoceV2,
}

impl Encapsulation {
    /// Returns the name in GID tables: `RoCE v1` or `RoCE v2`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

/// All properties outside the BTH that the sender of a datagram chooses and its receiver sees.
///
/// Addresses are IP addresses for RoCE v1 too: its GIDs are the IPv6 addresses, or the IPv4-mapped form of
/// the IPv4 addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Version of RoCE.
    pub encapsulation: Encapsulation,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver, of the same family as `source` for RoCE v2.
    pub destination: IpAddr,
    /// UDP source port, which only contains a hash of the flow. Unused by RoCE v1.
    pub source_port: u16,
    /// DSCP in the upper six bits, ECN in the lower two. IPv4 calls the byte type of service.
    pub traffic_class: u8,
    /// Time to live, in hops.
    pub hop_limit: u8,
    /// 20-bit flow label, for IPv6 and RoCE v1 only.
    pub flow_label: u32,
    /// The 802.1Q tag, if the frame has one.
    pub vlan: Option<VlanTag>,
}

impl Path {
    /// Returns the reverse path: addresses swapped, everything else unchanged. The source port is unchanged
    /// because both directions of a queue pair use the same one.
    #[inline]
    #[must_use]
    pub const fn reply(&self) -> Self {
        Self { source: self.destination, destination: self.source, ..*self }
    }

    /// Returns the ECN field of the traffic class.
    #[inline]
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class)
    }

    /// Returns the differentiated services code point of the traffic class, 0 to 63.
    #[inline]
    #[must_use]
    pub const fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }

    /// Returns the path with another ECN field.
    #[inline]
    #[must_use]
    pub const fn with_ecn(mut self, ecn: Ecn) -> Self {
        self.traffic_class = self.traffic_class & !0b11 | ecn.bits();
        self
    }

    /// Returns the path with another DSCP, of which only the low six bits are used.
    #[inline]
    #[must_use]
    pub const fn with_dscp(mut self, dscp: u8) -> Self {
        self.traffic_class = dscp << 2 | self.traffic_class & 0b11;
        self
    }
}

/// The ECN field in the low two bits of the traffic class (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// 00: routers drop packets instead of marking them.
    NotCapable,
    /// 10: routers may mark packets. RFC 3168 calls it ECT(0). RDMA NICs send this value.
    Capable0,
    /// 01: routers may mark packets. RFC 3168 calls it ECT(1).
    Capable1,
    /// 11: a router on the path was congested.
    CongestionExperienced,
}

impl Ecn {
    /// Reads the low two bits. Ignores the others.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotCapable,
            0b01 => Self::Capable1,
            0b10 => Self::Capable0,
            _ => Self::CongestionExperienced,
        }
    }

    /// Returns the two bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotCapable => 0b00,
            Self::Capable1 => 0b01,
            Self::Capable0 => 0b10,
            Self::CongestionExperienced => 0b11,
        }
    }

    /// Returns whether routers may mark packets instead of dropping them.
    #[inline]
    #[must_use]
    pub const fn is_capable(self) -> bool {
        !matches!(self, Self::NotCapable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1)),
        destination: IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 2)),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 5,
        vlan: None,
    };

    #[test]
    fn the_way_back_swaps_only_addresses() {
        let back = PATH.reply();
        assert_eq!((back.source, back.destination), (PATH.destination, PATH.source));
        assert_eq!(back.reply(), PATH);
    }

    #[test]
    fn the_traffic_class_has_two_parts() {
        for class in 0..=u8::MAX {
            let path = Path { traffic_class: class, ..PATH };
            assert_eq!(path.ecn().bits(), class & 3);
            assert_eq!(path.dscp(), class >> 2);
            assert_eq!(PATH.with_dscp(path.dscp()).with_ecn(path.ecn()), path);
            assert_eq!(PATH.with_ecn(path.ecn()).with_dscp(path.dscp()), path);
        }
    }

    //= rfc3168 section-5 type=test
    #[test]
    fn congestion_field() {
        let fields = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::CongestionExperienced];
        for (bits, ecn) in (0..).zip(fields) {
            assert_eq!(Ecn::from_bits(bits), ecn);
            assert_eq!(ecn.bits(), bits);
            assert_eq!(ecn.is_capable(), bits != 0);
        }
    }
}
