//! Opening devices by name, and listing the kinds that work on this machine.

use std::fmt;
use std::net::Ipv4Addr;

#[cfg(feature = "fault")]
use roce_fault::FaultInjector;
#[cfg(feature = "udp")]
use roce_machine::interfaces::local_addresses;
use roce_machine::interfaces::{LocalAddress, gid_order};
#[cfg(feature = "udp")]
use roce_packet::ROCE_UDP_PORT;

#[cfg(feature = "fault")]
use super::fault::FaultDevice;
#[cfg(any(feature = "tap", feature = "xdp", feature = "raw", feature = "pnet"))]
use super::framed::FramedDevice;
#[cfg(feature = "capture")]
use super::pcap::{FrameSink, PcapDevice};
#[cfg(feature = "pnet")]
use super::pnet;
#[cfg(feature = "raw")]
use super::raw::{self, RawSpec};
#[cfg(feature = "tap")]
use super::tap::{self, TapSpec};
#[cfg(feature = "udp")]
use super::udp::{UdpDevice, UdpSpec, bind_problem};
#[cfg(feature = "xdp")]
use super::xdp::{self, XdpSpec};
use super::{Availability, Device, OpenError};

/// The features of this crate in this build that bring a device, a wrapper or another backend.
pub const FEATURES: &[&str] = &[
    #[cfg(feature = "capture")]
    "capture",
    #[cfg(feature = "fault")]
    "fault",
    #[cfg(feature = "pnet")]
    "pnet",
    #[cfg(feature = "raw")]
    "raw",
    #[cfg(feature = "tap")]
    "tap",
    #[cfg(feature = "udp")]
    "udp",
    #[cfg(feature = "xdp")]
    "xdp",
    #[cfg(feature = "xsk-rs")]
    "xsk-rs",
];

/// Wrappers to put around a device.
#[derive(Default)]
pub struct OpenOptions {
    /// Faults for datagrams on their way out.
    #[cfg(feature = "fault")]
    pub transmit_faults: Option<FaultInjector>,
    /// Faults for datagrams on their way in.
    #[cfg(feature = "fault")]
    pub receive_faults: Option<FaultInjector>,
    /// Gets a frame for every datagram that crosses the wire: after faults on the way out and before faults
    /// on the way in.
    #[cfg(feature = "capture")]
    pub capture: Option<Box<dyn FrameSink>>,
}

impl OpenOptions {
    /// Returns whether no wrapper is requested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        #[cfg(feature = "fault")]
        if self.transmit_faults.is_some() || self.receive_faults.is_some() {
            return false;
        }
        #[cfg(feature = "capture")]
        if self.capture.is_some() {
            return false;
        }
        true
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("OpenOptions");
        #[cfg(feature = "fault")]
        debug.field("transmit_faults", &self.transmit_faults).field("receive_faults", &self.receive_faults);
        #[cfg(feature = "capture")]
        debug.field("capture", &self.capture.is_some());
        debug.finish()
    }
}

/// Opens the device that `spec` names, for example `udp:192.0.2.1`, and wraps it as `options` say.
///
/// [`kinds`] returns the kinds. The documentation of the specification of each kind describes its syntax:
/// `udp::UdpSpec`, `tap::TapSpec`, `xdp::XdpSpec` and `raw::RawSpec`. `pnet` has the form
/// `pnet:INTERFACE[,prio=NUMBER]`.
///
/// ```
/// use roce_device::OpenOptions;
///
/// let device = roce_device::open("udp:127.0.0.1,port=0", OpenOptions::default())?;
/// assert_eq!(device.capabilities().kind, "udp");
/// # Ok::<(), roce_device::OpenError>(())
/// ```
///
/// # Errors
///
/// Fails if the specification is invalid, or if the machine does not allow what it requests.
pub fn open(spec: &str, options: OpenOptions) -> Result<Box<dyn Device>, OpenError> {
    Ok(wrap(open_kind(spec)?, options))
}

fn open_kind(spec: &str) -> Result<Box<dyn Device>, OpenError> {
    match spec.split(':').next().unwrap_or_default() {
        #[cfg(feature = "udp")]
        "udp" => Ok(Box::new(UdpDevice::open(&spec.parse::<UdpSpec>()?)?)),
        "memory" => Err(OpenError::MemoryIsAPair { spec: spec.to_owned() }),
        #[cfg(feature = "tap")]
        "tap" => {
            let spec: TapSpec = spec.parse()?;
            let (port, host) = tap::open(&spec)?;
            Ok(Box::new(FramedDevice::new(Box::new(port), Box::new(host), spec.frames)))
        }
        #[cfg(feature = "xdp")]
        "xdp" => {
            let spec: XdpSpec = spec.parse()?;
            let (port, host) = xdp::open(&spec)?;
            Ok(Box::new(FramedDevice::new(port, Box::new(host), spec.settings)))
        }
        #[cfg(feature = "raw")]
        "raw" => {
            let spec: RawSpec = spec.parse()?;
            let (port, host) = raw::open(&spec)?;
            Ok(Box::new(FramedDevice::new(Box::new(port), Box::new(host), spec.settings)))
        }
        #[cfg(feature = "pnet")]
        "pnet" => {
            let (port, host, settings) = pnet::open(spec)?;
            Ok(Box::new(FramedDevice::new(Box::new(port), Box::new(host), settings)))
        }
        kind => Err(unavailable(spec, kind)),
    }
}

