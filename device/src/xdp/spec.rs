//! The specification of an AF_XDP socket.

use std::fmt;
use std::str::FromStr;

use crate::OpenError;
use crate::framed::FrameSettings;
use crate::spec::{SpecOption, SpecText};

/// Specification of a queue, parsed from text such as `xdp:eth0` or `xdp:eth0,queue=3,mode=native`.
///
/// ```text
/// "xdp:" interface *( "," option )
/// option = "queue=" NUMBER   the receive queue; 0 if not given
///        | "mode=" ( "native" | "generic" | "auto" )   where the program runs; auto if not given
///        | "backend=" ( "own" | "libxdp" )   whose rings and program; own if not given, see [`XdpBackend`]
///        | "vlan=" NUMBER    the VLAN of all frames, 1 to 4094; without it they have no tag
///        | "prio=" NUMBER    the priority in their tag, 0 to 7; without it, that of their DSCP
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpSpec {
    /// The name of the interface.
    pub interface: String,
    /// The receive queue.
    pub queue: u32,
    /// Where the XDP program runs.
    pub mode: XdpMode,
    /// The provider of rings and program.
    pub backend: XdpBackend,
    /// The 802.1Q tag of frames.
    pub settings: FrameSettings,
}

/// Where the XDP program runs that selects RoCE frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel allocates a packet.
    Native,
    /// Behind the driver; works with every interface.
    Generic,
    /// In the driver if possible, except on virtual cables (veth), where running behind it is faster.
    #[default]
    Auto,
}

/// The implementation that moves the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpBackend {
    /// This crate's implementation: needs no C library, and exclusive use of the interface.
    #[default]
    Own,
    /// The C library libxdp, which can share the interface with other XDP programs. Requires this crate's
    /// feature `xsk-rs`.
    Libxdp,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Auto => "auto",
        })
    }
}

impl fmt::Display for XdpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xdp:{}", self.interface)?;
        if self.queue != 0 {
            write!(f, ",queue={}", self.queue)?;
        }
        if self.mode != XdpMode::Auto {
            write!(f, ",mode={}", self.mode)?;
        }
        if self.backend == XdpBackend::Libxdp {
            f.write_str(",backend=libxdp")?;
        }
        write!(f, "{}", self.settings)
    }
}

impl FromStr for XdpSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let text = SpecText::new("xdp", text);
        let interface = text.interface(INTERFACE)?;
        let (mut queue, mut mode, mut backend) = (0, XdpMode::Auto, XdpBackend::Own);
        let mut settings = FrameSettings::default();
        for option in text.options(OPTIONS) {
            let SpecOption { whole, name, value } = option?;
            match (name, value) {
                ("queue", _) => {
                    queue = value.parse().map_err(|_| text.bad(whole, "the number of a queue"))?;
                }
                ("mode", "native") => mode = XdpMode::Native,
                ("mode", "generic") => mode = XdpMode::Generic,
                ("mode", "auto") => mode = XdpMode::Auto,
                ("mode", _) => return Err(text.bad(whole, "mode=native, mode=generic or mode=auto")),
                ("backend", "own") => backend = XdpBackend::Own,
                ("backend", "libxdp") => backend = XdpBackend::Libxdp,
                ("backend", _) => return Err(text.bad(whole, "backend=own or backend=libxdp")),
                _ => settings.set(name, value, OPTIONS).map_err(|expected| text.bad(whole, expected))?,
            }
        }
        Ok(Self { interface, queue, mode, backend, settings })
    }
}

const INTERFACE: &str = "the name of an Ethernet interface such as eth0";
const OPTIONS: &str =
    "queue=NUMBER, mode=native|generic|auto, backend=own|libxdp, vlan=NUMBER or prio=NUMBER";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{check_spec, check_spec_errors};

    #[test]
    fn what_is_written_is_read_back() {
        check_spec::<XdpSpec>(&[
            ("xdp:eth0", "xdp:eth0"),
            ("xdp:eth0,queue=0,mode=auto", "xdp:eth0"),
            ("xdp:eth0, mode=generic,queue=3", "xdp:eth0,queue=3,mode=generic"),
            ("xdp:eth0,backend=libxdp,queue=1", "xdp:eth0,queue=1,backend=libxdp"),
            ("xdp:eth0,backend=own", "xdp:eth0"),
            ("xdp:eth0,prio=3,mode=native,vlan=100", "xdp:eth0,mode=native,vlan=100,prio=3"),
        ]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        check_spec_errors::<XdpSpec>(&[
            ("xdp", &["the name of an Ethernet interface"]),
            ("xdp:eth0,queue=-1", &["`queue=-1`: expected the number of a queue"]),
            ("xdp:eth0,mode=fast", &["mode=native, mode=generic or mode=auto"]),
            ("xdp:eth0,backend=bcc", &["backend=own or backend=libxdp"]),
            ("xdp:eth0,vlan=0", &["from 1 to 4094"]),
            ("xdp:eth0,port=1", &["`port=1`: expected queue=NUMBER"]),
        ]);
    }
}
