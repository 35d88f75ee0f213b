//! The two directions of a burst, as both sides observed them.

use crate::wire::{Introduction, Observation};

/// The observations of both sides of a burst.
#[derive(Clone, Debug)]
pub(crate) struct Both {
    pub(crate) own: Introduction,
    pub(crate) peer: Introduction,
    /// The local observation: the direction from the peer.
    pub(crate) here: Observation,
    /// The observation of the peer: the direction to the peer.
    pub(crate) there: Observation,
}

/// One direction of a burst.
pub(super) struct Direction<'a> {
    pub(super) from: &'a Introduction,
    pub(super) to: &'a Introduction,
    /// The number of packets that the sender reports.
    pub(super) sent: u32,
    pub(super) source_port: u16,
    /// The observation of the receiver.
    pub(super) seen: &'a Observation,
}

impl Direction<'_> {
    pub(super) fn has_arrived(&self) -> bool {
        self.seen.intact > 0 || !self.seen.classes.is_empty() || self.seen.damaged > 0
    }

    pub(super) fn name(&self) -> String {
        format!("from {} to {}", self.from.address, self.to.address)
    }

    /// Returns the number of packets that arrived neither intact nor damaged.
    pub(super) fn lost(&self) -> u64 {
        u64::from(self.sent).saturating_sub(u64::from(self.seen.intact) + self.seen.damaged)
    }

    pub(super) fn rate(&self) -> f64 {
        share(self.lost(), self.sent)
    }
}

impl Both {
    /// Returns the directions to the peer and from it.
    pub(super) fn directions(&self) -> [Direction<'_>; 2] {
        let Self { own, peer, here, there } = self;
        [
            Direction { from: own, to: peer, sent: here.sent, source_port: here.source_port, seen: there },
            Direction { from: peer, to: own, sent: there.sent, source_port: there.source_port, seen: here },
        ]
    }

    /// Returns whether nothing arrives in at least one direction. Other findings are then meaningless.
    pub(crate) fn is_dead(&self) -> bool {
        self.directions().iter().any(|direction| !direction.has_arrived())
    }
}

fn share(part: u64, whole: u32) -> f64 {
    part as f64 / f64::from(whole.max(1))
}
