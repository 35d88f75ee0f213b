//! Swift (SIGCOMM 2020): a window that keeps the round trip at a target.

use core::time::Duration;

use crate::Instant;
use crate::math::square_root;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::{Ack, CongestionControl, Loss, Observation, Rate, Start, Trim};

parameters! {
    /// The parameters of [`Swift`].
    pub struct SwiftParameters {
        /// Target round trip for a large window.
        base_target: u32 = 25, Number(1, 1_000_000), "us", "";
        /// Increase of the target for each hop on the path that lowers the hop limit; 0 disables this.
        hop_target: u32 = 0, Number(0, 1_000_000), "ns", "";
        /// Maximum increase of the target for a small window, so that many flows share fairly.
        fs_range: u32 = 50, Number(0, 1_000_000), "us", "";
        /// Window from which on the target is `base_target`.
        fs_max_window: u32 = 100, Number(2, 1 << 20), "packets", "";
        /// Growth of the window in a round trip below the target.
        additive_increase: u32 = 1, Number(1, 1_024), "packets", "";
        /// Weight of the excess over the target in a cut.
        beta: u32 = 819, Number(1, 1_024), "/ 1024", "";
        /// Maximum share of the window that one cut removes.
        max_decrease: u32 = 512, Number(1, 1_023), "/ 1024", "";
        /// Initial window.
        initial_window: u32 = 64, Number(1, 1 << 20), "packets", "";
        /// Maximum window.
        max_window: u32 = 4_096, Number(1, 1 << 20), "packets", "";
    }
}

/// Minimum window in packets. A window below one packet sends one packet in several round trips.
const LEAST: f64 = 0.001;
/// The window in packets below which the target does not grow any more.
const FS_LEAST: f64 = 0.1;
/// Number of consecutive timeouts that reset the window to the minimum: RETX_RESET_THRESHOLD of the paper,
/// which gives no value.
const RESET_AFTER: u32 = 5;

/// The window of one queue pair.
///
/// Below the target the window grows by one packet per round trip. Above the target it shrinks in proportion
/// to the excess, at most once per round trip. The target grows with the number of hops, if hop limits show
/// it, and with a smaller window. There is one target for the whole delay, because no timestamps separate the
/// delay of the hosts from that of the network. Notifications are ignored.
#[derive(Clone, Debug)]
pub struct Swift {
    parameters: SwiftParameters,
    mtu: f64,
    /// Window in packets.
    window: f64,
    rtt: Option<Duration>,
    last_decrease: Option<Instant>,
    /// Number of consecutive timeouts.
    timeouts: u32,
    /// Number of hops on the path of the last acknowledgement.
    hops: u8,
}

impl Swift {
    /// Creates an instance with the initial window.
    #[must_use]
    pub fn new(parameters: &SwiftParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        Self {
            parameters: *parameters,
            mtu: f64::from(start.mtu),
            window: f64::from(parameters.initial_window.min(parameters.max_window)),
            rtt: None,
            last_decrease: None,
            timeouts: 0,
            hops: 0,
        }
    }

    /// Returns the target for the current window in nanoseconds. It grows with each hop, and for small
    /// windows.
    fn target(&self) -> f64 {
        let parameters = &self.parameters;
        let (range, most) = (f64::from(parameters.fs_range), f64::from(parameters.fs_max_window));
        let inverse = |window: f64| 1.0 / square_root(window);
        let slope = range / (inverse(FS_LEAST) - inverse(most));
        let extra = (slope * (inverse(self.window) - inverse(most))).clamp(0.0, range);
        let topology = f64::from(parameters.hop_target) * f64::from(self.hops);
        (f64::from(parameters.base_target) + extra) * 1000.0 + topology
    }

    fn set_window(&mut self, window: f64) {
        self.window = window.clamp(LEAST, f64::from(self.parameters.max_window));
    }

    /// Cuts the window to `share`, at most once per round trip.
    fn decrease(&mut self, now: Instant, share: f64) {
        let rtt = self.rtt.unwrap_or_default();
        if self.last_decrease.is_some_and(|last| now.since(last) < rtt) {
            return;
        }
        let before = self.window;
        self.set_window(self.window * share.max(1.0 - f64::from(self.parameters.max_decrease) / 1024.0));
        if self.window < before {
            self.last_decrease = Some(now);
        }
    }
}

impl CongestionControl for Swift {
    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        self.timeouts = 0;
        self.rtt = ack.rtt.or(self.rtt);
        self.hops = ack.hops.unwrap_or(self.hops);
        let Some(rtt) = self.rtt else { return };
        let (delay, target) = (rtt.as_nanos() as f64, self.target());
        if delay < target {
            let packets = ack.bytes as f64 / self.mtu;
            let was_full = 2.0 * ack.in_flight.saturating_add(ack.bytes) as f64 >= self.window * self.mtu;
            if was_full {
                // The steps of one round trip, in which one window of packets is acknowledged, add up to the
                // configured increase.
                let step = f64::from(self.parameters.additive_increase) * packets / self.window.max(1.0);
                self.set_window(self.window + step);
            }
        } else if ack.rtt.is_some() {
            // A delay that was measured earlier has already had its effect.
            let excess = (delay - target) / delay;
            self.decrease(now, 1.0 - f64::from(self.parameters.beta) / 1024.0 * excess);
        }
    }

    /// A packet that is trimmed again left after the cut, so the window is still too large.
    fn on_trimmed(&mut self, _now: Instant, trim: Trim) {
        if trim.is_repeated && self.window > 1.0 {
            self.set_window((self.window - trim.bytes as f64 / self.mtu.max(1.0)).max(1.0));
        }
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        self.timeouts = match loss {
            Loss::Timeout => self.timeouts.saturating_add(1),
            Loss::Nak => 0,
        };
        if self.timeouts >= RESET_AFTER {
            self.last_decrease = Some(now);
            self.set_window(LEAST);
        } else {
            self.decrease(now, 0.0);
        }
    }

    /// A window below one packet is expressed as a rate.
    fn rate(&self) -> Rate {
        match self.rtt {
            Some(rtt) if self.window < 1.0 => {
                let seconds = rtt.as_nanos().max(1) as f64 / 1e9;
                Rate::from_float(self.window * self.mtu * 8.0 / seconds)
            }
            _ => Rate::UNLIMITED,
        }
    }

    fn window(&self) -> Option<u64> {
        Some((self.window.max(1.0) * self.mtu) as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        let rate = self.rate();
        Observation {
            rate: if rate.is_unlimited() { f64::INFINITY } else { rate.get() as f64 },
            window: Some((self.window * self.mtu) as u64),
            rtt: self.rtt,
            ..Observation::default()
        }
    }
}
