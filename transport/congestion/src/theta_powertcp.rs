//! Theta-PowerTCP (NSDI 2022), PowerTCP without telemetry: a window from the round trip and its change.

use core::time::Duration;

use crate::Instant;
use crate::parameters::Parameters as _;
use crate::powertcp::LEAST_CURRENT;
use crate::telemetry::Window;
use crate::{Ack, CongestionControl, Observation, PowerTcpParameters, Rate, Start};

/// The window of one queue pair.
///
/// With one bottleneck, its queue grows like the round trip. Relative to a full line with an empty queue, the
/// power of the bottleneck is therefore (1 + change of the round trip over time) × round trip / round trip
/// through empty queues. Each measured round trip replaces the window. The engine measures one packet at a
/// time, so this happens once per round trip, as in the paper, and the packet left under the current window.
/// A measured round trip shorter than the base replaces the base for the power.
#[derive(Clone, Debug)]
pub struct ThetaPowerTcp {
    gamma: f64,
    /// Additive increase in bytes.
    increase: f64,
    window: Window,
    /// The shortest round trip so far, at most the base, in seconds.
    least: f64,
    power: f64,
    /// The end of the last round trip, and its duration.
    last: Option<(Instant, Duration)>,
}

impl ThetaPowerTcp {
    /// Creates an instance whose window is that of the line for the base round trip.
    #[must_use]
    pub fn new(parameters: &PowerTcpParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let window = Window::of_line(start.line_rate, parameters.base_rtt, parameters.min_rate);
        Self {
            gamma: f64::from(parameters.gamma) / 1024.0,
            increase: window.most / f64::from(parameters.flows),
            least: window.base_rtt,
            window,
            power: 1.0,
            last: None,
        }
    }

    /// Updates the power from two consecutive round trips, averaged over the shortest one.
    fn update_power(&mut self, rtt: f64, before: f64, seconds: f64) {
        self.least = self.least.min(rtt);
        let current = ((rtt - before) / seconds + 1.0).max(LEAST_CURRENT);
        let weight = (seconds / self.least).min(1.0);
        self.power += weight * (current * rtt / self.least - self.power);
    }
}

impl CongestionControl for ThetaPowerTcp {
    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let Some(rtt) = ack.rtt.filter(|rtt| !rtt.is_zero()) else { return };
        let Some((at, before)) = self.last.replace((now, rtt)) else { return };
        let seconds = now.since(at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        self.update_power(rtt.as_secs_f64(), before.as_secs_f64(), seconds);
        let wanted = self.window.bytes / self.power + self.increase;
        let window = self.gamma * wanted + (1.0 - self.gamma) * self.window.bytes;
        self.window.bytes = self.window.clamp(window);
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn window(&self) -> Option<u64> {
        Some(self.window.bytes as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation { rtt: self.last.map(|(_, rtt)| rtt), ..self.window.observe(self.power) }
    }
}
