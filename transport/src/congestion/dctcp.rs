//! A window after DCTCP (SIGCOMM 2010): cut in proportion to how much was marked.

use super::{Ack, CongestionControl, Loss, Observation, Start};
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::time::Instant;

parameters! {
    /// What can be set in [`Dctcp`].
    pub struct DctcpParameters {
        /// Weight of a new measurement in alpha.
        gain: u32 = 64, Number(1, 1_024), "/ 1024", "";
        /// Window at the start.
        initial_window: u32 = 64, Number(1, 1 << 20), "packets", "";
        /// Window that is never exceeded.
        max_window: u32 = 4_096, Number(1, 1 << 20), "packets", "";
        /// Growth of the window in a round trip without marks, once the start is over.
        additive_increase: u32 = 1, Number(1, 1_024), "packets", "";
    }
}

/// The window of one queue pair.
///
/// A round is the time in which what was in flight at its beginning is acknowledged. Alpha is the moving average of the
/// marked share of rounds; a round with marks ends with a cut by half of alpha, one without with a small increase. Marks
/// have to be echoed ([`Congestion::echo`](super::Congestion::echo)) for that: a notification counts as a mark
/// on the whole round.
#[derive(Clone, Debug)]
pub struct Dctcp {
    parameters: DctcpParameters,
    mtu: f64,
    /// Bytes.
    window: f64,
    most: f64,
    alpha: f64,
    /// Whether the window doubles each round, as at the start.
    starting: bool,
    /// Bytes of this round that are not acknowledged yet.
    left: u64,
    acknowledged: u64,
    marked: u64,
    notified: bool,
    /// A loss has cut the window in this round.
    lost: bool,
}

impl Dctcp {
    /// An instance with the initial window.
    #[must_use]
    pub fn new(parameters: &DctcpParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let mtu = f64::from(start.mtu);
        let most = mtu * f64::from(parameters.max_window);
        Self {
            parameters: *parameters,
            mtu,
            window: (mtu * f64::from(parameters.initial_window)).min(most),
            most,
            alpha: 1.0,
            starting: true,
            left: 0,
            acknowledged: 0,
            marked: 0,
            notified: false,
            lost: false,
        }
    }

    fn set_window(&mut self, window: f64) {
        self.window = window.clamp(self.mtu, self.most);
    }

    fn end_round(&mut self, in_flight: u64, was_full: bool) {
        let share = match (self.notified, self.acknowledged) {
            (true, _) => 1.0,
            (false, 0) => 0.0,
            (false, acknowledged) => self.marked as f64 / acknowledged as f64,
        };
        let gain = f64::from(self.parameters.gain) / 1024.0;
        self.alpha += gain * (share - self.alpha);
        if share > 0.0 {
            self.starting = false;
            self.set_window(self.window * (1.0 - self.alpha / 2.0));
        } else if was_full && !self.starting && !self.lost {
            self.set_window(self.window + self.mtu * f64::from(self.parameters.additive_increase));
        }
        (self.left, self.acknowledged, self.marked) = (in_flight, 0, 0);
        (self.notified, self.lost) = (false, false);
    }
}

impl CongestionControl for Dctcp {
    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        self.acknowledged = self.acknowledged.saturating_add(ack.bytes);
        if ack.marked {
            self.marked = self.marked.saturating_add(ack.bytes);
            self.notified |= ack.bytes == 0;
            self.starting = false;
        }
        // The window of a sender that does not use all of it must not grow.
        let was_full = ack.in_flight.saturating_add(ack.bytes).saturating_mul(2) >= self.window as u64;
        if self.starting && was_full {
            self.set_window(self.window + ack.bytes as f64);
        }
        self.left = self.left.saturating_sub(ack.bytes);
        if self.left == 0 {
            self.end_round(ack.in_flight, was_full);
        }
    }

    fn on_cnp(&mut self, _now: Instant) {
        self.notified = true;
        self.starting = false;
    }

    fn on_loss(&mut self, _now: Instant, loss: Loss) {
        self.starting = false;
        match loss {
            Loss::Timeout => self.set_window(self.mtu),
            Loss::Nak if !self.lost => self.set_window(self.window / 2.0),
            Loss::Nak => {}
        }
        self.lost = true;
    }

    fn window(&self) -> Option<u64> {
        Some(self.window as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation {
            rate: f64::INFINITY,
            alpha: Some(self.alpha),
            window: self.window(),
            ..Observation::default()
        }
    }
}
