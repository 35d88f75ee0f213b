//! TIMELY (SIGCOMM 2015): a rate that follows the gradient of the round trip.

use core::time::Duration;

use crate::Instant;
use crate::parameters::ParameterRange::{Number, Words};
use crate::parameters::{Parameters as _, Value, parameters};
use crate::{Ack, CongestionControl, Feedback, Observation, Rate, Start};

/// Determines when the rate rises by five steps at once, and when a new rate takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelyForm {
    /// Five steps after consecutive increases by the gradient; those below `t_low` do not count. A new rate
    /// applies to a packet that already waits.
    Paper,
    /// Five steps after any consecutive increases, as in HPCC's simulator on ns-3 (commit 9f4be2a). A new
    /// rate applies from the next packet on.
    Ns3,
}

impl Value for TimelyForm {
    fn from_raw(raw: u32) -> Self {
        if raw == 0 { Self::Paper } else { Self::Ns3 }
    }
    fn raw(self) -> u32 {
        self as u32
    }
}

parameters! {
    /// The parameters of [`Timely`].
    pub struct TimelyParameters {
        /// Round trip of an idle network, the unit of gradients.
        min_rtt: u32 = 20, Number(1, 1_000_000), "us", "";
        /// Round trip below which the rate grows whatever the gradient.
        t_low: u32 = 50, Number(0, 1_000_000), "us", "";
        /// Round trip above which the rate shrinks whatever the gradient.
        t_high: u32 = 500, Number(1, 1_000_000), "us", "";
        /// Step of an increase.
        additive_increase: u32 = 10, Number(1, 1_000_000), "Mb/s", "";
        /// Consecutive increases after which five steps are taken at once.
        hai_threshold: u32 = 5, Number(1, 1_000), "", "";
        /// Weight of the gradient, or of the excess over t_high, in a cut.
        beta: u32 = 819, Number(1, 1_024), "/ 1024", "";
        /// Weight of a new difference of round trips in the gradient.
        gain: u32 = 896, Number(1, 1_024), "/ 1024", "";
        /// Minimum rate.
        min_rate: u32 = 10, Number(1, 1_000_000), "Mb/s", "";
        /// Packets of which one requests an acknowledgement, which is a measured round trip.
        segment: u32 = 1, Number(1, 64), "packets", "";
        /// Rule for taking five steps at once, and for the time at which a new rate applies.
        form: TimelyForm = TimelyForm::Paper, Words(&["paper", "ns3"]), "", "";
    }
}

/// The rate of one queue pair.
///
/// It starts at line rate. Each measured round trip is one step. The engine measures one packet at a time,
/// the last one of a segment, so there is at most one step per round trip. Notifications and losses have no
/// effect.
#[derive(Clone, Debug)]
pub struct Timely {
    parameters: TimelyParameters,
    /// Bits per second.
    rate: f64,
    /// The rate when the last packet left, which spaces the next one in the form `ns3`.
    pace: f64,
    most: f64,
    rtt: Option<Duration>,
    /// Smoothed difference between consecutive round trips, in nanoseconds.
    difference: f64,
    increases: u32,
}

impl Timely {
    /// Creates an instance that starts at line rate.
    #[must_use]
    pub fn new(parameters: &TimelyParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let most = start.line_rate.get() as f64;
        Self {
            parameters: *parameters,
            rate: most,
            pace: most,
            most,
            rtt: None,
            difference: 0.0,
            increases: 0,
        }
    }

    /// Records an increase. Returns the number of its steps.
    fn steps(&mut self, is_by_gradient: bool) -> f64 {
        let threshold = self.parameters.hai_threshold;
        let before = self.increases;
        self.increases = before.saturating_add(1);
        let is_long = match self.parameters.form {
            TimelyForm::Paper if !is_by_gradient => {
                self.increases = 0;
                false
            }
            TimelyForm::Paper => self.increases >= threshold,
            TimelyForm::Ns3 => before >= threshold,
        };
        if is_long { MOST_STEPS } else { 1.0 }
    }
}

/// The constant N of the paper.
const MOST_STEPS: f64 = 5.0;

impl CongestionControl for Timely {
    fn feedback(&self) -> Feedback {
        Feedback::Packets(self.parameters.segment)
    }

    fn on_send(&mut self, _now: Instant, _bytes: u32) {
        self.pace = self.rate;
    }

    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        let Some(rtt) = ack.rtt else { return };
        let Some(before) = self.rtt.replace(rtt) else { return };
        let parameters = self.parameters;
        let (rtt, before) = (rtt.as_nanos() as f64, before.as_nanos() as f64);
        let share = |value: u32| f64::from(value) / 1024.0;
        let nanos = |micros: u32| f64::from(micros) * 1000.0;
        self.difference += share(parameters.gain) * (rtt - before - self.difference);
        let gradient = self.difference / nanos(parameters.min_rtt);
        let step = f64::from(parameters.additive_increase) * 1e6;
        let beta = share(parameters.beta);
        let is_low = rtt < nanos(parameters.t_low);
        let rate = if is_low || rtt <= nanos(parameters.t_high) && gradient <= 0.0 {
            self.rate + step * self.steps(!is_low)
        } else {
            self.increases = 0;
            let excess = match parameters.form {
                _ if rtt > nanos(parameters.t_high) => 1.0 - nanos(parameters.t_high) / rtt,
                // The paper has no bound. From 1 / beta on the rate would be negative: one sample would stop
                // a flow.
                TimelyForm::Paper => gradient.min(1.0),
                TimelyForm::Ns3 => gradient,
            };
            self.rate * (1.0 - beta * excess)
        };
        self.rate = rate.max(f64::from(parameters.min_rate) * 1e6).min(self.most);
    }

    fn rate(&self) -> Rate {
        let rate = match self.parameters.form {
            TimelyForm::Paper => self.rate,
            TimelyForm::Ns3 => self.pace,
        };
        if rate >= self.most { Rate::UNLIMITED } else { Rate::from_float(rate) }
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation { rate: self.rate, rtt: self.rtt, ..Observation::default() }
    }
}
