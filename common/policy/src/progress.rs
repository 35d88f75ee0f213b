//! The loop of a call that makes progress: it checks the device and sends, as [`PendingPackets`] decide.

use roce_transport::{Instant, Occupancy, Pending};

use crate::{Budget, Found, Leave, PendingPackets};

/// Maximum number of checks per call, so that a flood of packets does not keep a thread in the library.
const MOST_CHECKS: usize = 8;

/// The place that the caller checks next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks<'a> {
    /// The completion queue, if the caller checks one.
    pub queue: Option<&'a Occupancy>,
    /// Whether the caller checks memory that peers may have written.
    pub memory: bool,
}

/// The NIC as the policy sees it, or a model of one.
pub trait Port {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Receives one burst of datagrams and handles expired deadlines.
    fn check(&mut self, now: Instant) -> Found;

    /// Returns what the engine has to send.
    fn owed(&self) -> Pending;

    /// Sends pending packets within the budget.
    fn send(&mut self, now: Instant, budget: &mut Budget);

    /// Sends only requests and returns the number of packets. Returns `None` if everything must leave
    /// instead: if the device failed, or if it can join an acknowledgement to a request and `even_joined` is
    /// not set.
    fn send_requests(&mut self, now: Instant, even_joined: bool) -> Option<usize>;

    /// Delivers the events of the engine, whose queue is bounded.
    fn collect_events(&mut self);
}

/// Receives packets, handles deadlines and sends, within the budget of one call. Returns the number of
/// received datagrams.
#[inline]
pub fn progress(pending: &mut PendingPackets, port: &mut impl Port, mut now: Instant) -> usize {
    let (mut datagrams, mut budget) = (0, Budget::default());
    if pending.polls(now) == Leave::Everything {
        port.send(now, &mut budget);
    }
    for number in 0..MOST_CHECKS {
        if number > 0 {
            now = port.now();
        }
        let found = port.check(now);
        datagrams += found.datagrams;
        let after = pending.checked(now, found, || port.owed(), !budget.is_spent());
        if after.leave == Leave::Everything {
            port.send(now, &mut budget);
        }
        port.collect_events();
        if after.ends {
            break;
        }
    }
    datagrams
}

/// Sends the packets that leave now.
#[inline]
pub fn leave(pending: &mut PendingPackets, port: &mut impl Port, now: Instant, leave: Leave) {
    let leave = match leave {
        Leave::Requests { holds } => pending.sent_requests(now, holds, port.send_requests(now, holds)),
        other => other,
    };
    if leave == Leave::Everything {
        port.send(now, &mut Budget::default());
    }
    port.collect_events();
}
