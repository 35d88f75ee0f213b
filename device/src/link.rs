//! The properties of one Ethernet interface.

use std::ffi::c_ulong;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use roce_machine::interfaces::{Interface, LocalAddress, local_addresses};
use roce_machine::netlink::Netlink;
use roce_packet::MacAddr;

use super::framed::port::PortRecord;
use super::ifreq::{ask, request_for};
use super::{Availability, OpenError};

/// Time in nanoseconds in which the kernel should have room for frames again.
pub(crate) const RETRY_NS: u64 = 50_000;
/// Interval in nanoseconds between checks whether the interface is up again.
pub(crate) const DOWN_NS: u64 = 10_000_000;

/// An Ethernet interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    /// The interface index.
    pub(crate) index: u32,
    pub(crate) mac: MacAddr,
    /// The largest IP packet in bytes.
    pub(crate) mtu: usize,
    /// Bits per second, if the driver reports it.
    pub(crate) bits_per_second: Option<u64>,
    /// The driver's name, or empty if it has no name.
    pub(crate) driver: String,
    /// The number of receive queues, if the driver reports it.
    pub(crate) rx_queues: Option<u32>,
    /// The number of transmit queues, if the driver reports it.
    pub(crate) tx_queues: Option<u32>,
}

impl Link {
    /// Finds an interface by its name. `spec` is the user's text, for errors.
    pub(crate) fn find(spec: &str, name: &str) -> Result<Self, OpenError> {
        let all = interfaces().map_err(OpenError::at(spec, "list the interfaces"))?;
        let Some(found) = all.iter().find(|interface| interface.name == name) else {
            let known = listed(&all);
            return Err(OpenError::NoInterface { spec: spec.to_owned(), interface: name.to_owned(), known });
        };
        let unsuitable = |problem| OpenError::Unsuitable { spec: spec.to_owned(), problem };
        if found.is_loopback {
            let instead = "use udp:127.0.0.1 and udp:127.0.0.2 between programs of one machine";
            return Err(unsuitable(format!("{name} is a loopback interface without Ethernet; {instead}")));
        }
        let Some(mac) = found.mac else {
            return Err(unsuitable(format!("{name} has no Ethernet address; use {}", listed(&all))));
        };
        if !found.is_up {
            return Err(unsuitable(format!("{name} is down; bring it up with `ip link set dev {name} up`")));
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .map_err(OpenError::at(spec, "open a socket for ethtool requests"))?;
        let (rx_queues, tx_queues) = queues(&socket, name);
        Ok(Self {
            name: name.to_owned(),
            index: found.index,
            mac,
            mtu: found.mtu,
            bits_per_second: speed(&socket, name),
            driver: driver(&socket, name).unwrap_or_default(),
            rx_queues,
            tx_queues,
        })
    }

    /// Returns the record of a port on this interface.
    pub(crate) fn record(&self, kind: &'static str, max_segments: u16) -> PortRecord {
        PortRecord {
            kind,
            interface: self.name.clone(),
            mac: self.mac,
            link_mtu: self.mtu,
            max_segments,
            bits_per_second: self.bits_per_second,
        }
    }
}

fn interfaces() -> io::Result<Vec<Interface>> {
    Netlink::open()?.interfaces()
}

/// Returns whether frames can be sent on an interface once it is up.
const fn is_ethernet(interface: &Interface) -> bool {
    !interface.is_loopback && interface.mac.is_some()
}

/// Returns the addresses of Ethernet interfaces that are up.
pub(crate) fn usable_addresses() -> Availability {
    let mut interfaces = interfaces().unwrap_or_default();
    interfaces.retain(is_ethernet);
    let mut addresses: Vec<LocalAddress> = local_addresses().unwrap_or_default();
    addresses.retain(|local| interfaces.iter().any(|interface| interface.index == local.index));
    if addresses.is_empty() {
        return Availability::Lacks("an Ethernet interface that is up and has an address".to_owned());
    }
    Availability::Usable(addresses)
}

/// Returns the names of Ethernet interfaces, for an error.
fn listed(all: &[Interface]) -> String {
    let usable = all.iter().filter(|interface| is_ethernet(interface));
    let names: Vec<&str> = usable.map(|interface| interface.name.as_str()).collect();
    if names.is_empty() { "none with an Ethernet address".to_owned() } else { names.join(", ") }
}

/// Returns the rate in bits per second.
fn speed(socket: &UdpSocket, name: &str) -> Option<u64> {
    // SAFETY: the structure has the layout that the kernel gives to this request.
    let settings =
        unsafe { ethtool(socket, name, Settings { command: GET_SETTINGS, ..Settings::default() }) }?;
    let megabits = u32::from(settings.speed) | u32::from(settings.speed_high) << 16;
    // All ones, or the lower half in old drivers, means unknown.
    let is_known = megabits != 0 && megabits != u32::MAX && megabits != u32::from(u16::MAX);
    is_known.then(|| u64::from(megabits) * 1_000_000)
}

fn driver(socket: &UdpSocket, name: &str) -> Option<String> {
    // SAFETY: the structure has the layout that the kernel gives to this request.
    let info = unsafe { ethtool(socket, name, DriverInfo { command: GET_DRIVER, ..DriverInfo::default() }) }?;
    let text = info.driver.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Returns the numbers of receive queues and of transmit queues.
fn queues(socket: &UdpSocket, name: &str) -> (Option<u32>, Option<u32>) {
    let request = Channels { command: GET_CHANNELS, ..Channels::default() };
    // SAFETY: the structure has the layout that the kernel gives to this request.
    let Some(found) = (unsafe { ethtool(socket, name, request) }) else { return (None, None) };
    let count = |own: u32| Some(own.saturating_add(found.combined)).filter(|count| *count > 0);
    (count(found.rx), count(found.tx))
}

/// Sends an ethtool request to the driver of an interface; `None` if it fails.
///
/// # Safety
///
/// `T` must be the structure that the kernel reads and writes for the command at its beginning.
unsafe fn ethtool<T>(socket: &UdpSocket, name: &str, mut answer: T) -> Option<T> {
    let mut request = request_for(name).ok()?;
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: the request points to `answer`, which outlives the call and whose type the caller guarantees.
    unsafe { ask(socket, SIOCETHTOOL, &mut request) }.ok()?;
    Some(answer)
}

/// `struct ethtool_cmd`.
#[derive(Default)]
#[repr(C)]
struct Settings {
    command: u32,
    _supported: [u32; 2],
    speed: u16,
    _port: [u8; 6],
    _packets: [u32; 2],
    speed_high: u16,
    _wires: [u8; 2],
    _rest: [u32; 3],
}
const _: () = assert!(size_of::<Settings>() == 44);

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    _rest: [u8; 160],
}
const _: () = assert!(size_of::<DriverInfo>() == 196);

impl Default for DriverInfo {
    fn default() -> Self {
        Self { command: 0, driver: [0; 32], _rest: [0; 160] }
    }
}

/// `struct ethtool_channels`.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    _max: [u32; 4],
    rx: u32,
    tx: u32,
    _other: u32,
    combined: u32,
}
const _: () = assert!(size_of::<Channels>() == 36);

