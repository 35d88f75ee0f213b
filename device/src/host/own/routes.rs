//! The next hop of packets on the link: their destination or a gateway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The next hop of packets for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// This neighbour.
    Through(IpAddr),
    /// The address is unreachable.
    None,
}

/// The prefixes of the link and the gateways.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    own: Vec<(IpAddr, u8)>,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
}

impl Routes {
    pub(super) fn new(
        own: &[(IpAddr, u8)],
        gateway_v4: Option<Ipv4Addr>,
        gateway_v6: Option<Ipv6Addr>,
    ) -> Self {
        Self { own: own.to_vec(), gateway_v4, gateway_v6 }
    }

    /// Returns the next hop to a unicast address of another host.
    pub(super) fn next_hop(&self, destination: IpAddr) -> Route {
        if self.is_own(destination) || !is_unicast(destination) || self.is_broadcast(destination) {
            return Route::None;
        }
        if self.is_on_link(destination) {
            return Route::Through(destination);
        }
        let gateway = match destination {
            IpAddr::V4(_) => self.gateway_v4.map(IpAddr::V4),
            // Link-local addresses are always on the link, because the host's own has their prefix.
            IpAddr::V6(_) => self.gateway_v6.map(IpAddr::V6),
        };
        gateway.map_or(Route::None, Route::Through)
    }

    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, _)| *own == address)
    }

    /// Returns whether the owner of an address is on the link.
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, len)| same_prefix(*own, address, *len))
    }

    /// Returns whether an address is the broadcast address of one of the networks (RFC 919).
    fn is_broadcast(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, len)| match (own, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => broadcast(*own, *len) == Some(address),
            _ => false,
        })
    }
}

/// Returns whether an address can belong to a single host.
pub(super) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_multicast()
                || address.is_broadcast()
                || address.is_unspecified()
                || address.is_loopback())
        }
        IpAddr::V6(address) => !(address.is_multicast() || address.is_unspecified() || address.is_loopback()),
    }
}

/// Returns whether two addresses have the first `len` bits in common.
pub(crate) fn same_prefix(one: IpAddr, other: IpAddr, len: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let differ = one.to_bits() ^ other.to_bits();
            differ.checked_shr(32 - u32::from(len.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let differ = one.to_bits() ^ other.to_bits();
            differ.checked_shr(128 - u32::from(len.min(128))).unwrap_or(0) == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// Returns the broadcast address of a network; networks of one or two addresses have none (RFC 3021).
pub(crate) fn broadcast(address: Ipv4Addr, len: u8) -> Option<Ipv4Addr> {
    let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
    (len < 31).then(|| Ipv4Addr::from_bits(address.to_bits() | hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn packets_go_to_the_link_or_to_a_gateway() {
        let own = [(ip("198.18.1.2"), 24), (ip("2001:db8:1::2"), 64), (ip("fe80::2"), 64)];
        let gateway_v6 = Some("fe80::1".parse().unwrap());
        let routes = Routes::new(&own, Some("198.18.1.1".parse().unwrap()), gateway_v6);
        for (destination, next_hop) in [
            ("198.18.1.9", Some("198.18.1.9")),
            ("198.18.1.1", Some("198.18.1.1")),
            ("198.18.2.9", Some("198.18.1.1")),
            ("2001:db8:1::9", Some("2001:db8:1::9")),
            ("2001:db8:2::9", Some("fe80::1")),
            ("fe80::7", Some("fe80::7")),
            ("198.18.1.2", None),
            ("198.18.1.255", None),
            ("255.255.255.255", None),
            ("224.0.0.5", None),
            ("0.0.0.0", None),
            ("::", None),
            ("ff02::1", None),
            ("127.0.0.1", None),
        ] {
            let expected = next_hop.map_or(Route::None, |next_hop| Route::Through(ip(next_hop)));
            assert_eq!(routes.next_hop(ip(destination)), expected, "{destination}");
        }
        let alone = Routes::new(&own, None, None);
        assert_eq!(alone.next_hop(ip("198.18.2.9")), Route::None);
        assert_eq!(alone.next_hop(ip("2001:db8:2::9")), Route::None);
    }

    #[test]
    fn every_length_of_prefix() {
        assert!(same_prefix(ip("1.2.3.4"), ip("250.1.1.1"), 0));
        assert!(same_prefix(ip("198.18.1.2"), ip("198.18.1.2"), 32));
        assert!(!same_prefix(ip("198.18.1.2"), ip("198.18.1.3"), 32));
        assert!(same_prefix(ip("::1"), ip("ffff::1"), 0));
        assert!(!same_prefix(ip("::1"), ip("::2"), 128));
        assert!(!same_prefix(ip("::1"), ip("0.0.0.1"), 0));
        let address = "198.18.1.2".parse().unwrap();
        assert_eq!(broadcast(address, 24), "198.18.1.255".parse().ok());
        assert_eq!(broadcast(address, 0), "255.255.255.255".parse().ok());
        assert_eq!(broadcast(address, 31), None);
        assert_eq!(broadcast(address, 32), None);
    }
}
