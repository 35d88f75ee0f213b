//! The specification of a TAP device.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use roce_packet::MacAddr;

use crate::OpenError;
use crate::framed::FrameSettings;
use crate::host::own::{broadcast, same_prefix};
use crate::spec::{SpecOption, SpecText};

/// Specification of a virtual Ethernet interface and the addresses of the host behind it, parsed from text
/// such as `tap:roce0,ip=198.18.0.2/24`.
///
/// ```text
/// "tap:" NAME *( "," option )          the interface, made if it is not there
/// option = "ip=" ADDRESS "/" LENGTH    our address and its network; this or ip6 must be there
///        | "ip6=" ADDRESS "/" LENGTH   the same for IPv6
///        | "mac=" MAC                  our Ethernet address; derived from the address if not given
///        | "gw=" ADDRESS               the gateway to other networks
///        | "gw6=" ADDRESS              the same for IPv6
///        | "mtu=" BYTES                the largest IP packet; 1500 if not given and the interface is made
///        | "vlan=" VID                 the 802.1Q VLAN, 1 to 4094
///        | "prio=" PCP                 the priority of every frame, 0 to 7
/// ```
///
/// The device is its own host behind that interface, with the given addresses. Addresses that the kernel has
/// on the interface belong to another host, the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapSpec {
    /// The name of the interface.
    pub name: String,
    /// The host's IPv4 address and the prefix length of its network.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// The host's IPv6 address and the prefix length of its network.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// The host's Ethernet address; `None` derives it from the IP address.
    pub mac: Option<MacAddr>,
    /// The IPv4 gateway.
    pub gateway_v4: Option<Ipv4Addr>,
    /// The IPv6 gateway.
    pub gateway_v6: Option<Ipv6Addr>,
    /// The largest IP packet in bytes.
    pub mtu: Option<u16>,
    /// The 802.1Q tag.
    pub frames: FrameSettings,
}

impl TapSpec {
    /// Creates a specification without addresses and options.
    pub(crate) const fn named(name: String) -> Self {
        Self {
            name,
            ipv4: None,
            ipv6: None,
            mac: None,
            gateway_v4: None,
            gateway_v6: None,
            mtu: None,
            frames: FrameSettings { vlan: None, priority: None },
        }
    }

