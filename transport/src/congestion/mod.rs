//! Congestion control: decides how fast a queue pair may send.
//!
//! An algorithm is a struct that implements [`CongestionControl`]. It is notified of what happens to one queue pair
//! and answers with a [`Rate`] and optionally with a window of bytes. The engine does everything else: it spaces
//! packets at that rate, holds back what does not fit the window, measures round trips, receives and
//! checks congestion notification packets. So an algorithm sees no packet and owns no timer; the guide
//! `docs/write-a-congestion-control.md` builds one in about 100 lines.
//!
//! ```text
//!   sender                        switch                     receiver
//!   reaction point                congestion point           notification point
//!   Control: algorithm + pacer    marks CE                   NotificationPoint
//!        |------- data, ECT(0) ------->|------- data, CE ------->|
//!        |<----------------------- CNP, DSCP 48 -----------------|
//! ```
//!
//! An algorithm is chosen by [`Congestion`], for all queue pairs of an engine
//! ([`EngineConfig::congestion`](crate::EngineConfig::congestion)) or for one ([`QpOptions`](crate::QpOptions)).

mod after_loss;
mod choice;
mod control;
mod dcqcn;
mod dctcp;
mod fixed;
mod hpcc;
mod line;
mod math;
mod notification;
mod pacer;
mod powertcp;
mod round;
mod swift;
mod telemetry;
mod theta_powertcp;
mod timely;

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

pub use crate::parameters::{Parameter, ParameterError, ParameterRange};
pub use choice::{Algorithm, Congestion, CongestionError};
pub use dcqcn::{Dcqcn, DcqcnForm, DcqcnParameters};
pub use dctcp::{Dctcp, DctcpParameters};
pub use fixed::FixedRate;
pub use hpcc::{Hpcc, HpccParameters};
pub use notification::{CnpScope, NotificationPoint};
pub use powertcp::{PowerTcp, PowerTcpParameters};
pub use swift::{Swift, SwiftParameters};
pub use theta_powertcp::ThetaPowerTcp;
pub use timely::{Timely, TimelyForm, TimelyParameters};

pub(crate) use after_loss::{AfterLoss, LostAfter};
pub(crate) use control::{Control, SentRequest};
pub(crate) use line::LineLimit;
pub(crate) use notification::{CnpPace, Leaving, Notifier};

use crate::time::Instant;

use roce_packet::{Qpn, Telemetry};

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// No limit: packets leave as fast as the device takes them.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// This many bits per second; 0 is taken as 1, because a queue pair that never sends hangs.
    #[must_use]
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }

    /// This many megabits (10^6 bits) per second.
    #[must_use]
    pub const fn megabits_per_second(megabits: u64) -> Self {
        Self::bits_per_second(megabits.saturating_mul(1_000_000))
    }

    /// Bits a second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether the rate is unlimited.
    #[must_use]
    pub const fn is_unlimited(self) -> bool {
        self.0 == Self::UNLIMITED.0
    }

    /// The nearest rate to a number of bits a second that was computed.
    pub(crate) fn from_float(bits: f64) -> Self {
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

/// What an algorithm knows when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The time now.
    pub now: Instant,
    /// The queue pair that it runs for, to be named in trace events.
    pub qpn: Qpn,
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// What the link can carry.
    pub line_rate: Rate,
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Payload bytes that it acknowledged for the first time; 0 for requests without payload.
    pub bytes: u64,
    /// Payload bytes that are still unacknowledged.
    pub in_flight: u64,
    /// How long ago the packet left that it answers, if that is known: one packet at a time is watched, and
    /// never one that was sent twice.
    pub rtt: Option<Duration>,
    /// The receiver echoed a congestion mark in it; only with [`Congestion::echo`].
    pub marked: bool,
    /// Routers and switches that lowered its hop limit on the way here, if the device reports that.
    pub hops: Option<u8>,
}

