//! The specification of a UDP device.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use roce_packet::ROCE_UDP_PORT;

use crate::OpenError;
use crate::spec::{SpecOption, SpecText};

/// Specification of a socket, parsed from text such as `udp:192.0.2.1` or `udp:[2001:db8::1],port=14791`.
///
/// ```text
/// "udp:" address *( "," option )
/// address = IPV4 | [ "[" ] IPV6 [ "%" zone ] [ "]" ]   a zone only with a link-local address
/// zone   = INTERFACE | NUMBER   needed where several interfaces have the same link-local address
/// option = "port=" NUMBER       the local port; 0 lets the system choose one. 4791 if not given
///        | "peer_port=" NUMBER  the port to send to; the local one if not given
///        | "gso=" ( "on" | "off" )   joins datagrams for the kernel, on if it can
///        | "gro=" ( "on" | "off" )   takes joined datagrams from the kernel, on if it can
///        | "share=" ( "on" | "off" )   shares the address with other devices, also of other processes, on if it can
///        | "source_ports=" NUMBER   sockets for other source ports, 0 to 1024; 64 if not given
///        | "buffer=" BYTES      size of the kernel's queues, as far as it allows; 16 MiB if not given
/// ```
///
/// Ports other than 4791 are for tests between programs of this project: the checksum of a packet covers the
/// port, and it is always computed for 4791.
///
/// Each queue pair has its own source port, so a network with equal paths uses all of them. With
/// `source_ports=0`, all packets leave from the local port: those for one peer share superpackets, which
/// makes small messages on many queue pairs faster, but they take one path.
///
/// Up to 831 devices share an address and a nonzero port; each has its own slot, which is the prefix of its
/// queue pair numbers ([`Capabilities::process_slot`](crate::Capabilities::process_slot)). A program that
/// reads datagrams for any queue pair number, without an engine, needs `share=off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSpec {
    /// The address to send from and receive for; never a wildcard.
    pub address: IpAddr,
    /// The interface of a link-local address, by name or number. `None` selects the one with the address.
    pub zone: Option<String>,
    /// The port to receive on; 0 lets the system choose one.
    pub port: u16,
    /// The port to send to, if it differs from the local port.
    pub peer_port: Option<u16>,
    /// Whether to use segmentation offload.
    pub gso: bool,
    /// Whether to use receive offload.
    pub gro: bool,
    /// Whether to share the address with other devices.
    pub share: bool,
    /// Maximum number of sockets for source ports other than the local one.
    pub source_ports: usize,
    /// Bytes to request from the kernel for each of its two queues.
    pub buffer_bytes: usize,
}

impl UdpSpec {
    /// The usual maximum number of sockets for source ports.
    pub const SOURCE_PORTS: usize = 64;

    /// Returns the usual specification of a RoCE device.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address,
            zone: None,
            port: ROCE_UDP_PORT,
            peer_port: None,
            gso: true,
            gro: true,
            share: true,
            source_ports: Self::SOURCE_PORTS,
            buffer_bytes: BUFFER_BYTES,
        }
    }
}

impl fmt::Display for UdpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, &self.zone) {
            (IpAddr::V4(address), _) => write!(f, "udp:{address}")?,
            (IpAddr::V6(address), None) => write!(f, "udp:[{address}]")?,
            (IpAddr::V6(address), Some(zone)) => write!(f, "udp:[{address}%{zone}]")?,
        }
        if self.port != ROCE_UDP_PORT {
            write!(f, ",port={}", self.port)?;
        }
        if let Some(port) = self.peer_port {
            write!(f, ",peer_port={port}")?;
        }
        for (name, on) in [("gso", self.gso), ("gro", self.gro), ("share", self.share)] {
            if !on {
                write!(f, ",{name}=off")?;
            }
        }
        if self.source_ports != Self::SOURCE_PORTS {
            write!(f, ",source_ports={}", self.source_ports)?;
        }
        if self.buffer_bytes != BUFFER_BYTES {
            write!(f, ",buffer={}", self.buffer_bytes)?;
        }
        Ok(())
    }
}