    /// Returns the host's Ethernet address: the configured one, or one derived from the IP address. A derived
    /// address is locally administered.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        let derived = || match (self.ipv4, self.ipv6) {
            (Some((address, _)), _) => {
                let [a, b, c, d] = address.octets();
                MacAddr([0x02, 0x52, a, b, c, d])
            }
            (None, Some((address, _))) => {
                // Hosts of one link usually differ in the last bytes; the hash includes the rest.
                let fold = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                let hash = address.octets().into_iter().fold(0xcbf2_9ce4_8422_2325_u64, fold);
                let [.., a, b, c, d, e] = hash.to_be_bytes();
                MacAddr([0x06, a, b, c, d, e])
            }
            (None, None) => MacAddr([0x02, 0x52, 0, 0, 0, 1]),
        };
        self.mac.unwrap_or_else(derived)
    }

    /// Returns the host's addresses with their prefix lengths, IPv4 first.
    pub(super) fn addresses(&self) -> Vec<(IpAddr, u8)> {
        let v4 = self.ipv4.map(|(address, len)| (IpAddr::V4(address), len));
        let v6 = self.ipv6.map(|(address, len)| (IpAddr::V6(address), len));
        v4.into_iter().chain(v6).collect()
    }

    /// Parses one option.
    fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "ip" => self.ipv4 = Some(parse_v4(value).ok_or(IPV4)?),
            "ip6" => self.ipv6 = Some(parse_v6(value).ok_or(IPV6)?),
            "mac" => {
                let mac: MacAddr = value.parse().map_err(|_| MAC)?;
                self.mac = Some(mac).filter(|mac| !mac.is_multicast() && *mac != MacAddr::ZERO);
                self.mac.ok_or(MAC)?;
            }
            "gw" => self.gateway_v4 = Some(value.parse().map_err(|_| GATEWAY_V4)?),
            "gw6" => self.gateway_v6 = Some(unbracketed(value).parse().map_err(|_| GATEWAY_V6)?),
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (SMALLEST_MTU..=LARGEST_MTU).contains(mtu));
                self.mtu = Some(mtu.ok_or(MTU)?);
            }
            _ => return self.frames.set(name, value, OPTIONS),
        }
        Ok(())
    }

    /// Returns the first problem of the specification: the part, and a description of valid values.
    fn problem(&self) -> Option<(String, &'static str)> {
        if self.ipv4.is_none() && self.ipv6.is_none() {
            return Some((self.name.clone(), ADDRESS));
        }
        if let Some(gateway) = self.gateway_v4 {
            let is_near = |(own, len): (Ipv4Addr, u8)| {
                same_prefix(own.into(), gateway.into(), len)
                    && own != gateway
                    && broadcast(own, len) != Some(gateway)
            };
            if !self.ipv4.is_some_and(is_near) {
                return Some((format!("gw={gateway}"), GATEWAY_V4));
            }
        }
        if let Some(gateway) = self.gateway_v6 {
            let is_near =
                |(own, len): (Ipv6Addr, u8)| same_prefix(own.into(), gateway.into(), len) && own != gateway;
            if !gateway.is_unicast_link_local() && !self.ipv6.is_some_and(is_near) {
                return Some((format!("gw6={gateway}"), GATEWAY_V6));
            }
        }
        match self.mtu {
            Some(mtu) if self.ipv6.is_some() && mtu < SMALLEST_MTU_V6 => {
                Some((format!("mtu={mtu}"), "mtu=BYTES of at least 1280, as IPv6 needs"))
            }
            _ => None,
        }
    }
}

/// Parses a host address and prefix length; the first and last address of a network are not host addresses.
fn parse_v4(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, len) = text.split_once('/')?;
    let (address, len): (Ipv4Addr, u8) = (address.parse().ok()?, len.parse().ok()?);
    let is_host = !(address.is_unspecified()
        || address.is_multicast()
        || address.is_loopback()
        || address.is_broadcast());
    // Except with /31 and /32.
    let network = address.to_bits() & !u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
    let is_edge = len < 31 && (broadcast(address, len) == Some(address) || network == address.to_bits());
    (is_host && (1..=32).contains(&len) && !is_edge).then_some((address, len))
}

fn parse_v6(text: &str) -> Option<(Ipv6Addr, u8)> {
    let (address, len) = text.split_once('/')?;
    let (address, len): (Ipv6Addr, u8) = (unbracketed(address).parse().ok()?, len.parse().ok()?);
    let is_host = !(address.is_unspecified()
        || address.is_multicast()
        || address.is_loopback()
        // The Ethernet address determines the link-local address.
        || address.is_unicast_link_local()
        || address.to_ipv4_mapped().is_some());
    (is_host && (1..=128).contains(&len)).then_some((address, len))
}

fn unbracketed(text: &str) -> &str {
    text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text)
}

/// Returns whether the kernel accepts the text as interface name, and every shell command does.
fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && text.bytes().any(|byte| byte != b'.')
}

impl fmt::Display for TapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tap:{}", self.name)?;
        if let Some((address, len)) = self.ipv4 {
            write!(f, ",ip={address}/{len}")?;
        }
        if let Some((address, len)) = self.ipv6 {
            write!(f, ",ip6={address}/{len}")?;
        }
        if let Some(mac) = self.mac {
            write!(f, ",mac={mac}")?;
        }
        if let Some(gateway) = self.gateway_v4 {
            write!(f, ",gw={gateway}")?;
        }
        if let Some(gateway) = self.gateway_v6 {
            write!(f, ",gw6={gateway}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ",mtu={mtu}")?;
        }
        write!(f, "{}", self.frames)
    }
}

