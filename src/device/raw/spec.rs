//! How a packet socket is named.

use std::fmt;
use std::str::FromStr;

use crate::device::OpenError;
use crate::device::framed::FrameSettings;
use crate::device::link::interface_name;

/// Which interface to use, read from text such as `raw:eth0` or `raw:eth0,vlan=100,prio=3`.
///
/// ```text
/// "raw:" interface *( "," option )
/// option = "vlan=" NUMBER   the VLAN of all frames, 1 to 4094; without it they have no tag
///        | "prio=" NUMBER   the priority in their tag, 0 to 7; without it, that of their DSCP
/// ```
///
/// The addresses, routes and neighbours are those of the interface itself. Where the kernel has an interface for
/// a VLAN, such as `eth0.100`, name that one, and the kernel adds the tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSpec {
    /// The interface.
    pub interface: String,
    /// The tag of frames.
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
        let bad = |item: &str, expected| OpenError::BadSpec {
            spec: text.to_owned(),
            item: item.to_owned(),
            expected,
        };
        let rest = text.strip_prefix("raw").unwrap_or(text);
        let mut items = rest.strip_prefix(':').unwrap_or(rest).split(',').map(str::trim);
        let name = items.next().unwrap_or_default();
        let interface = interface_name(name).ok_or_else(|| bad(name, INTERFACE))?.to_owned();
        let mut settings = FrameSettings::default();
        for item in items {
            let (name, value) = item.split_once('=').ok_or_else(|| bad(item, OPTIONS))?;
            let result = settings.set(name, value).ok_or_else(|| bad(item, OPTIONS))?;
            result.map_err(|expected| bad(item, expected))?;
        }
        Ok(Self { interface, settings })
    }
}

const INTERFACE: &str = "the name of an Ethernet interface such as eth0";
const OPTIONS: &str = "vlan=NUMBER or prio=NUMBER";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, canonical) in [
            ("raw:eth0", "raw:eth0"),
            ("raw:eth0.100", "raw:eth0.100"),
            ("raw:eth0, prio=3,vlan=100", "raw:eth0,vlan=100,prio=3"),
            ("raw:eth0,prio=0", "raw:eth0,prio=0"),
        ] {
            let spec: RawSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), canonical);
            assert_eq!(canonical.parse::<RawSpec>().unwrap(), spec);
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, part) in [
            ("raw", "the name of an Ethernet interface"),
            ("raw:", "the name of an Ethernet interface"),
            ("raw:a/b", "`a/b`"),
            ("raw:eth0,queue=1", "`queue=1`: expected vlan=NUMBER or prio=NUMBER"),
            ("raw:eth0,vlan=4095", "from 1 to 4094"),
            ("raw:eth0,prio=8", "from 0 to 7"),
            ("raw:eth0,fast", "`fast`"),
        ] {
            let error = text.parse::<RawSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
