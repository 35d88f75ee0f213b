//! The specification of a packet socket.

use std::fmt;
use std::str::FromStr;

use crate::OpenError;
use crate::framed::FrameSettings;
use crate::spec::{SpecOption, SpecText};

/// Specification of a packet socket, parsed from text such as `raw:eth0` or `raw:eth0,vlan=100,prio=3`.
///
/// ```text
/// "raw:" interface *( "," option )
/// option = "vlan=" NUMBER   the VLAN of all frames, 1 to 4094; without it they have no tag
///        | "prio=" NUMBER   the priority in their tag, 0 to 7; without it, that of their DSCP
/// ```
///
/// The device has the addresses, routes and neighbours of the interface itself. If the kernel has an
/// interface for a VLAN, such as `eth0.100`, use that one, and the kernel adds the tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSpec {
    /// The name of the interface.
    pub interface: String,
    /// The 802.1Q tag of frames.
    pub settings: FrameSettings,
}

impl fmt::Display for RawSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raw:{}{}", self.interface, self.settings)
    }
}

impl FromStr for RawSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let text = SpecText::new("raw", text);
        let interface = text.interface(INTERFACE)?;
        let mut settings = FrameSettings::default();
        for option in text.options(OPTIONS) {
            let SpecOption { whole, name, value } = option?;
            settings.set(name, value, OPTIONS).map_err(|expected| text.bad(whole, expected))?;
        }
        Ok(Self { interface, settings })
    }
}

const INTERFACE: &str = "the name of an Ethernet interface such as eth0";
const OPTIONS: &str = "vlan=NUMBER or prio=NUMBER";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{check_spec, check_spec_errors};

    #[test]
    fn what_is_written_is_read_back() {
        check_spec::<RawSpec>(&[
            ("raw:eth0", "raw:eth0"),
            ("raw:eth0.100", "raw:eth0.100"),
            ("raw:eth0, prio=3,vlan=100", "raw:eth0,vlan=100,prio=3"),
            ("raw:eth0,prio=0", "raw:eth0,prio=0"),
        ]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        check_spec_errors::<RawSpec>(&[
            ("raw", &["the name of an Ethernet interface"]),
            ("raw:", &["the name of an Ethernet interface"]),
            ("raw:a/b", &["`a/b`"]),
            ("raw:eth0,queue=1", &["`queue=1`: expected vlan=NUMBER or prio=NUMBER"]),
            ("raw:eth0,vlan=4095", &["from 1 to 4094"]),
            ("raw:eth0,prio=8", &["from 0 to 7"]),
            ("raw:eth0,fast", &["`fast`"]),
        ]);
    }
}
