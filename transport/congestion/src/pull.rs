//! Receivers that pull: when an engine requests the responses of its READs.

use alloc::boxed::Box;
use core::fmt;

use roce_packet::Qpn;

use crate::{Custom, Instant, Rate};

/// Billionths of a bit in a byte: a rate in bits per second times nanoseconds.
const BYTE: u64 = 8_000_000_000;

/// A policy that an engine takes instead of one rate, with its parameters.
pub type Pulls = Custom<PullStart, Box<dyn PullPolicy>>;

/// The environment of a new policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullStart {
    /// Rate of the link of the engine.
    pub line_rate: Rate,
}

/// A READ request that is ready to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The queue pair.
    pub qpn: Qpn,
    /// Number of packets of the response.
    pub packets: u32,
    /// Bytes of the response on the link, with all headers.
    pub bytes: u64,
    /// Whether the request may not wait, because it repeats one for a trimmed response: the link has time for
    /// the response, which did not arrive.
    pub is_urgent: bool,
}

/// A packet of a READ response that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The queue pair.
    pub qpn: Qpn,
    /// Payload bytes; 0 if a switch trimmed the packet.
    pub payload: u32,
    /// Whether the packet met congestion.
    pub marked: bool,
    /// Whether a switch trimmed the packet, so that it will be requested again.
    pub trimmed: bool,
}

/// A policy that decides when an engine requests the responses of READs, of all its queue pairs.
///
/// Each queue pair has one request at a time that waits. Calls must not panic or take long.
pub trait PullPolicy: fmt::Debug + Send {
    /// Returns the time at which the request may leave; `now` or an earlier time for at once. It is called
    /// once for each request.
    fn turn(&mut self, now: Instant, pull: &Pull) -> Instant;

    /// Handles the arrival of a packet of a response.
    fn on_response(&mut self, _now: Instant, _pulled: &Pulled) {}
}

/// Spaces requests so that their responses take no more than a rate of the link.
///
/// Requests take turns in the order in which their queue pairs became ready, so queue pairs share the rate
/// equally.
#[derive(Clone, Debug)]
pub struct EvenPull {
    rate: Rate,
    /// Billionths of a bit that may be made up for after a pause, because timers are late.
    burst: u64,
    /// The time until which the link is filled by the responses to the requests that have a turn.
    filled: Instant,
    /// The part of a nanosecond by which `filled` is too early, in billionths of a bit at the rate.
    rest: u64,
}

impl EvenPull {
    /// Returns a policy with this rate, which makes up for at most `burst` bytes after a pause.
    #[must_use]
    pub fn new(rate: Rate, burst: u32) -> Self {
        Self { rate, burst: u64::from(burst) * BYTE, filled: Instant::ZERO, rest: 0 }
    }

    /// Changes the rate of the next requests.
    pub fn set_rate(&mut self, rate: Rate) {
        (self.rate, self.rest) = (rate, 0);
    }
}

impl PullPolicy for EvenPull {
    fn turn(&mut self, now: Instant, pull: &Pull) -> Instant {
        let earliest = now.as_nanos().saturating_sub(self.burst / self.rate.get());
        if self.filled.as_nanos() < earliest {
            (self.filled, self.rest) = (Instant::from_nanos(earliest), 0);
        }
        let turn = self.filled;
        let bits = u128::from(pull.bytes) * u128::from(BYTE) + u128::from(self.rest);
        let rate = u128::from(self.rate.get());
        self.filled = turn.plus_nanos(u64::try_from(bits / rate).unwrap_or(u64::MAX));
        self.rest = (bits % rate) as u64;
        turn
    }
}
