//! HPCC (SIGCOMM 2019): a window from the reports of the switches on the path.

use roce_packet::Telemetry;

use crate::Instant;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::round::Round;
use crate::telemetry::{Signal, Window};
use crate::{Ack, CongestionControl, Observation, Rate, Start};

parameters! {
    /// The parameters of [`Hpcc`].
    pub struct HpccParameters {
        /// Round trip through empty queues, the longest in the network: T of the paper.
        base_rtt: u32 = 13_000, Number(100, 100_000_000), "ns", "";
        /// Target utilization: eta of the paper.
        target: u32 = 95, Number(50, 100), "%", "";
        /// Rounds of additive increase before a multiplicative step.
        max_stage: u32 = 5, Number(0, 1_000), "", "";
        /// Growth of the window with each update of the reference window: W_AI of the paper.
        additive_increase: u32 = 80, Number(1, 1_000_000), "bytes", "";
        /// Minimum rate.
        min_rate: u32 = 100, Number(1, 1_000_000), "Mb/s", "";
        /// Whether acknowledgements within a round trip also change the window.
        fast_react: bool = true, Number(0, 1), "", "";
    }
}

/// The window of one queue pair.
///
/// Each acknowledgement contains the state of each hop. The utilization of a hop is the rate at which it sent
/// plus the rate that would empty its queue in a round trip. The largest utilization, averaged over a round
/// trip, scales the reference window, which is replaced once per round trip.
#[derive(Clone, Debug)]
pub struct Hpcc {
    parameters: HpccParameters,
    window: Window,
    /// Reference window in bytes.
    reference: f64,
    utilization: Signal,
    stage: u32,
    round: Round,
}

impl Hpcc {
    /// Creates an instance whose window is that of the line for the base round trip.
    #[must_use]
    pub fn new(parameters: &HpccParameters, start: &Start) -> Self {
        let parameters = parameters.in_range();
        let window = Window::of_line(start.line_rate, parameters.base_rtt, parameters.min_rate);
        let reference = window.bytes;
        Self { parameters, window, reference, utilization: Signal::new(), stage: 0, round: Round::default() }
    }

    /// Returns the window that follows from the reference window, and the next stage.
    fn next_window(&self) -> (f64, u32) {
        let excess = self.utilization.average / (f64::from(self.parameters.target) / 100.0);
        let increase = f64::from(self.parameters.additive_increase);
        let (window, stage) = if excess >= 1.0 || self.stage >= self.parameters.max_stage {
            (self.reference / excess.max(1e-3) + increase, 0)
        } else {
            (self.reference + increase, self.stage + 1)
        };
        (self.window.clamp(window), stage)
    }
}

impl CongestionControl for Hpcc {
    fn wants_telemetry(&self) -> bool {
        true
    }

    fn on_telemetry(&mut self, now: Instant, telemetry: &Telemetry) {
        let base_rtt = self.window.base_rtt;
        self.utilization.update(now, telemetry, base_rtt, |hop, before, seconds| {
            let rate = hop.rate_bps() as f64 / 8.0;
            let sent = hop.bytes_since(before) as f64 / seconds;
            let queue = hop.queue_bytes().min(before.queue_bytes()) as f64;
            queue / (rate * base_rtt) + sent / rate
        });
    }

    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        let round_ends = self.round.ends(ack);
        if !self.utilization.take_new() || !round_ends && !self.parameters.fast_react {
            return;
        }
        let (window, stage) = self.next_window();
        self.window.bytes = window;
        if round_ends {
            (self.reference, self.stage) = (window, stage);
        }
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn window(&self) -> Option<u64> {
        Some(self.window.bytes as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        self.window.observe(self.utilization.average)
    }
}
