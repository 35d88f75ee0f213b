//! The oldest algorithm: it halves the rate at a notification, and raises it in small steps without one.

use roce_transport::Instant;
use roce_transport::congestion::ParameterRange::Number;
use roce_transport::congestion::{Algorithm, CongestionControl, Observation, Rate, Start, parameters};

parameters! {
    /// The parameters, which text can set: `halve-and-step:keep=75,step=200`.
    pub struct HalveAndStepParameters {
        /// The part of the rate that remains after a notification.
        keep: u32 = 50, Number(1, 99), "%", "";
        /// Rise of the rate in each period without a notification.
        step: u32 = 100, Number(1, 100_000), "Mbps", "";
        /// Time between two rises.
        period: u32 = 50, Number(1, 1_000_000), "us", "";
    }
}

/// Returns the algorithm with its name.
pub(crate) fn algorithm() -> Algorithm {
    let make = |own: &HalveAndStepParameters, start: &Start| -> Box<dyn CongestionControl> {
        Box::new(HalveAndStep::new(own, start))
    };
    Algorithm::custom_with("halve-and-step", HalveAndStepParameters::default(), make)
}

/// Halves the rate at a notification, at most once per period, and raises it by a step in each period without
/// one.
#[derive(Debug)]
struct HalveAndStep {
    rate: u64,
    line_rate: u64,
    keep_percent: u64,
    step: u64,
    period_ns: u64,
    /// Time of the next rise of the rate; `None` before the first notification.
    raise_at: Option<Instant>,
}

const FLOOR: u64 = 10_000_000;

impl HalveAndStep {
    fn new(own: &HalveAndStepParameters, start: &Start) -> Self {
        let line_rate = start.line_rate.get();
        Self {
            rate: line_rate,
            line_rate,
            keep_percent: own.keep.into(),
            step: u64::from(own.step) * 1_000_000,
            period_ns: u64::from(own.period) * 1_000,
            raise_at: None,
        }
    }

    /// Applies the due steps. Several can be due, because the engine makes no calls while it has nothing to
    /// send.
    fn catch_up(&mut self, now: Instant) {
        while let Some(at) = self.raise_at.filter(|at| *at <= now) {
            self.rate = (self.rate + self.step).min(self.line_rate);
            // At line rate, the rate cannot rise.
            self.raise_at = (self.rate < self.line_rate).then(|| at.plus_nanos(self.period_ns));
        }
    }
}

impl CongestionControl for HalveAndStep {
    fn on_cnp(&mut self, now: Instant) {
        self.catch_up(now);
        // The next step is one period after the last cut. An earlier notification is about packets sent
        // before the cut.
        let just_cut = self.raise_at.is_some_and(|at| now.plus_nanos(self.period_ns / 2) < at);
        if !just_cut {
            self.rate = (self.rate * self.keep_percent / 100).max(FLOOR);
            self.raise_at = Some(now.plus_nanos(self.period_ns));
        }
    }

    fn on_timer(&mut self, now: Instant) {
        self.catch_up(now);
    }

    fn next_timer(&self) -> Option<Instant> {
        self.raise_at
    }

    fn rate(&self) -> Rate {
        Rate::bits_per_second(self.rate)
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation { rate: self.rate as f64, ..Observation::default() }
    }
}
