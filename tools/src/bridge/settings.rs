//! What a bridge shall do.

use std::num::NonZeroU64;

use roce_fault::FaultPlan;
use roce_sim::net::Marking;

/// One of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Left,
    Right,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Left, Self::Right];

    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Of everything that chance decides.
    pub seed: u64,
    /// For what comes from the left.
    pub left: DirectionSettings,
    /// For what comes from the right.
    pub right: DirectionSettings,
}

impl Settings {
    pub const fn direction(&self, from: Side) -> &DirectionSettings {
        match from {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    pub const fn direction_mut(&mut self, from: Side) -> &mut DirectionSettings {
        match from {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }
}

/// What happens to the RoCE packets of one direction, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionSettings {
    pub faults: FaultPlan,
    pub queue: QueueSettings,
}

/// A port of a switch: a rate, a queue in front of it for each priority, and a cable behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Bits a second on the wire; without one, packets leave as fast as the device takes them.
    pub rate: Option<NonZeroU64>,
    /// Nanoseconds that every packet travels.
    pub delay_ns: u64,
    /// Bytes that the queue of one priority holds; what comes on top is lost.
    pub limit_bytes: u64,
    pub marking: Marking,
    /// Priorities whose sender is paused, one bit each.
    pub pfc: u8,
    /// Bytes in the queue above which it is.
    pub xoff_bytes: u64,
    /// Bytes at which it may go on.
    pub xon_bytes: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            rate: None,
            delay_ns: 0,
            limit_bytes: 2_000_000,
            marking: Marking::Off,
            pfc: 0,
            xoff_bytes: 500_000,
            xon_bytes: 400_000,
        }
    }
}

impl QueueSettings {
    /// Why these values cannot be meant, if so.
    pub fn problem(&self) -> Option<String> {
        if let Marking::Red { kmin, kmax, pmax } = self.marking
            && (kmin > kmax || !(0.0..=1.0).contains(&pmax))
        {
            return Some("marking takes a kmin that is at most kmax, and a pmax from 0 to 1".to_owned());
        }
        if self.limit_bytes == 0 {
            return Some("a queue of 0 bytes forwards nothing".to_owned());
        }
        if self.pfc != 0 && !(self.xon_bytes <= self.xoff_bytes && self.xoff_bytes < self.limit_bytes) {
            let Self { xon_bytes, xoff_bytes, limit_bytes, .. } = self;
            return Some(format!(
                "pauses take xon ({xon_bytes}) at most xoff ({xoff_bytes}), and xoff below the bytes of the queue \
                 ({limit_bytes}), or packets are lost before the sender is paused"
            ));
        }
        None
    }
}

/// Whether to mark a packet with `queued` bytes left behind it in its queue, given an evenly distributed `draw`.
///
/// The switches of the simulator decide the same; here the draw belongs to the packet, whatever came before it.
pub(super) fn marks(marking: Marking, queued: u64, draw: u32) -> bool {
    f64::from(draw) < marking.probability(queued) * 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_more_often_the_longer_the_queue() {
        let red = Marking::Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 };
        let share = |queued| {
            let draws = (0..1_000_000_u32).map(|index| index.wrapping_mul(0x9e37_79b1));
            draws.filter(|draw| marks(red, queued, *draw)).count() as f64 / 1e6
        };
        assert_eq!((share(0), share(5_000), share(200_001)), (0.0, 0.0, 1.0));
        assert!((share(102_500) - 0.005).abs() < 0.0002, "{}", share(102_500));
        assert!((share(200_000) - 0.01).abs() < 0.0002, "{}", share(200_000));
        let step = Marking::Step { bytes: 40_000 };
        assert!(!marks(step, 40_000, 0) && marks(step, 40_001, u32::MAX));
        assert!(!marks(Marking::Off, u64::MAX, 0));
        // Where both thresholds are one, it is a step.
        let sharp = Marking::Red { kmin: 10, kmax: 10, pmax: 0.0 };
        assert!(!marks(sharp, 10, 0) && marks(sharp, 11, u32::MAX));
    }

    #[test]
    fn values_that_cannot_be_meant_are_told() {
        let good = QueueSettings::default();
        assert_eq!(good.problem(), None);
        let marking = Marking::Red { kmin: 2, kmax: 1, pmax: 0.5 };
        assert!(QueueSettings { marking, ..good.clone() }.problem().unwrap().contains("kmin"));
        assert!(QueueSettings { limit_bytes: 0, ..good.clone() }.problem().unwrap().contains("0 bytes"));
        let late = QueueSettings { pfc: 8, xoff_bytes: 3_000_000, ..good.clone() };
        assert!(late.problem().unwrap().contains("xoff (3000000)"));
        assert_eq!(QueueSettings { pfc: 8, ..good }.problem(), None);
    }
}