/// Returns the error for a kind that this build does not have.
pub(crate) fn unavailable(spec: &str, kind: &str) -> OpenError {
    let (spec, is_known) = (spec.to_owned(), ["udp", "tap", "xdp", "raw", "pnet"].contains(&kind));
    let kind = kind.to_owned();
    if is_known { OpenError::NotBuilt { spec, kind } } else { OpenError::UnknownKind { spec, kind } }
}

/// Puts the wrappers of `options` around a device: faults outside, a capture inside.
#[must_use]
pub fn wrap(device: Box<dyn Device>, options: OpenOptions) -> Box<dyn Device> {
    let OpenOptions {
        #[cfg(feature = "fault")]
        transmit_faults,
        #[cfg(feature = "fault")]
        receive_faults,
        #[cfg(feature = "capture")]
        capture,
    } = options;
    #[cfg(all(feature = "capture", feature = "fault"))]
    let mut drops = None;
    #[cfg(feature = "capture")]
    let device: Box<dyn Device> = match capture {
        Some(sink) => {
            let device = PcapDevice::new(device, sink);
            #[cfg(feature = "fault")]
            {
                drops = Some(device.drop_recorder());
            }
            Box::new(device)
        }
        None => device,
    };
    #[cfg(feature = "fault")]
    let device: Box<dyn Device> = match (transmit_faults, receive_faults) {
        (None, None) => device,
        (transmit, receive) => {
            let device = FaultDevice::new(device, transmit, receive);
            #[cfg(feature = "capture")]
            let device = match drops {
                Some(drops) => device.with_drop_recorder(drops),
                None => device,
            };
            Box::new(device)
        }
    };
    device
}

/// One kind of device, for `roce devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The word before the colon.
    pub name: &'static str,
    /// A description in a few words.
    pub summary: &'static str,
    /// A specification that opens one.
    pub example: String,
    /// Whether this user can open it on this machine.
    pub availability: Availability,
}

/// A device that can be opened, for `roce devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    /// The specification that opens it.
    pub spec: String,
    /// Its addresses in GID table order; at least one, and all on one interface.
    pub addresses: Vec<LocalAddress>,
}

impl Kind {
    /// Returns the devices of this kind on this machine's interfaces. `udp` has one for each address; `xdp`,
    /// `raw` and `pnet` have one for each interface, with all its addresses.
    #[must_use]
    pub fn devices(&self) -> Vec<ListedDevice> {
        let Availability::Usable(addresses) = &self.availability else { return Vec::new() };
        let mut devices: Vec<ListedDevice> = Vec::new();
        for address in addresses {
            let spec = if self.name == "udp" {
                format!("udp:{}", address.with_zone())
            } else {
                format!("{}:{}", self.name, address.interface)
            };
            match devices.iter_mut().find(|device| device.spec == spec) {
                Some(device) => device.addresses.push(address.clone()),
                None => devices.push(ListedDevice { spec, addresses: vec![address.clone()] }),
            }
        }
        for device in &mut devices {
            device.addresses.sort_by_key(|local| gid_order(local.address));
        }
        devices
    }
}

/// Returns all kinds of devices. Opens and closes sockets to find out which work, and sends nothing.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    let udp = udp_availability();
    let address = match &udp {
        // Prefer an address that other machines can reach.
        Availability::Usable(addresses) => {
            addresses.iter().find(|local| !local.is_loopback).or(addresses.first())
        }
        Availability::Lacks(_) => None,
    };
    let interface = address.map_or("eth0", |local| &local.interface).to_owned();
    let address = address.map_or_else(|| Ipv4Addr::LOCALHOST.to_string(), LocalAddress::with_zone);
    vec![
        Kind {
            name: "udp",
            summary: "a UDP socket; needs no privilege",
            example: format!("udp:{address}"),
            availability: udp,
        },
        Kind {
            name: "memory",
            summary: "two devices joined inside one program; from code only",
            example: "roce::device::memory::MemoryDevice::pair".to_owned(),
            availability: Availability::Usable(Vec::new()),
        },
        Kind {
            name: "tap",
            summary: "a virtual Ethernet interface with a host of its own",
            example: "tap:roce0,ip=198.18.0.2/24".to_owned(),
            availability: tap_availability(),
        },
        Kind {
            name: "xdp",
            summary: "AF_XDP rings on an interface that the kernel uses too",
            example: format!("xdp:{interface}"),
            availability: xdp_availability(),
        },
        Kind {
            name: "raw",
            summary: "a packet socket on an interface that the kernel uses too",
            example: format!("raw:{interface}"),
            availability: raw_availability(),
        },
        Kind {
            name: "pnet",
            summary: "like raw, for systems without packet sockets",
            example: format!("pnet:{interface}"),
            availability: pnet_availability(),
        },
    ]
}

