//! The settings of a bridge.

use std::num::NonZeroU64;

use roce_fault::FaultPlan;
use roce_sim::net::Marking;

/// One of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The left device.
    Left,
    /// The right device.
    Right,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// Returns the opposite side.
    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    /// Returns the name in options and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }
}

/// All settings of a bridge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The seed of every random decision.
    pub seed: u64,
    /// The direction from the left.
    pub left: DirectionSettings,
    /// The direction from the right.
    pub right: DirectionSettings,
}

impl Settings {
    /// Returns the settings for packets from a side.
    pub const fn direction(&self, from: Side) -> &DirectionSettings {
        match from {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    /// Returns a mutable reference to the settings for packets from a side.
    pub const fn direction_mut(&mut self, from: Side) -> &mut DirectionSettings {
        match from {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }
}

/// The stages that process the RoCE packets of one direction, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionSettings {
    /// Faults by rules and by chance.
    pub faults: FaultPlan,
    /// The queue behind the faults.
    pub queue: QueueSettings,
}

/// A port of a switch: a queue for each priority, a rate, and a cable.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Bits per second on the wire. Without a rate, packets leave as fast as the device accepts them.
    pub rate: Option<NonZeroU64>,
    /// The delay of every packet in nanoseconds.
    pub delay_ns: u64,
    /// The capacity of the queue of one priority in bytes; packets beyond it are dropped.
    pub limit_bytes: u64,
    /// The condition under which the queue marks packets CE.
    pub marking: Marking,
    /// Whether to write a hop into the in-band telemetry of packets. The hop contains the rate, so this
    /// requires a rate.
    pub telemetry: bool,
    /// Priorities whose sender is paused, one bit each.
    pub pfc: u8,
    /// The number of queued bytes above which the pause starts.
    pub xoff_bytes: u64,
    /// The number of queued bytes at which the pause ends.
    pub xon_bytes: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            rate: None,
            delay_ns: 0,
            limit_bytes: 2_000_000,
            marking: Marking::Off,
            telemetry: false,
            pfc: 0,
            xoff_bytes: 500_000,
            xon_bytes: 400_000,
        }
    }
}

impl QueueSettings {
    /// Returns the reason why these values are invalid, if they are.
    pub fn problem(&self) -> Option<String> {
        if let Marking::Red { kmin, kmax, pmax } = self.marking
            && (kmin > kmax || !(0.0..=1.0).contains(&pmax))
        {
            return Some("marking: kmin must be at most kmax, and pmax must be 0 to 1".to_owned());
        }
        if self.telemetry && self.rate.is_none() {
            return Some("telemetry reports the rate of the port: set a rate as well".to_owned());
        }
        if self.limit_bytes == 0 {
            return Some("a queue of 0 bytes forwards nothing".to_owned());
        }
        if self.pfc != 0 && !(self.xon_bytes <= self.xoff_bytes && self.xoff_bytes < self.limit_bytes) {
            let Self { xon_bytes, xoff_bytes, limit_bytes, .. } = self;
            return Some(format!(
                "xon ({xon_bytes}) must be at most xoff ({xoff_bytes}), and xoff below the capacity of the queue \
                 ({limit_bytes}), or packets are dropped before the sender is paused"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_refused() {
        let good = QueueSettings::default();
        assert_eq!(good.problem(), None);
        let marking = Marking::Red { kmin: 2, kmax: 1, pmax: 0.5 };
        assert!(QueueSettings { marking, ..good.clone() }.problem().unwrap().contains("kmin"));
        let blind = QueueSettings { telemetry: true, ..good.clone() };
        assert!(blind.problem().unwrap().contains("set a rate"));
        let rate = NonZeroU64::new(1);
        assert_eq!(QueueSettings { rate, ..blind }.problem(), None);
        assert!(QueueSettings { limit_bytes: 0, ..good.clone() }.problem().unwrap().contains("0 bytes"));
        let late = QueueSettings { pfc: 8, xoff_bytes: 3_000_000, ..good.clone() };
        assert!(late.problem().unwrap().contains("xoff (3000000)"));
        assert_eq!(QueueSettings { pfc: 8, ..good }.problem(), None);
    }
}
