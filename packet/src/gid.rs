//! GIDs: the 128-bit addresses of InfiniBand, and their conversion from and to IP and Ethernet addresses.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ethernet::MacAddr;

/// A global identifier in the order of the wire.
///
/// On Ethernet, a GID *is* an IP address: an IPv4 address in its mapped form (`::ffff:a.b.c.d`), or an IPv6
/// address (Annex A17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The unspecified GID, all zero.
    pub const ZERO: Self = Self([0; 16]);

    /// Returns the link-local GID of a port: `fe80::` and the address of its Ethernet interface in EUI-64
    /// form, which has `ff:fe` in the middle and the universal/local bit inverted.
    #[must_use]
    pub const fn link_local(mac: MacAddr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the Ethernet address from which a link-local GID was derived, if any.
    #[must_use]
    pub const fn link_local_mac(self) -> Option<MacAddr> {
        match self.0 {
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
                Some(MacAddr([a ^ 0x02, b, c, d, e, f]))
            }
            _ => None,
        }
    }

    /// Returns the GID of an IPv4 address: its mapped form.
    #[must_use]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// Returns the GID of an IP address. An IPv6 address that is an IPv4 address in mapped form is not
    /// changed.
    #[must_use]
    pub const fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::from_ipv4(address),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }

    /// Returns the IP address of packets for this GID: IPv4 if the GID is IPv4-mapped, otherwise IPv6.
    #[must_use]
    pub const fn to_ip(self) -> IpAddr {
        match self.to_ipv4() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(self.to_ipv6()),
        }
    }

    /// Returns the IPv4 address in an IPv4-mapped GID.
    #[must_use]
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }

    /// Returns the GID as an IPv6 address, mapped or not.
    #[must_use]
    pub const fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.0)
    }

    /// Returns whether the GID is an IPv4 address in mapped form.
    #[must_use]
    pub const fn is_ipv4_mapped(self) -> bool {
        self.to_ipv4().is_some()
    }

    /// Returns whether the GID is that of a group: an IPv6 multicast address or a mapped IPv4 one.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        match self.to_ip() {
            IpAddr::V4(address) => address.is_multicast(),
            IpAddr::V6(address) => address.is_multicast(),
        }
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self::from_ip(address)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self::from_ipv4(address)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> Self {
        gid.to_ip()
    }
}

/// Displays the GID as an IPv6 address: `::ffff:192.0.2.1`, `fe80::1`.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    /// Addresses from a capture of two machines with kernel RXE.
    #[test]
    fn link_local_of_a_mac() {
        let mac: MacAddr = "4c:72:b9:66:95:51".parse().unwrap();
        let gid = Gid::link_local(mac);
        assert_eq!(gid.to_string(), "fe80::4e72:b9ff:fe66:9551");
        assert_eq!(gid.link_local_mac(), Some(mac));
        assert_eq!(gid.to_ip(), "fe80::4e72:b9ff:fe66:9551".parse::<IpAddr>().unwrap());
        assert!(!gid.is_ipv4_mapped() && !gid.is_multicast());
        // A locally assigned address has the bit set, and its GID has it clear.
        let local = Gid::link_local(MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(local.to_string(), "fe80::ff:fe00:1");
        assert_eq!(local.link_local_mac(), Some(MacAddr([2, 0, 0, 0, 0, 1])));
    }

    #[test]
    fn link_local_made_otherwise() {
        for address in ["fe80::1", "fe80:1::4e72:b9ff:fe66:9551", "2001:db8::4e72:b9ff:fe66:9551", "::1"] {
            let gid = Gid::from(address.parse::<Ipv6Addr>().unwrap());
            assert_eq!(gid.link_local_mac(), None, "{address}");
        }
    }

    /// Addresses from frames of a ConnectX.
    #[test]
    fn ipv4_in_mapped_form() {
        let address = Ipv4Addr::new(192, 170, 1, 2);
        let gid = Gid::from(address);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xc0, 0xaa, 0x01, 0x02]);
        assert_eq!(gid.to_ipv4(), Some(address));
        assert_eq!(IpAddr::from(gid), IpAddr::V4(address));
        assert_eq!(Gid::from(IpAddr::V4(address)), gid);
        assert_eq!(Gid::from(IpAddr::V6(address.to_ipv6_mapped())), gid);
        assert_eq!(gid.to_string(), "::ffff:192.170.1.2");
        // The older IPv4-compatible form is an IPv6 address.
        assert_eq!(Gid::from(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0xc0aa, 0x0102)).to_ipv4(), None);
    }

    #[test]
    fn groups() {
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().unwrap());
        assert!(gid("224.0.0.251").is_multicast());
        assert!(gid("ff02::1").is_multicast());
        assert!(!gid("192.0.2.1").is_multicast());
        assert!(!Gid::ZERO.is_multicast());
    }
}
