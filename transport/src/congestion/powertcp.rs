//! PowerTCP (NSDI 2022) with in-band telemetry: a window from the power of a queue, its length times its growth.

use roce_packet::{Telemetry, TelemetryHop};

use super::telemetry::Path;
use super::{Ack, CongestionControl, Observation, Rate, Start};
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::time::Instant;

parameters! {
    /// What can be set in [`PowerTcp`].
    pub struct PowerTcpParameters {
        /// Round trip through empty queues, the longest in the network: tau of the paper.
        base_rtt: u32 = 13_000, Number(100, 100_000_000), "ns", "";
        /// Weight of a new window: gamma of the paper.
        gamma: u32 = 922, Number(1, 1_024), "/ 1024", "";
        /// Flows that are expected to share a port; the additive increase (beta of the paper) is the window of the line over this.
        flows: u32 = 10, Number(1, 1_000_000), "", "";
        /// Lowest rate.
        min_rate: u32 = 100, Number(1, 1_000_000), "Mb/s", "";
    }
}

/// The window of one queue pair.
///
/// The power of a hop is (growth of its queue + rate at which it sent) × (queue + what the line holds in a round trip), over its value for
/// a full line and an empty queue. The largest one, averaged over a round trip, divides the window that was in force a round trip ago.
#[derive(Clone, Debug)]
pub struct PowerTcp {
    gamma: f64,
    /// Bytes.
    increase: f64,
    /// Seconds.
    base_rtt: f64,
    path: Path,
    /// Bytes.
    window: f64,
    before: f64,
    least: f64,
    most: f64,
    power: f64,
    /// The last acknowledgement brought a new power.
    measured: bool,
    /// Bytes of this round trip that are not acknowledged yet.
    left: u64,
}

impl PowerTcp {
    /// An instance whose window is that of the line for the base round trip.
    #[must_use]
    pub fn new(parameters: &PowerTcpParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let base_rtt = f64::from(parameters.base_rtt) / 1e9;
        let most = start.line_rate.get() as f64 * base_rtt / 8.0;
        Self {
            gamma: f64::from(parameters.gamma) / 1024.0,
            increase: most / f64::from(parameters.flows),
            base_rtt,
            path: Path::default(),
            window: most,
            before: most,
            least: (f64::from(parameters.min_rate) * 1e6 * base_rtt / 8.0).min(most),
            most,
            power: 1.0,
            measured: false,
            left: 0,
        }
    }

    /// The power of one hop between two acknowledgements, and the seconds between its two stamps.
    fn of_hop(&self, hop: &TelemetryHop, before: &TelemetryHop) -> (f64, f64) {
        let seconds = f64::from(hop.ns_since(before)) / 1e9;
        let rate = hop.rate_bps() as f64 / 8.0;
        let queue = hop.queue_bytes() as f64;
        let current = (queue - before.queue_bytes() as f64 + hop.bytes_since(before) as f64) / seconds;
        let voltage = queue + rate * self.base_rtt;
        (current * voltage / (rate * rate * self.base_rtt), seconds)
    }

    fn measure(&mut self, now: Instant, telemetry: &Telemetry) -> bool {
        let Some(before) = self.path.replace(now, telemetry) else { return false };
        let hops = telemetry.hops().iter().zip(before.hops());
        let moved = hops.filter(|(hop, before)| hop.ns_since(before) > 0);
        let strongest = moved
            .map(|(hop, before)| self.of_hop(hop, before))
            .reduce(|most, hop| if hop.0 > most.0 { hop } else { most });
        let Some((power, seconds)) = strongest else { return false };
        let weight = (seconds / self.base_rtt).min(1.0);
        self.power += weight * (power - self.power);
        true
    }
}

impl CongestionControl for PowerTcp {
    fn wants_telemetry(&self) -> bool {
        true
    }

    fn on_telemetry(&mut self, now: Instant, telemetry: &Telemetry) {
        self.measured = self.measure(now, telemetry);
    }

    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        self.left = self.left.saturating_sub(ack.bytes);
        let round_ends = self.left == 0;
        if core::mem::take(&mut self.measured) {
            // A power below this would make the window more than a thousand times as large at once.
            let wanted = self.before / self.power.max(1e-3) + self.increase;
            let window = self.gamma * wanted + (1.0 - self.gamma) * self.window;
            self.window = window.clamp(self.least, self.most);
        }
        if round_ends {
            self.left = ack.in_flight;
            self.before = self.window;
        }
    }

    fn rate(&self) -> Rate {
        Rate::from_float(self.window * 8.0 / self.base_rtt)
    }

    fn window(&self) -> Option<u64> {
        Some(self.window as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation {
            rate: self.window * 8.0 / self.base_rtt,
            alpha: Some(self.power),
            window: self.window(),
            ..Observation::default()
        }
    }
}
