//! How a UDP device is named.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use roce_packet::ROCE_UDP_PORT;

use crate::OpenError;
use crate::spec::{SpecOption, SpecText};

/// Which socket to open, read from text such as `udp:192.0.2.1` or `udp:[2001:db8::1],port=14791`.
///
/// ```text
/// "udp:" address *( "," option )
/// option = "port=" NUMBER       the local port; 0 lets the system choose one. 4791 if not given
///        | "peer_port=" NUMBER  the port to send to; the local one if not given
///        | "gso=" ( "on" | "off" )   joins datagrams for the kernel, on if it can
///        | "gro=" ( "on" | "off" )   takes joined datagrams from the kernel, on if it can
///        | "buffer=" BYTES      size of the kernel's queues, as far as it allows; 16 MiB if not given
/// ```
///
/// Any port but 4791 is for tests between programs of this project: the checksum of a packet covers the
/// port, and it is always computed for 4791.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSpec {
    /// The address to send from and receive for; never one that stands for all.
    pub address: IpAddr,
    /// The port to receive on, 0 for any.
    pub port: u16,
    /// The port to send to, if it is not the same.
    pub peer_port: Option<u16>,
    /// Whether to use segmentation offload.
    pub gso: bool,
    /// Whether to use receive offload.
    pub gro: bool,
    /// Bytes to ask of the kernel for each of its two queues.
    pub buffer_bytes: usize,
}

impl UdpSpec {
    /// The socket that a RoCE device normally has.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address,
            port: ROCE_UDP_PORT,
            peer_port: None,
            gso: true,
            gro: true,
            buffer_bytes: BUFFER_BYTES,
        }
    }
}

impl fmt::Display for UdpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "udp:{address}")?,
            IpAddr::V6(address) => write!(f, "udp:[{address}]")?,
        }
        if self.port != ROCE_UDP_PORT {
            write!(f, ",port={}", self.port)?;
        }
        if let Some(port) = self.peer_port {
            write!(f, ",peer_port={port}")?;
        }
        for (name, on) in [("gso", self.gso), ("gro", self.gro)] {
            if !on {
                write!(f, ",{name}=off")?;
            }
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
        let parsed = bare.parse::<IpAddr>().ok().filter(|address| !address.is_multicast());
        let mut spec = Self::new(parsed.ok_or_else(|| text.bad(address, ADDRESS))?);
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
                "buffer" => {
                    spec.buffer_bytes = value.parse().map_err(|_| text.bad(whole, "a number of bytes"))?;
                }
                _ => return Err(text.bad(whole, OPTIONS)),
            }
        }
        Ok(spec)
    }
}

/// More than a window of 64 Gb/s for a millisecond, twice.
const BUFFER_BYTES: usize = 16 << 20;
const ADDRESS: &str = "an address of this machine such as 127.0.0.1 or [::1]";
const OPTIONS: &str = "port=NUMBER, peer_port=NUMBER, gso=on|off, gro=on|off or buffer=BYTES";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::check_spec;

    #[test]
    fn what_is_written_is_read_back() {
        check_spec::<UdpSpec>(&[
            ("udp:127.0.0.1", "udp:127.0.0.1"),
            ("udp:127.0.0.1,port=4791", "udp:127.0.0.1"),
            ("udp:[::1]", "udp:[::1]"),
            ("udp:::1", "udp:[::1]"),
            ("udp:127.0.0.1, port=9,peer_port=10", "udp:127.0.0.1,port=9,peer_port=10"),
            ("udp:127.0.0.1,gso=off,gro=off,buffer=65536", "udp:127.0.0.1,gso=off,gro=off,buffer=65536"),
            ("udp:127.0.0.1,gso=on", "udp:127.0.0.1"),
        ]);
    }

    #[test]
    fn the_usual_port_is_the_one_of_roce() {
        let spec: UdpSpec = "udp:127.0.0.1".parse().unwrap();
        assert_eq!((spec.port, spec.peer_port), (4791, None));
    }
}
