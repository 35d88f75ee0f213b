//! The devices that an unmodified program sees, before it opens any of them. The C library and the files that
//! `roce run` shows the program use this list.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, UdpSocket};

pub use crate::driver::in_gid_order;

/// The environment variable that selects devices: specifications as for `roce --device`, separated by `;`.
pub const VARIABLE: &str = "ROCE_DEVICE";

/// The environment variable with the device names in order, separated by `;`. Further devices are named
/// `roce1` and so on.
pub const NAMES: &str = "ROCE_NAME";

/// Returns the name of a device: the one in the value of [`NAMES`], or one such as `roce0`.
#[must_use]
pub fn name(names: Option<&str>, index: usize) -> String {
    let given = names.and_then(|names| names.split(';').nth(index)).map(str::trim);
    given.filter(|name| is_name(name)).map_or_else(|| format!("roce{index}"), str::to_owned)
}

/// Returns whether a text is a valid device name. It becomes the name of a directory, and programs have room
/// for 63 characters.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_plain)
}

/// Returns the name of a device's file in `/dev/infiniband`, such as `uverbs0`.
#[must_use]
pub fn file(index: usize) -> String {
    format!("uverbs{index}")
}

/// Returns the specifications in the value of [`VARIABLE`]. The default is one `udp` device with the source
/// address of the default route, or else with 127.0.0.1.
#[must_use]
pub fn specifications(value: Option<&str>) -> Vec<String> {
    let named = value.unwrap_or_default().split(';').map(str::trim).filter(|part| !part.is_empty());
    let named: Vec<String> = named.map(str::to_owned).collect();
    if named.is_empty() { vec![default_specification()] } else { named }
}

/// Returns the source address of packets to other networks, or else the loopback address. Sends nothing.
fn default_specification() -> String {
    let towards = |bind: &str, peer: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        // A documentation address, which only the default route reaches.
        socket.connect(peer).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    match towards("0.0.0.0:0", "192.0.2.1:9").or_else(|| towards("[::]:0", "[2001:db8::1]:9")) {
        Some(IpAddr::V6(address)) => format!("udp:[{address}]"),
        Some(IpAddr::V4(address)) => format!("udp:{address}"),
        None => "udp:127.0.0.1".into(),
    }
}

/// Returns the address or interface in a specification: `192.0.2.1` in `udp:192.0.2.1,port=4791`, `eth1` in
/// `xdp:eth1`.
#[must_use]
pub fn place(specification: &str) -> Option<&str> {
    let (_, rest) = specification.split_once(':')?;
    let place = rest.split(',').next()?;
    Some(place.trim_start_matches('[').trim_end_matches(']')).filter(|place| !place.is_empty())
}

/// Returns the address in a specification, without the interface of a link-local address.
#[must_use]
pub fn address(specification: &str) -> Option<IpAddr> {
    place(specification)?.split('%').next()?.parse().ok()
}

/// Returns the LID of the port: the last two bytes of the IPv4 address, or 0 without one.
#[must_use]
pub fn lid(address: Option<IpAddr>) -> u16 {
    match address {
        Some(IpAddr::V4(address)) => {
            let [_, _, c, d] = address.octets();
            u16::from_be_bytes([c, d])
        }
        _ => 0,
    }
}

/// Returns the GUID of the node, derived from the IPv4 address if the specification has one.
#[must_use]
pub fn guid(specification: &str) -> [u8; 8] {
    let [a, b, c, d] = match address(specification) {
        Some(IpAddr::V4(address)) => address.octets(),
        other => {
            let mut hasher = DefaultHasher::new();
            (other, specification).hash(&mut hasher);
            (hasher.finish() as u32).to_be_bytes()
        }
    };
    // The form of an EUI-64 that is derived from a locally administered Ethernet address.
    [0x02, 0x00, a, 0xff, 0xfe, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_devices() {
        let named = specifications(Some(" udp:192.0.2.1 ;; xdp:eth1;"));
        assert_eq!(named, ["udp:192.0.2.1", "xdp:eth1"]);
        for nothing in [None, Some(""), Some(" ; ")] {
            let default = specifications(nothing);
            assert!(default.len() == 1 && default[0].starts_with("udp:"), "{default:?}");
        }
    }

    #[test]
    fn names_are_those_that_were_given() {
        assert_eq!((name(None, 0), name(None, 7)), ("roce0".to_owned(), "roce7".to_owned()));
        let names = Some("mlx5_0; rxe_eth0 ;../x");
        assert_eq!([0, 1, 2, 3].map(|index| name(names, index)), ["mlx5_0", "rxe_eth0", "roce2", "roce3"]);
        for bad in ["", ".", "..", "a/b", "a b", "a:1", &"a".repeat(64)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn addresses_are_found_in_specifications() {
        assert_eq!(address("udp:192.0.2.1,port=7"), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(address("udp:[2001:db8::1]"), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(address("udp:[fe80::1%eth0]"), Some("fe80::1".parse().unwrap()));
        assert_eq!((address("xdp:eth1"), place("xdp:eth1,mtu=900")), (None, Some("eth1")));
        assert_eq!((place("xdp"), place("xdp:")), (None, None));
        assert_eq!(guid("udp:192.0.2.7"), [2, 0, 192, 0xff, 0xfe, 0, 2, 7]);
    }
}
