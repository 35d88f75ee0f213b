//! The oldest algorithm: it halves the rate at a notification, and raises it in small steps without one.

use roce_transport::Instant;
use roce_transport::congestion::{Algorithm, CongestionControl, Observation, Rate, Start};

/// Returns the algorithm with its name.
pub(crate) fn algorithm() -> Algorithm {
    Algorithm::custom("halve-and-step", |start| Box::new(HalveAndStep::new(start)))
}

/// Halves the rate at a notification, at most once per period, and raises it by a step in each period without
/// one.
#[derive(Debug)]
struct HalveAndStep {
    rate: u64,
    line_rate: u64,
    /// Time of the next rise of the rate; `None` before the first notification.
    raise_at: Option<Instant>,
}

const STEP: u64 = 100_000_000;
const FLOOR: u64 = 10_000_000;
const PERIOD_NS: u64 = 50_000;

impl HalveAndStep {
    fn new(start: &Start) -> Self {
        Self { rate: start.line_rate.get(), line_rate: start.line_rate.get(), raise_at: None }
    }

    /// Applies the due steps. Several can be due, because the engine makes no calls while it has nothing to
    /// send.
    fn catch_up(&mut self, now: Instant) {
        while let Some(at) = self.raise_at.filter(|at| *at <= now) {
            self.rate = (self.rate + STEP).min(self.line_rate);
            // At line rate, the rate cannot rise.
            self.raise_at = (self.rate < self.line_rate).then(|| at.plus_nanos(PERIOD_NS));
        }
    }
}

impl CongestionControl for HalveAndStep {
    fn on_cnp(&mut self, now: Instant) {
        self.catch_up(now);
        // The next step is one period after the last cut. An earlier notification is about packets sent
        // before the cut.
        let just_cut = self.raise_at.is_some_and(|at| now.plus_nanos(PERIOD_NS / 2) < at);
        if !just_cut {
            self.rate = (self.rate / 2).max(FLOOR);
            self.raise_at = Some(now.plus_nanos(PERIOD_NS));
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