impl FromStr for TapSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let text = SpecText::new("tap", text);
        let name = text.subject();
        if !is_name(name) {
            return Err(text.bad(name, NAME));
        }
        let mut spec = Self::named(name.to_owned());
        for option in text.options(OPTIONS) {
            let SpecOption { whole, name, value } = option?;
            spec.set(name, value).map_err(|expected| text.bad(whole, expected))?;
        }
        match spec.problem() {
            None => Ok(spec),
            Some((item, expected)) => Err(text.bad(&item, expected)),
        }
    }
}

/// `IFNAMSIZ` without the zero at the end.
const LONGEST_NAME: usize = 15;
/// Minimum MTUs (RFC 791 and RFC 8200 section 5).
const SMALLEST_MTU: u16 = 576;
const SMALLEST_MTU_V6: u16 = 1280;
/// Maximum MTU of a TAP in the kernel: 65535 minus the Ethernet header.
const LARGEST_MTU: u16 = 65_521;
const NAME: &str = "the name of an interface, of up to 15 letters, digits, dots, - and _, such as tap:roce0";
const ADDRESS: &str = "an address behind the name, such as tap:roce0,ip=198.18.0.2/24 or ip6=2001:db8::2/64";
const IPV4: &str = "ip=ADDRESS/LENGTH of one host, such as ip=198.18.0.2/24";
const IPV6: &str = "ip6=ADDRESS/LENGTH of one host and not link-local, such as ip6=2001:db8::2/64";
const MAC: &str = "mac=ADDRESS of one station, such as mac=02:00:00:00:00:01";
const GATEWAY_V4: &str = "gw=ADDRESS of another host in the network of ip=";
const GATEWAY_V6: &str = "gw6=ADDRESS of another host in the network of ip6=, or a link-local one";
const MTU: &str = "mtu=BYTES from 576 to 65521";
const OPTIONS: &str = "ip=ADDRESS/LENGTH, ip6=ADDRESS/LENGTH, mac=MAC, gw=ADDRESS, gw6=ADDRESS, mtu=BYTES, \
                       vlan=VID or prio=PCP";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{check_spec, check_spec_errors};

    #[test]
    fn what_is_written_is_read_back() {
        check_spec::<TapSpec>(&[
            ("tap:roce0,ip=198.18.0.2/24", "tap:roce0,ip=198.18.0.2/24"),
            ("tap:t.1,ip6=[2001:db8::2]/64", "tap:t.1,ip6=2001:db8::2/64"),
            (
                "tap:a, mtu=4200,gw=198.18.0.1,prio=3,ip=198.18.0.2/24,vlan=7,mac=02:00:00:00:00:09",
                "tap:a,ip=198.18.0.2/24,mac=02:00:00:00:00:09,gw=198.18.0.1,mtu=4200,vlan=7,prio=3",
            ),
            (
                "tap:a,ip=198.18.0.2/24,ip6=2001:db8::2/64,gw6=fe80::1",
                "tap:a,ip=198.18.0.2/24,ip6=2001:db8::2/64,gw6=fe80::1",
            ),
            ("tap:a,ip=198.18.0.2/31,gw=198.18.0.3", "tap:a,ip=198.18.0.2/31,gw=198.18.0.3"),
            ("tap:a,ip=198.18.0.2/32", "tap:a,ip=198.18.0.2/32"),
        ]);
    }

    #[test]
    fn errors_name_the_part_and_what_could_be_there() {
        check_spec_errors::<TapSpec>(&[
            ("tap", &["``", "expected the name of an interface"]),
            ("tap:", &["``", "expected the name of an interface"]),
            ("tap:a name,ip=198.18.0.2/24", &["`a name`", "expected the name of an interface"]),
            ("tap:sixteen-letters-,ip=198.18.0.2/24", &["`sixteen", "up to 15 letters"]),
            ("tap:..,ip=198.18.0.2/24", &["`..`", "expected the name"]),
            ("tap:tap%d,ip=198.18.0.2/24", &["`tap%d`", "expected the name"]),
            ("tap:a", &["`a`", "expected an address behind the name"]),
            ("tap:a,198.18.0.2/24", &["`198.18.0.2/24`", "expected ip=ADDRESS/LENGTH"]),
            ("tap:a,ip=198.18.0.2", &["`ip=198.18.0.2`", "expected ip=ADDRESS/LENGTH of one host"]),
            ("tap:a,ip=198.18.0.2/33", &["`ip=198.18.0.2/33`", "expected ip=ADDRESS/LENGTH of one host"]),
            ("tap:a,ip=198.18.0.0/24", &["`ip=198.18.0.0/24`", "of one host"]),
            ("tap:a,ip=198.18.0.255/24", &["`ip=198.18.0.255/24`", "of one host"]),
            ("tap:a,ip=224.0.0.1/24", &["`ip=224.0.0.1/24`", "of one host"]),
            ("tap:a,ip=2001:db8::2/64", &["`ip=2001:db8::2/64`", "of one host"]),
            ("tap:a,ip6=fe80::2/64", &["`ip6=fe80::2/64`", "not link-local"]),
            ("tap:a,ip=198.18.0.2/24,mac=01:00:00:00:00:00", &["`mac=01", "of one station"]),
            ("tap:a,ip=198.18.0.2/24,mac=2", &["`mac=2`", "of one station"]),
            ("tap:a,ip=198.18.0.2/24,gw=198.18.1.1", &["`gw=198.18.1.1`", "another host in the network"]),
            ("tap:a,ip=198.18.0.2/24,gw=198.18.0.2", &["`gw=198.18.0.2`", "another host"]),
            ("tap:a,ip=198.18.0.2/24,gw=198.18.0.255", &["`gw=198.18.0.255`", "another host"]),
            ("tap:a,ip6=2001:db8::2/64,gw=198.18.0.1", &["`gw=198.18.0.1`", "in the network of ip="]),
            ("tap:a,ip=198.18.0.2/24,gw6=2001:db8::1", &["`gw6=2001:db8::1`", "or a link-local one"]),
            ("tap:a,ip=198.18.0.2/24,mtu=500", &["`mtu=500`", "from 576 to 65521"]),
            ("tap:a,ip=198.18.0.2/24,mtu=65522", &["`mtu=65522`", "from 576 to 65521"]),
            ("tap:a,ip6=2001:db8::2/64,mtu=1000", &["`mtu=1000`", "at least 1280"]),
            ("tap:a,ip=198.18.0.2/24,vlan=4095", &["`vlan=4095`", "from 1 to 4094"]),
            ("tap:a,ip=198.18.0.2/24,prio=8", &["`prio=8`", "from 0 to 7"]),
            ("tap:a,ip=198.18.0.2/24,color=red", &["`color=red`", "or prio=PCP"]),
        ]);
    }

    #[test]
    fn the_ethernet_address_goes_with_the_address() {
        let mac = |text: &str| text.parse::<TapSpec>().unwrap().mac();
        assert_eq!(mac("tap:a,ip=198.18.0.2/24"), MacAddr([0x02, 0x52, 198, 18, 0, 2]));
        assert_eq!(mac("tap:b,ip=198.18.0.2/16,ip6=2001:db8::2/64"), mac("tap:a,ip=198.18.0.2/24"));
        let (one, other) = (mac("tap:a,ip6=2001:db8::2/64"), mac("tap:a,ip6=2001:db8::3/64"));
        assert_ne!(one, other);
        for mac in [one, other] {
            assert!(mac.is_local() && !mac.is_multicast(), "{mac}");
        }
        assert_eq!(mac("tap:a,ip=198.18.0.2/24,mac=02:00:00:00:00:09"), MacAddr([2, 0, 0, 0, 0, 9]));
    }
}