const SIOCETHTOOL: c_ulong = 0x8946;
const GET_SETTINGS: u32 = 0x01;
const GET_DRIVER: u32 = 0x03;
const GET_CHANNELS: u32 = 0x3c;

#[cfg(test)]
mod tests {
    use super::*;
    use roce_testing::in_own_network;

    #[test]
    fn a_veth_is_described() {
        in_own_network(
            &[
                "link add v0 type veth peer name v1",
                "link set v0 address 02:00:00:00:00:07 mtu 4200 up",
                "link set v1 mtu 4200",
                "address add 198.18.0.1/24 dev v0",
                "address add 198.18.1.1/24 dev v1",
                "link set lo up",
            ],
            || {
                let link = Link::find("raw:v0", "v0").unwrap();
                assert_eq!((link.mac, link.mtu), (MacAddr([2, 0, 0, 0, 0, 7]), 4200));
                assert_eq!((link.driver.as_str(), link.bits_per_second), ("veth", Some(10_000_000_000)));
                assert!([link.rx_queues, link.tx_queues].iter().all(|it| it.is_some_and(|count| count >= 1)));
                for (name, parts) in [
                    ("v1", ["v1 is down", "ip link set dev v1 up"]),
                    ("lo", ["loopback interface without Ethernet", "udp:127.0.0.1"]),
                    ("v7", ["no interface `v7`", "has v1, v0"]),
                ] {
                    let error = Link::find("raw:x", name).unwrap_err().to_string();
                    for part in parts {
                        assert!(error.contains(part), "{name}: {error}");
                    }
                }
                let Availability::Usable(addresses) = usable_addresses() else { panic!("v0 has an address") };
                let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                assert_eq!(names, ["198.18.0.1 (v0)"]);
            },
        );
    }
}
