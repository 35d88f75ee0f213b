//! The options of the frames of a device: the 802.1Q tag.

use roce_packet::{Path, VlanTag};

#[cfg(any(feature = "tap", feature = "kernel-host"))]
/// The largest VLAN number; 4095 is reserved (IEEE 802.1Q 9.6).
const MAX_VID: u16 = 4094;

/// The 802.1Q tag of frames, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameSettings {
    /// The VLAN, 1 to 4094. With it, only frames of this VLAN are received. Without it, frames are sent
    /// without a tag, and frames without a tag or with VLAN 0 are received.
    pub vlan: Option<u16>,
    /// The priority (PCP) of every frame, 0 to 7. Without it, the priority is the upper three bits of the
    /// DSCP, as with RNICs that trust the DSCP. With a priority but no VLAN, frames have a tag with VLAN 0.
    pub priority: Option<u8>,
}

impl FrameSettings {
    /// Parses `vlan=` or `prio=`. The error describes the expected value: `known` for any other key.
    #[cfg(any(feature = "tap", feature = "kernel-host"))]
    pub(crate) fn set(&mut self, key: &str, value: &str, known: &'static str) -> Result<(), &'static str> {
        match (key, value.parse()) {
            ("vlan", Ok(vid @ 1..=MAX_VID)) => self.vlan = Some(vid),
            ("vlan", _) => return Err("vlan=NUMBER from 1 to 4094"),
            ("prio", Ok(priority @ 0..=7)) => self.priority = Some(priority as u8),
            ("prio", _) => return Err("prio=NUMBER from 0 to 7"),
            _ => return Err(known),
        }
        Ok(())
    }

    /// Returns the tag of frames with this traffic class.
    pub(super) const fn tag(&self, traffic_class: u8) -> Option<VlanTag> {
        let pcp = match self.priority {
            Some(priority) => priority,
            None => traffic_class >> 5,
        };
        match (self.vlan, self.priority) {
            (None, None) => None,
            (Some(vid), _) => Some(VlanTag { pcp, dei: false, vid }),
            (None, Some(_)) => Some(VlanTag { pcp, dei: false, vid: 0 }),
        }
    }

    /// Returns whether a frame with this tag is accepted.
    pub(super) fn accepts(&self, tag: Option<VlanTag>) -> bool {
        tag.map_or(0, |tag| tag.vid) == self.vlan.unwrap_or(0)
    }
}

impl std::fmt::Display for FrameSettings {
    /// Formats the parts as in a specification, each with a comma in front.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(vlan) = self.vlan {
            write!(f, ",vlan={vlan}")?;
        }
        if let Some(priority) = self.priority {
            write!(f, ",prio={priority}")?;
        }
        Ok(())
    }
}

/// Returns the priority of a frame in flow control: that of its tag, or else that of its DSCP.
pub(super) const fn priority_of(path: &Path) -> u8 {
    match path.vlan {
        Some(tag) => tag.pcp & 7,
        None => path.traffic_class >> 5,
    }
}