#[cfg(feature = "tap")]
use tap::availability as tap_availability;
#[cfg(not(feature = "tap"))]
fn tap_availability() -> Availability {
    not_built("tap")
}

#[cfg(feature = "xdp")]
use xdp::availability as xdp_availability;
#[cfg(not(feature = "xdp"))]
fn xdp_availability() -> Availability {
    not_built("xdp")
}

#[cfg(feature = "raw")]
use raw::availability as raw_availability;
#[cfg(not(feature = "raw"))]
fn raw_availability() -> Availability {
    not_built("raw")
}

#[cfg(feature = "pnet")]
use pnet::availability as pnet_availability;
#[cfg(not(feature = "pnet"))]
fn pnet_availability() -> Availability {
    not_built("pnet")
}

#[cfg(not(feature = "udp"))]
fn udp_availability() -> Availability {
    not_built("udp")
}

#[cfg(not(all(feature = "udp", feature = "tap", feature = "xdp", feature = "raw", feature = "pnet")))]
fn not_built(kind: &str) -> Availability {
    Availability::Lacks(format!("a build with the cargo feature `{kind}`"))
}

#[cfg(feature = "udp")]
fn udp_availability() -> Availability {
    let local = match local_addresses() {
        Ok(local) => local,
        Err(error) => return Availability::Lacks(format!("the list of addresses: {error}")),
    };
    let mut problem = None;
    let mut usable = Vec::new();
    for address in local {
        match bind_problem(&address, ROCE_UDP_PORT) {
            None => usable.push(address),
            Some(error) => problem = Some(format!("UDP port {ROCE_UDP_PORT} on {address}: {error}")),
        }
    }
    match problem {
        Some(problem) if usable.is_empty() => Availability::Lacks(problem),
        None if usable.is_empty() => {
            Availability::Lacks("an interface with an address that is up".to_owned())
        }
        _ => Availability::Usable(usable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refusal(spec: &str) -> String {
        match open(spec, OpenOptions::default()) {
            Ok(_) => panic!("{spec} was opened"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn errors_say_what_to_do_next() {
        for (spec, parts) in [
            ("", ["`` is not a kind of device", "udp:127.0.0.1"]),
            ("upd:127.0.0.1", ["`upd` is not a kind of device", "roce devices"]),
            ("xdp:nosuch0", ["there is no interface `nosuch0`", "this machine has"]),
            ("raw:nosuch0", ["there is no interface `nosuch0`", "this machine has"]),
            ("raw:lo,vlan=0", ["`vlan=0`", "from 1 to 4094"]),
            #[cfg(feature = "pnet")]
            ("pnet:nosuch0", ["there is no interface `nosuch0`", "this machine has"]),
            #[cfg(not(feature = "pnet"))]
            ("pnet:eth0", ["was built without `pnet` devices", "cargo build --release --features pnet"]),
            ("memory", ["MemoryDevice::pair", "udp:127.0.0.2"]),
            ("tap:roce0", ["expected an address behind the name", "tap:roce0,ip=198.18.0.2/24"]),
            ("udp", ["device `udp`", "expected an address"]),
            ("udp:somewhere", ["`somewhere`", "expected an address"]),
            ("udp:127.0.0.1,mtu=5", ["`mtu=5`", "expected port=NUMBER"]),
            ("udp:127.0.0.1,port=70000", ["`port=70000`", "0 to 65535"]),
            ("udp:0.0.0.0", ["choose one", "127.0.0.1 (lo"]),
            ("udp:[::]", ["stands for every address", "127.0.0.1 (lo"]),
            ("udp:203.0.113.77", ["does not have the address 203.0.113.77", "127.0.0.1 (lo"]),
            ("udp:224.0.0.1", ["`224.0.0.1`", "expected an address"]),
        ] {
            let error = refusal(spec);
            for part in parts {
                assert!(error.contains(part), "`{spec}` gave: {error}");
            }
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = refusal(&format!("udp:127.0.0.1,port={port}"));
        assert!(error.contains(&format!("UDP port {port} of 127.0.0.1 is taken")), "{error}");
    }

    #[test]
    fn every_kind_is_listed() {
        let kinds = kinds();
        let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
        assert_eq!(names, ["udp", "memory", "tap", "xdp", "raw", "pnet"]);
    }
}
