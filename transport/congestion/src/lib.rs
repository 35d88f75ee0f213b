//! Algorithms for congestion control: they determine how fast a queue pair may send.
//!
//! An algorithm is a struct that implements [`CongestionControl`]. The engine notifies it of events of one
//! queue pair, and the algorithm returns a [`Rate`] and optionally a window in bytes. The engine spaces
//! packets at that rate, holds back packets beyond the window, measures round trips, and receives and checks
//! congestion notification packets. An algorithm therefore never sees a packet and has no timer. The guide
//! `docs/tutorials/write-a-congestion-control.md` builds one in about 100 lines.
//!
//! ```text
//!   sender                        switch                     receiver
//!   reaction point                congestion point           notification point
//!   Control: algorithm + pacer    marks CE                   NotificationPoint
//!        |------- data, ECT(0) ------->|------- data, CE ------->|
//!        |<----------------------- CNP, DSCP 48 -----------------|
//! ```
//!
//! [`Congestion`] selects an algorithm, for all queue pairs of an engine
//! (`EngineConfig::congestion` of `roce-transport`) or for one (`QpOptions`).
//!
//! A queue pair may also send over several paths of the network: [`Paths`] selects how.
//!
//! Beside them are what algorithms and engine both need: the time of the engine ([`Instant`]), parameters by
//! name, and numbers with units ([`units`]).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod choice;
mod custom;
mod dcqcn;
mod dctcp;
mod fixed;
mod hpcc;
mod math;
mod notification;
mod nscc;
pub mod parameters;
mod paths;
mod powertcp;
mod pull;
mod round;
mod swift;
mod telemetry;
mod theta_powertcp;
mod time;
mod timely;
pub mod units;

use core::fmt;
use core::time::Duration;

pub use choice::{Algorithm, Congestion, CongestionError};
pub use custom::{Custom, CustomError};
pub use dcqcn::{Dcqcn, DcqcnForm, DcqcnParameters};
pub use dctcp::{Dctcp, DctcpParameters};
pub use fixed::FixedRate;
pub use hpcc::{Hpcc, HpccParameters};
pub use notification::{CnpScope, NotificationPoint};
pub use nscc::{Nscc, NsccParameters};
pub use parameters::{Parameter, ParameterError, ParameterRange};
pub use paths::{
    PathFeedback, PathParameters, PathPolicy, PathSet, PathStart, Paths, PathsError, Penalty, Policy,
    Recycle, Reps, RepsParameters, RoundRobin,
};
pub use powertcp::{PowerTcp, PowerTcpParameters};
pub use pull::{EvenPull, Pull, PullPolicy, PullStart, Pulled, Pulls};
pub use swift::{Swift, SwiftParameters};
pub use theta_powertcp::ThetaPowerTcp;
pub use time::Instant;
pub use timely::{Timely, TimelyForm, TimelyParameters};

use roce_packet::Qpn;
pub use roce_packet::{Telemetry, TelemetryHop};

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// No limit: packets leave as fast as the device accepts them.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// Returns a rate of `bits` per second. 0 becomes 1, because a queue pair that never sends would hang.
    #[must_use]
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }

    /// Returns a rate of `megabits` (10^6 bits) per second.
    #[must_use]
    pub const fn megabits_per_second(megabits: u64) -> Self {
        Self::bits_per_second(megabits.saturating_mul(1_000_000))
    }

    /// Returns the bits per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Tells whether the rate is unlimited.
    #[must_use]
    pub const fn is_unlimited(self) -> bool {
        self.0 == Self::UNLIMITED.0
    }

    /// Returns the rate that is nearest to a computed number of bits per second.
    #[must_use]
    pub fn from_float(bits: f64) -> Self {
        // Casts of floating-point numbers saturate, and NaN becomes 0.
        Self::bits_per_second((bits + 0.5) as u64)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return formatter.write_str("unlimited");
        }
        write!(formatter, "{}.{:03} Mb/s", self.0 / 1_000_000, self.0 / 1000 % 1000)
    }
}

/// The information for a new instance of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The current time.
    pub now: Instant,
    /// The queue pair that the instance controls, for trace events.
    pub qpn: Qpn,
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// Rate of the link.
    pub line_rate: Rate,
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Payload bytes that are acknowledged for the first time; 0 for requests without payload.
    pub bytes: u64,
    /// Payload bytes that are still unacknowledged.
    pub in_flight: u64,
    /// Time since the answered packet left, if it is known: one packet at a time is measured, and never a
    /// retransmitted one.
    pub rtt: Option<Duration>,
    /// Whether the receiver echoed a congestion mark; only with [`Congestion::echo`].
    pub marked: bool,
    /// Number of routers and switches on the way back that lowered the hop limit, if the device reports it.
    pub hops: Option<u8>,
}