impl FromStr for UdpSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let text = SpecText::new("udp", text);
        let address = text.subject();
        let bare = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(address);
        let (bare, zone) = match bare.split_once('%') {
            Some((bare, zone)) => (bare, Some(zone)),
            None => (bare, None),
        };
        let parsed = bare.parse::<IpAddr>().ok().filter(|address| !address.is_multicast());
        let mut spec = Self::new(parsed.ok_or_else(|| text.bad(address, ADDRESS))?);
        if let Some(zone) = zone {
            if zone.is_empty() || !is_link_local(spec.address) {
                return Err(text.bad(address, ZONE));
            }
            spec.zone = Some(zone.to_owned());
        }
        for option in text.options(OPTIONS) {
            let SpecOption { whole, name, value } = option?;
            let port = || value.parse::<u16>().map_err(|_| text.bad(whole, "a port number from 0 to 65535"));
            let switch = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(text.bad(whole, "on or off")),
            };
            match name {
                "port" => spec.port = port()?,
                "peer_port" => spec.peer_port = Some(port()?),
                "gso" => spec.gso = switch()?,
                "gro" => spec.gro = switch()?,
                "share" => spec.share = switch()?,
                "source_ports" => {
                    let number = value.parse().ok().filter(|number| *number <= 1024);
                    spec.source_ports = number.ok_or_else(|| text.bad(whole, "a number from 0 to 1024"))?;
                }
                "buffer" => {
                    spec.buffer_bytes = value.parse().map_err(|_| text.bad(whole, "a number of bytes"))?;
                }
                _ => return Err(text.bad(whole, OPTIONS)),
            }
        }
        Ok(spec)
    }
}

/// Returns whether an address requires an interface.
pub(super) const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// More than twice the window of 64 Gb/s for a millisecond.
const BUFFER_BYTES: usize = 16 << 20;
const ADDRESS: &str = "an address of this machine such as 127.0.0.1 or [::1]";
const ZONE: &str = "%INTERFACE behind a link-local address, such as fe80::1%eth0, and behind no other";
const OPTIONS: &str = "port=NUMBER, peer_port=NUMBER, gso=on|off, gro=on|off, share=on|off, \
                       source_ports=NUMBER or buffer=BYTES";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{check_spec, check_spec_errors};

    #[test]
    fn what_is_written_is_read_back() {
        check_spec::<UdpSpec>(&[
            ("udp:127.0.0.1", "udp:127.0.0.1"),
            ("udp:127.0.0.1,port=4791", "udp:127.0.0.1"),
            ("udp:[::1]", "udp:[::1]"),
            ("udp:::1", "udp:[::1]"),
            ("udp:127.0.0.1, port=9,peer_port=10", "udp:127.0.0.1,port=9,peer_port=10"),
            ("udp:127.0.0.1,gso=off,gro=off,buffer=65536", "udp:127.0.0.1,gso=off,gro=off,buffer=65536"),
            ("udp:127.0.0.1,gso=on,share=on", "udp:127.0.0.1"),
            ("udp:[::1],share=off,source_ports=0", "udp:[::1],share=off,source_ports=0"),
            ("udp:fe80::1%eth0", "udp:[fe80::1%eth0]"),
            ("udp:[fe80::1%3],port=9", "udp:[fe80::1%3],port=9"),
        ]);
    }

    #[test]
    fn zones_of_other_addresses_and_numbers_out_of_range_are_refused() {
        check_spec_errors::<UdpSpec>(&[
            ("udp:2001:db8::1%eth0", &["`2001:db8::1%eth0`", "%INTERFACE behind a link-local address"]),
            ("udp:[::1],source_ports=1025", &["from 0 to 1024"]),
            ("udp:127.0.0.1%lo", &["behind no other"]),
            ("udp:fe80::1%", &["such as fe80::1%eth0"]),
        ]);
    }
}
