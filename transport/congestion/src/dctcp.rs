//! DCTCP (SIGCOMM 2010): a window that is cut in proportion to the marked share.

use crate::Instant;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::round::Round;
use crate::{Ack, CongestionControl, Loss, Observation, Start, Trim};

parameters! {
    /// The parameters of [`Dctcp`].
    pub struct DctcpParameters {
        /// Weight of a new measurement in alpha.
        gain: u32 = 64, Number(1, 1_024), "/ 1024", "";
        /// Initial window.
        initial_window: u32 = 64, Number(1, 1 << 20), "packets", "";
        /// Maximum window.
        max_window: u32 = 4_096, Number(1, 1 << 20), "packets", "";
        /// Growth of the window in a round trip without marks, after the start.
        additive_increase: u32 = 1, Number(1, 1_024), "packets", "";
    }
}

/// The window of one queue pair.
///
/// Alpha is the moving average of the marked share of rounds. The first mark cuts the window by half of
/// alpha. Until a packet is acknowledged that left after the cut, there is no other cut and no increase. A
/// round without a cut ends with a small increase. This requires echoed marks
/// ([`Congestion::echo`](crate::Congestion::echo)): a notification counts as a mark on the whole round.
#[derive(Clone, Debug)]
pub struct Dctcp {
    parameters: DctcpParameters,
    mtu: f64,
    /// Window in bytes.
    window: f64,
    most: f64,
    alpha: f64,
    /// Whether the window doubles each round, as at the start.
    starting: bool,
    /// The round in which marks are counted.
    round: Round,
    acknowledged: u64,
    marked: u64,
    notified: bool,
    /// The round that began with the last cut, until it ends.
    reduced: Option<Round>,
    /// Bytes in flight after the last acknowledgement.
    in_flight: u64,
}

impl Dctcp {
    /// Creates an instance with the initial window.
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
            round: Round::default(),
            acknowledged: 0,
            marked: 0,
            notified: false,
            reduced: None,
            in_flight: 0,
        }
    }

    fn set_window(&mut self, window: f64) {
        self.window = window.clamp(self.mtu, self.most);
    }

    /// Ends a round: adds its marked share to alpha.
    fn update_alpha(&mut self) {
        let share = match (self.notified, self.acknowledged) {
            (true, _) => 1.0,
            (false, 0) => 0.0,
            (false, acknowledged) => self.marked as f64 / acknowledged as f64,
        };
        let gain = f64::from(self.parameters.gain) / 1024.0;
        self.alpha += gain * (share - self.alpha);
        (self.acknowledged, self.marked, self.notified) = (0, 0, false);
    }

    /// Cuts the window to `share`, unless a packet that left after the last cut is still to be acknowledged.
    fn reduce(&mut self, share: f64) {
        self.starting = false;
        if self.reduced.is_none() {
            self.set_window(self.window * share);
            let mut round = Round::default();
            round.begin(&Ack { in_flight: self.in_flight, ..Ack::default() });
            self.reduced = Some(round);
        }
    }
}

impl CongestionControl for Dctcp {
    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        self.in_flight = ack.in_flight;
        self.acknowledged = self.acknowledged.saturating_add(ack.bytes);
        if ack.marked {
            self.marked = self.marked.saturating_add(ack.bytes);
            self.notified |= ack.bytes == 0;
        }
        let round_ends = self.round.ends(ack);
        if round_ends {
            self.update_alpha();
        }
        self.reduced = self.reduced.take().and_then(|mut round| (!round.ends(ack)).then_some(round));
        if ack.marked {
            self.reduce(1.0 - self.alpha / 2.0);
            return;
        }
        // The window of a sender that does not use it fully must not grow.
        let was_full = ack.in_flight.saturating_add(ack.bytes).saturating_mul(2) >= self.window as u64;
        if !was_full || self.reduced.is_some() {
            return;
        }
        if self.starting {
            self.set_window(self.window + ack.bytes as f64);
        } else if round_ends {
            self.set_window(self.window + self.mtu * f64::from(self.parameters.additive_increase));
        }
    }

    fn on_cnp(&mut self, _now: Instant) {
        self.notified = true;
        self.reduce(1.0 - self.alpha / 2.0);
    }

    /// A packet that is trimmed again left after the cut, so the window is still too large.
    fn on_trimmed(&mut self, _now: Instant, trim: Trim) {
        if trim.is_repeated {
            self.set_window(self.window - trim.bytes as f64);
        }
    }

    fn on_loss(&mut self, _now: Instant, loss: Loss) {
        match loss {
            Loss::Timeout => {
                self.reduce(0.0);
                self.set_window(self.mtu);
            }
            Loss::Nak => self.reduce(0.5),
        }
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
