//! Network interfaces of this machine and their addresses.

use std::fmt;
use std::io;
use std::net::IpAddr;

use roce_packet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::netlink::{Answer, Netlink, Request, address, number};

/// An address for which this machine receives packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// Name of the interface with this address.
    pub interface: String,
    /// Index of that interface; also the zone of a link-local address.
    pub index: u32,
    /// Whether the interface is a loopback interface.
    pub is_loopback: bool,
    /// MTU of the interface: the largest IP packet in bytes.
    pub link_mtu: usize,
    /// Ethernet address of the interface, if it has one.
    pub mac: Option<MacAddr>,
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.interface)
    }
}

impl LocalAddress {
    /// Returns the address in the syntax of a `udp` device: IPv6 in brackets, link-local with its interface.
    #[must_use]
    pub fn with_zone(&self) -> String {
        match self.address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                format!("[{address}%{}]", self.interface)
            }
            IpAddr::V6(address) => format!("[{address}]"),
        }
    }
}

/// Returns the rank of an address among those of its interface. The addresses that users usually mean come
/// first.
#[must_use]
pub const fn gid_order(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    }
}

/// Returns all addresses of interfaces that are up, in the order of the kernel: IPv4 before IPv6.
///
/// # Errors
///
/// Returns an error if the kernel does not answer.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut netlink = Netlink::open()?;
    let interfaces = netlink.interfaces()?;
    let addresses = netlink.addresses()?;
    let local = |found: InterfaceAddress| {
        let interface = interfaces.iter().find(|it| it.index == found.interface && it.is_up)?;
        Some(LocalAddress {
            address: found.address,
            interface: interface.name.clone(),
            index: interface.index,
            is_loopback: interface.is_loopback,
            link_mtu: interface.mtu,
            mac: interface.mac,
        })
    };
    Ok(addresses.into_iter().filter_map(local).collect())
}

/// Returns the names and Ethernet addresses of the interfaces that are up.
///
/// # Errors
///
/// Returns an error if the kernel does not answer.
pub fn ethernet_interfaces() -> io::Result<Vec<(String, MacAddr)>> {
    let interfaces = Netlink::open()?.interfaces()?;
    let up = interfaces.into_iter().filter(|interface| interface.is_up);
    Ok(up.filter_map(|interface| Some((interface.name, interface.mac?))).collect())
}

/// Returns the interfaces with `address`, or only the one with the name or number `zone`. A loopback
/// interface receives for all of 127.0.0.0/8.
#[must_use]
pub fn interfaces_of(address: IpAddr, zone: Option<&str>) -> Vec<LocalAddress> {
    let all = local_addresses().unwrap_or_default();
    let is_in_zone = |local: &&LocalAddress| {
        zone.is_none_or(|zone| local.interface == zone || zone.parse() == Ok(local.index))
    };
    let has_it = |local: &&LocalAddress| local.address == address;
    let exact: Vec<_> = all.iter().filter(has_it).filter(is_in_zone).cloned().collect();
    if !exact.is_empty() || !address.is_loopback() {
        return exact;
    }
    let loopback = all.into_iter().find(|local| local.is_loopback);
    loopback.map(|local| LocalAddress { address, ..local }).into_iter().collect()
}

/// A network interface, up or down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Number assigned by the kernel.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Whether the interface is up.
    pub is_up: bool,
    /// Whether the interface is a loopback interface.
    pub is_loopback: bool,
    /// Ethernet address; `None` if it is missing or all zeros.
    pub mac: Option<MacAddr>,
    /// Largest IP packet in bytes.
    pub mtu: usize,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Index of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// Whether the address may be used. It may not during duplicate address detection, or after that has
    /// found another host with the same address (RFC 4862 section 5.4).
    pub is_usable: bool,
}

impl Netlink {
    /// Returns all interfaces, in the order of the kernel.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not answer.
    pub fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let mut found = Vec::new();
        let request = Request::dump(RTM_GETLINK, &LinkHeader::default());
        self.ask(&request, |answer| found.extend(interface(answer)))?;
        Ok(found)
    }

    /// Returns the addresses of all interfaces, in the order of the kernel.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not answer.
    pub fn addresses(&mut self) -> io::Result<Vec<InterfaceAddress>> {
        let mut found = Vec::new();
        let request = Request::dump(RTM_GETADDR, &AddressHeader::default());
        self.ask(&request, |answer| found.extend(interface_address(answer)))?;
        Ok(found)
    }
}

/// `struct ifinfomsg`.
#[derive(Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct LinkHeader {
    _family: u16,
    _hardware: u16,
    index: u32,
    flags: u32,
    _changed: u32,
}