/// How often an algorithm needs an acknowledgement besides that of the last packet of each message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feedback {
    /// At quarters of its window; without a window, at quarters of that of the engine
    /// ([`max_outstanding_packets`](crate::EngineConfig::max_outstanding_packets)), which may be thousands of packets.
    #[default]
    Window,
    /// One for this number of packets at least. Algorithms without a window that follow the round trip need this: one packet at a time is
    /// measured, and only one that asks for an acknowledgement.
    Packets(u32),
}

/// How a loss showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The peer saw a gap, or an answer is missing that a later one overtook.
    Nak,
    /// The retransmission timer ran out.
    Timeout,
}

/// The internal state of an algorithm, for plots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// The present rate in bits a second; infinite without limit.
    pub rate: f64,
    /// The rate that recovery aims at, if the algorithm has one.
    pub target_rate: Option<f64>,
    /// The estimate of congestion, 0 to 1, if the algorithm has one.
    pub alpha: Option<f64>,
    /// The window in bytes, if the algorithm has one.
    pub window: Option<u64>,
    /// The last round trip, where one was measured.
    pub rtt: Option<Duration>,
}

/// A congestion control algorithm, as it runs for one queue pair.
///
/// The engine calls it in the order of time; `now` never goes backward. Every notification has a default that does
/// nothing. [`Self::rate`] and [`Self::window`] are read after each call, and only then.
///
/// No call may allocate, panic or take long: `on_send` and `on_ack` are on the way of every packet.
pub trait CongestionControl: fmt::Debug + Send {
    /// A data packet left: a SEND, a WRITE, a request, a READ response. `bytes` are those on the wire, as
    /// [`EngineConfig::pacing`](crate::EngineConfig::pacing) counts them.
    fn on_send(&mut self, _now: Instant, _bytes: u32) {}

    /// An acknowledgement reported something new (RC only).
    fn on_ack(&mut self, _now: Instant, _ack: &Ack) {}

    /// Whether it needs in-band telemetry ([`Telemetry`]): then data leaves with room for it, and every packet asks for an
    /// acknowledgement. The answer never changes.
    fn wants_telemetry(&self) -> bool {
        false
    }

    /// How often it needs an acknowledgement. The answer never changes.
    fn feedback(&self) -> Feedback {
        Feedback::Window
    }

    /// An acknowledgement brought the telemetry of the packet that it answers; [`Self::on_ack`] follows if it reported something new.
    fn on_telemetry(&mut self, _now: Instant, _telemetry: &Telemetry) {}

    /// A congestion notification packet arrived for this queue pair, from its peer.
    fn on_cnp(&mut self, _now: Instant) {}

    /// Something was lost and is sent again (RC only).
    fn on_loss(&mut self, _now: Instant, _loss: Loss) {}

    /// The time that [`Self::next_timer`] asked for has come, or passed: while the queue pair has nothing to
    /// send there are no calls, so that idle queue pairs cost nothing, and everything due since then is made up for in one
    /// call.
    fn on_timer(&mut self, _now: Instant) {}

    /// When rate or window change by themselves. It is asked while packets wait for them.
    fn next_timer(&self) -> Option<Instant> {
        None
    }

    /// Whether it reports its cuts and increases as trace events by itself. If not, the engine reports every change of rate and
    /// window that it sees after a call.
    fn reports_changes(&self) -> bool {
        false
    }

    /// How fast packets may leave now.
    fn rate(&self) -> Rate {
        Rate::UNLIMITED
    }

    /// The payload bytes that may be unacknowledged (RC only); `None` for no limit beyond the engine's own. A packet may leave while
    /// fewer bytes than these are in flight, so one packet may always be in flight, and the last one may exceed the window.
    fn window(&self) -> Option<u64> {
        None
    }

    /// The state at `now`, which is not before the last call. The call changes nothing.
    fn observe(&self, _now: Instant) -> Observation {
        let rate = self.rate();
        let rate = if rate.is_unlimited() { f64::INFINITY } else { rate.get() as f64 };
        Observation { rate, window: self.window(), ..Observation::default() }
    }
}

/// Makes an algorithm for one queue pair.
pub type Make = dyn Fn(&Start) -> Box<dyn CongestionControl> + Send + Sync;
