//! HPCC (SIGCOMM 2019): a window from what the switches on the way report.

use roce_packet::{Telemetry, TelemetryHop};

use super::telemetry::Path;
use super::{Ack, CongestionControl, Observation, Rate, Start};
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::time::Instant;

parameters! {
    /// What can be set in [`Hpcc`].
    pub struct HpccParameters {
        /// Round trip through empty queues, the longest in the network: T of the paper.
        base_rtt: u32 = 13_000, Number(100, 100_000_000), "ns", "";
        /// Utilization that is aimed at: eta of the paper.
        target: u32 = 95, Number(50, 100), "%", "";
        /// Rounds of additive increase before a multiplicative step.
        max_stage: u32 = 5, Number(0, 1_000), "", "";
        /// Growth of the window with each update of the reference window: W_AI of the paper.
        additive_increase: u32 = 80, Number(1, 1_000_000), "bytes", "";
        /// Lowest rate.
        min_rate: u32 = 100, Number(1, 1_000_000), "Mb/s", "";
        /// Whether acknowledgements inside a round trip change the window too.
        fast_react: bool = true, Number(0, 1), "", "";
    }
}

/// The window of one queue pair.
///
/// Each acknowledgement brings the state of each hop. The utilization of a hop is the rate at which it sent plus what its
/// queue would need in a round trip; the largest one, averaged over a round trip, scales the reference window, which is
/// replaced once in a round trip.
#[derive(Clone, Debug)]
pub struct Hpcc {
    parameters: HpccParameters,
    /// Seconds.
    base_rtt: f64,
    path: Path,
    /// Bytes.
    window: f64,
    reference: f64,
    least: f64,
    most: f64,
    utilization: f64,
    stage: u32,
    /// The last acknowledgement brought a new utilization.
    measured: bool,
    /// Bytes of this round trip that are not acknowledged yet.
    left: u64,
}

impl Hpcc {
    /// An instance whose window is that of the line for the base round trip.
    #[must_use]
    pub fn new(parameters: &HpccParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let base_rtt = f64::from(parameters.base_rtt) / 1e9;
        let most = start.line_rate.get() as f64 * base_rtt / 8.0;
        Self {
            parameters: *parameters,
            base_rtt,
            path: Path::default(),
            window: most,
            reference: most,
            least: (f64::from(parameters.min_rate) * 1e6 * base_rtt / 8.0).min(most),
            most,
            utilization: 1.0,
            stage: 0,
            measured: false,
            left: 0,
        }
    }

    /// The utilization of one hop between two acknowledgements, and the seconds between its two stamps.
    fn of_hop(&self, hop: &TelemetryHop, before: &TelemetryHop) -> (f64, f64) {
        let seconds = f64::from(hop.ns_since(before)) / 1e9;
        let rate = hop.rate_bps() as f64 / 8.0;
        let sent = hop.bytes_since(before) as f64 / seconds;
        let queue = hop.queue_bytes().min(before.queue_bytes()) as f64;
        (queue / (rate * self.base_rtt) + sent / rate, seconds)
    }

    fn measure(&mut self, now: Instant, telemetry: &Telemetry) -> bool {
        let Some(before) = self.path.replace(now, telemetry) else { return false };
        let hops = telemetry.hops().iter().zip(before.hops());
        let moved = hops.filter(|(hop, before)| hop.ns_since(before) > 0);
        let busiest = moved
            .map(|(hop, before)| self.of_hop(hop, before))
            .reduce(|most, hop| if hop.0 > most.0 { hop } else { most });
        let Some((utilization, seconds)) = busiest else { return false };
        let weight = (seconds / self.base_rtt).min(1.0);
        self.utilization += weight * (utilization - self.utilization);
        true
    }

    /// The window that follows from the reference, and the stage after it.
    fn next_window(&self) -> (f64, u32) {
        let excess = self.utilization / (f64::from(self.parameters.target) / 100.0);
        let increase = f64::from(self.parameters.additive_increase);
        let (window, stage) = if excess >= 1.0 || self.stage >= self.parameters.max_stage {
            (self.reference / excess.max(1e-3) + increase, 0)
        } else {
            (self.reference + increase, self.stage + 1)
        };
        (window.clamp(self.least, self.most), stage)
    }
}

impl CongestionControl for Hpcc {
    fn wants_telemetry(&self) -> bool {
        true
    }

    fn on_telemetry(&mut self, now: Instant, telemetry: &Telemetry) {
        self.measured = self.measure(now, telemetry);
    }

    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        self.left = self.left.saturating_sub(ack.bytes);
        let round_ends = self.left == 0;
        if round_ends {
            self.left = ack.in_flight;
        }
        if !core::mem::take(&mut self.measured) || !round_ends && !self.parameters.fast_react {
            return;
        }
        let (window, stage) = self.next_window();
        self.window = window;
        if round_ends {
            (self.reference, self.stage) = (window, stage);
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
            alpha: Some(self.utilization),
            window: self.window(),
            ..Observation::default()
        }
    }
}