/// `struct ifaddrmsg`.
#[derive(Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct AddressHeader {
    _family: u8,
    _prefix_len: u8,
    /// The lower eight flags; `IFA_FLAGS` contains all.
    flags: u8,
    _scope: u8,
    interface: u32,
}

fn interface(answer: &Answer<'_>) -> Option<Interface> {
    let (header, attributes) = answer.parse::<LinkHeader>(RTM_NEWLINK)?;
    let (mut name, mut mac, mut mtu) = (None, None, None);
    for (kind, value) in attributes {
        match kind {
            IFLA_IFNAME => name = value.split(|byte| *byte == 0).next(),
            IFLA_ADDRESS => mac = value.try_into().map(MacAddr).ok(),
            IFLA_MTU => mtu = number(value),
            _ => {}
        }
    }
    Some(Interface {
        index: header.index,
        name: String::from_utf8_lossy(name?).into_owned(),
        is_up: header.flags & IFF_UP != 0,
        is_loopback: header.flags & IFF_LOOPBACK != 0,
        mac: mac.filter(|mac| *mac != MacAddr::ZERO),
        mtu: mtu? as usize,
    })
}

fn interface_address(answer: &Answer<'_>) -> Option<InterfaceAddress> {
    let (header, attributes) = answer.parse::<AddressHeader>(RTM_NEWADDR)?;
    let mut flags = header.flags.into();
    let (mut local, mut other) = (None, None);
    for (kind, value) in attributes {
        match kind {
            // On a point-to-point link, `IFA_ADDRESS` is the address of the peer.
            IFA_LOCAL => local = address(value),
            IFA_ADDRESS => other = address(value),
            IFA_FLAGS => flags = number(value).unwrap_or(flags),
            _ => {}
        }
    }
    let is_tentative = flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
    let is_usable = !is_tentative && flags & IFA_F_DADFAILED == 0;
    Some(InterfaceAddress { interface: header.interface, address: local.or(other)?, is_usable })
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use roce_testing::in_own_network;
    use std::net::Ipv4Addr;

    fn displayed() -> Vec<String> {
        local_addresses().unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn loopback_is_found_and_has_a_link() {
        let all = local_addresses().unwrap();
        let loopback = all.iter().find(|local| local.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(loopback.is_loopback && loopback.link_mtu >= 1280);
        assert_ne!(loopback.index, 0);
        assert_eq!(loopback.to_string(), format!("127.0.0.1 ({})", loopback.interface));
    }

    #[test]
    fn loopback_interfaces_have_the_whole_of_127() {
        let found = interfaces_of("127.8.9.10".parse().unwrap(), None).remove(0);
        assert!(found.is_loopback && found.address == IpAddr::from([127, 8, 9, 10]));
        assert_eq!(interfaces_of("203.0.113.77".parse().unwrap(), None), []);
    }

    /// An address with a label (`ip address add … label v0:1`) belongs to the interface, not to its label.
    #[test]
    fn a_labelled_address_belongs_to_its_interface() {
        let lines = [
            "link add v0 type veth peer name v1",
            "address add 198.18.0.1/24 dev v0 label v0:1",
            "link set v0 up",
        ];
        in_own_network(&lines, || assert!(displayed().contains(&"198.18.0.1 (v0)".to_owned())));
    }

    #[test]
    fn addresses_come_with_interface_zone_and_mtu() {
        let lines = [
            "link add v0 type veth peer name v1",
            "link set v0 mtu 4200 address 02:00:00:00:00:07 up",
            "link set v1 up",
            "address add 2001:db8::1/64 dev v0 nodad",
            "address add 198.18.0.1 peer 198.18.0.2/32 dev v0",
            "address add 198.18.9.1/24 dev lo",
        ];
        in_own_network(&lines, || {
            // `lo` is down.
            assert_eq!(displayed()[0], "198.18.0.1 (v0)");
            let all = local_addresses().unwrap();
            let zone = |address: &str| {
                let address: IpAddr = address.parse().unwrap();
                all.iter().find(|it| it.address == address).map(|it| (it.index, it.link_mtu, it.is_loopback))
            };
            let interfaces = Netlink::open().unwrap().interfaces().unwrap();
            let names: Vec<&str> = interfaces.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(names, ["lo", "v1", "v0"]);
            let expected = Some((interfaces[2].index, 4200, false));
            assert_eq!([zone("198.18.0.1"), zone("2001:db8::1"), zone("fe80::ff:fe00:7")], [expected; 3]);
            assert_eq!((zone("198.18.9.1"), zone("198.18.0.2")), (None, None));
            assert_eq!(interfaces[2].mac, Some(MacAddr([2, 0, 0, 0, 0, 7])));
            assert_eq!(
                (interfaces[0].mac, interfaces[0].is_up, interfaces[0].is_loopback),
                (None, false, true)
            );
        });
    }
}
