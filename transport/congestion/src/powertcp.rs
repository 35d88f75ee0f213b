//! PowerTCP (NSDI 2022) with in-band telemetry: a window from the power of a queue, its length times growth.

use roce_packet::Telemetry;

use crate::Instant;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::round::Round;
use crate::telemetry::{Signal, Window};
use crate::{Ack, CongestionControl, Observation, Rate, Start};

parameters! {
    /// The parameters of [`PowerTcp`] and [`ThetaPowerTcp`](crate::ThetaPowerTcp).
    pub struct PowerTcpParameters {
        /// Round trip through empty queues, the longest in the network: tau of the paper.
        base_rtt: u32 = 13_000, Number(100, 100_000_000), "ns", "";
        /// Weight of a new window: gamma of the paper.
        gamma: u32 = 922, Number(1, 1_024), "/ 1024", "";
        /// Expected flows of a port; beta of the paper is the window of the line divided by this.
        flows: u32 = 10, Number(1, 1_000_000), "", "";
        /// Minimum rate.
        min_rate: u32 = 100, Number(1, 1_000_000), "Mb/s", "";
    }
}

/// The window of one queue pair.
///
/// The power of a hop is (growth of its queue + rate at which it sent) × (queue + content of the line in a
/// round trip). It is divided by its value for a full line and an empty queue. The largest power, averaged
/// over a round trip, divides the window that was in force one round trip ago.
#[derive(Clone, Debug)]
pub struct PowerTcp {
    gamma: f64,
    /// Additive increase in bytes.
    increase: f64,
    window: Window,
    /// The window that was in force one round trip ago, in bytes.
    before: f64,
    power: Signal,
    round: Round,
}

/// Minimum current, relative to that of a full line. A queue can shrink faster than its port sends, or a port
/// can be idle between two packets. The power would then be negative or zero, and the window would grow
/// regardless of the queue. The value is from the simulation of the authors.
pub(crate) const LEAST_CURRENT: f64 = 0.5;

impl PowerTcp {
    /// Creates an instance whose window is that of the line for the base round trip.
    #[must_use]
    pub fn new(parameters: &PowerTcpParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let window = Window::of_line(start.line_rate, parameters.base_rtt, parameters.min_rate);
        Self {
            gamma: f64::from(parameters.gamma) / 1024.0,
            increase: window.most / f64::from(parameters.flows),
            before: window.bytes,
            window,
            power: Signal::new(),
            round: Round::default(),
        }
    }
}

impl CongestionControl for PowerTcp {
    fn wants_telemetry(&self) -> bool {
        true
    }

    fn on_telemetry(&mut self, now: Instant, telemetry: &Telemetry) {
        let base_rtt = self.window.base_rtt;
        self.power.update(now, telemetry, base_rtt, |hop, before, seconds| {
            let rate = hop.rate_bps() as f64 / 8.0;
            let queue = hop.queue_bytes() as f64;
            let current = (queue - before.queue_bytes() as f64 + hop.bytes_since(before) as f64) / seconds;
            let current = current.max(LEAST_CURRENT * rate);
            let voltage = queue + rate * base_rtt;
            current * voltage / (rate * rate * base_rtt)
        });
    }

    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        let round_ends = self.round.ends(ack);
        if self.power.take_new() {
            let wanted = self.before / self.power.average + self.increase;
            let window = self.gamma * wanted + (1.0 - self.gamma) * self.window.bytes;
            self.window.bytes = self.window.clamp(window);
        }
        if round_ends {
            self.before = self.window.bytes;
        }
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn window(&self) -> Option<u64> {
        Some(self.window.bytes as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        self.window.observe(self.power.average)
    }
}