/// The rate at which an algorithm needs acknowledgements, besides that of the last packet of each message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feedback {
    /// At quarters of its window. Without a window, at quarters of the engine's window
    /// (`max_outstanding_packets` of its configuration), which may be thousands of
    /// packets.
    #[default]
    Window,
    /// At least one acknowledgement for this number of packets. Algorithms that follow the round trip without
    /// a window need this: one packet at a time is measured, and only one that requests an acknowledgement.
    Packets(u32),
}

/// The evidence of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The peer reported a gap, or a later answer overtook a missing one.
    Nak,
    /// The retransmission timer expired.
    Timeout,
}

/// A packet whose payload a switch removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Payload bytes of a full packet; the last one of a message may have had fewer.
    pub bytes: u64,
    /// Whether an earlier copy was trimmed, too: then this one left after the reaction to the first.
    pub is_repeated: bool,
}

/// The internal state of an algorithm, for plots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// The current rate in bits per second; infinite without a limit.
    pub rate: f64,
    /// The target rate of recovery, if the algorithm has one.
    pub target_rate: Option<f64>,
    /// The estimate of congestion, 0 to 1, if the algorithm has one.
    pub alpha: Option<f64>,
    /// The window in bytes, if the algorithm has one.
    pub window: Option<u64>,
    /// The last measured round trip.
    pub rtt: Option<Duration>,
}

/// A congestion control algorithm, as an instance for one queue pair.
///
/// The engine calls it in the order of time; `now` never goes backward. Each notification has a default that
/// does nothing. [`Self::rate`] and [`Self::window`] are read after each call, and at no other time.
///
/// Calls must not allocate, panic or take long: `on_send` and `on_ack` run for every packet.
pub trait CongestionControl: fmt::Debug + Send {
    /// Notifies of a data packet that left: a SEND, a WRITE, a request, a READ response. `bytes` is its size
    /// on the network, as `EngineConfig::pacing` counts it.
    fn on_send(&mut self, _now: Instant, _bytes: u32) {}

    /// Notifies of an acknowledgement that reported progress (RC only).
    fn on_ack(&mut self, _now: Instant, _ack: &Ack) {}

    /// Tells whether the algorithm needs in-band telemetry ([`Telemetry`]): then data leaves with space for
    /// it, and every packet requests an acknowledgement. The answer must never change.
    fn wants_telemetry(&self) -> bool {
        false
    }

    /// Returns how often the algorithm needs an acknowledgement. The answer must never change.
    fn feedback(&self) -> Feedback {
        Feedback::Window
    }

    /// Notifies of the telemetry of a packet that came with its acknowledgement. [`Self::on_ack`] follows if
    /// the acknowledgement reported progress.
    fn on_telemetry(&mut self, _now: Instant, _telemetry: &Telemetry) {}

    /// Notifies of a CNP for this queue pair, from its peer.
    fn on_cnp(&mut self, _now: Instant) {}

    /// Notifies of a loss that is about to be retransmitted (RC only).
    fn on_loss(&mut self, _now: Instant, _loss: Loss) {}

    /// Notifies of a packet that a switch trimmed (RC only). [`Self::on_loss`] follows for the first one of
    /// several.
    fn on_trimmed(&mut self, _now: Instant, _trim: Trim) {}

    /// Notifies that the time of [`Self::next_timer`] has been reached or passed. Idle queue pairs get no
    /// calls, so that they cost nothing; one call then applies everything that has become due.
    fn on_timer(&mut self, _now: Instant) {}

    /// Returns the time when rate or window change by themselves. It is called while packets wait for them.
    fn next_timer(&self) -> Option<Instant> {
        None
    }

    /// Tells whether the algorithm traces its cuts and increases itself. If not, the engine traces every
    /// change of rate and window that it finds after a call.
    fn reports_changes(&self) -> bool {
        false
    }

    /// Returns the current rate for packets.
    fn rate(&self) -> Rate {
        Rate::UNLIMITED
    }

    /// Returns the maximum number of unacknowledged payload bytes (RC only), or `None` for no limit other
    /// than the engine's. A packet may leave while fewer bytes are in flight. One packet may therefore always
    /// be in flight, and the last one may exceed the window.
    fn window(&self) -> Option<u64> {
        None
    }

    /// Returns the state at `now`, which is not before the last call. Changes nothing.
    fn observe(&self, _now: Instant) -> Observation {
        let rate = self.rate();
        let rate = if rate.is_unlimited() { f64::INFINITY } else { rate.get() as f64 };
        Observation { rate, window: self.window(), ..Observation::default() }
    }
}
