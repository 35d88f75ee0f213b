//! A rate after TIMELY (SIGCOMM 2015): follows the gradient of the round trip.

use core::time::Duration;

use super::{Ack, CongestionControl, Observation, Rate, Start};
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::time::Instant;

parameters! {
    /// What can be set in [`Timely`].
    pub struct TimelyParameters {
        /// Round trip of an idle network, by which gradients are measured.
        min_rtt: u32 = 20, Number(1, 1_000_000), "us", "";
        /// Round trip below which the rate grows whatever the gradient.
        t_low: u32 = 50, Number(0, 1_000_000), "us", "";
        /// Round trip above which the rate shrinks whatever the gradient.
        t_high: u32 = 500, Number(1, 1_000_000), "us", "";
        /// Step of an increase.
        additive_increase: u32 = 10, Number(1, 1_000_000), "Mb/s", "";
        /// Increases in a row after which five steps are taken at once.
        hai_threshold: u32 = 5, Number(1, 1_000), "", "";
        /// Weight of the gradient, or of the excess over t_high, in a cut.
        beta: u32 = 819, Number(1, 1_024), "/ 1024", "";
        /// Weight of a new difference of round trips in the gradient.
        gain: u32 = 896, Number(1, 1_024), "/ 1024", "";
        /// Lowest rate.
        min_rate: u32 = 10, Number(1, 1_000_000), "Mb/s", "";
    }
}

/// The rate of one queue pair.
///
/// It starts at line rate. Each measured round trip is one step: the engine watches one packet at a time that asks for an
/// acknowledgement, which is one in at most 64 packets. Notifications and losses change nothing.
#[derive(Clone, Debug)]
pub struct Timely {
    parameters: TimelyParameters,
    /// Bits a second.
    rate: f64,
    most: f64,
    rtt: Option<Duration>,
    /// Smoothed difference of one round trip to the one before, in nanoseconds.
    difference: f64,
    increases: u32,
}

impl Timely {
    /// An instance that starts at line rate.
    #[must_use]
    pub fn new(parameters: &TimelyParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let most = start.line_rate.get() as f64;
        Self { parameters: *parameters, rate: most, most, rtt: None, difference: 0.0, increases: 0 }
    }
}

impl CongestionControl for Timely {
    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        let Some(rtt) = ack.rtt else { return };
        let Some(before) = self.rtt.replace(rtt) else { return };
        let parameters = &self.parameters;
        let (rtt, before) = (rtt.as_nanos() as f64, before.as_nanos() as f64);
        let share = |value: u32| f64::from(value) / 1024.0;
        let nanos = |micros: u32| f64::from(micros) * 1000.0;
        self.difference += share(parameters.gain) * (rtt - before - self.difference);
        let gradient = self.difference / nanos(parameters.min_rtt);
        let step = f64::from(parameters.additive_increase) * 1e6;
        let beta = share(parameters.beta);
        let rate = if rtt < nanos(parameters.t_low) {
            self.increases = 0;
            self.rate + step
        } else if rtt > nanos(parameters.t_high) {
            self.increases = 0;
            self.rate * (1.0 - beta * (1.0 - nanos(parameters.t_high) / rtt))
        } else if gradient <= 0.0 {
            self.increases = self.increases.saturating_add(1);
            self.rate + step * if self.increases >= parameters.hai_threshold { 5.0 } else { 1.0 }
        } else {
            self.increases = 0;
            self.rate * (1.0 - beta * gradient.min(1.0))
        };
        self.rate = rate.max(f64::from(parameters.min_rate) * 1e6).min(self.most);
    }

    fn rate(&self) -> Rate {
        if self.rate >= self.most { Rate::UNLIMITED } else { Rate::from_float(self.rate) }
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation { rate: self.rate, rtt: self.rtt, ..Observation::default() }
    }
}
