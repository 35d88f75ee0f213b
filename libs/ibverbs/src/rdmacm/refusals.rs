//! Ports of peers that had no listener.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roce::verbs::PortSpace;

use super::id::DeviceIndex;

/// Time during which requests for a port without a listener are repeated. A server may be started at the same
/// time, or may tell its client to connect just before it listens (perftest with `-R`). It is ready after
/// this time. With kernels the steps before a request take longer.
const LISTEN_PATIENCE: Duration = Duration::from_secs(1);
/// Time after which a port without a listener is treated as that of a newly started server again.
const REFUSAL_FORGOTTEN: Duration = Duration::from_secs(10);
/// Maximum number of remembered ports.
const MOST_REFUSALS: usize = 256;

/// The ports that had no listener, and the time of the first refusal.
#[derive(Default)]
pub(super) struct Refusals(HashMap<(DeviceIndex, PortSpace, SocketAddr), Instant>);

impl Refusals {
    /// Returns whether a refused request should be repeated.
    pub(super) fn may_repeat(&mut self, port: (DeviceIndex, PortSpace, SocketAddr), now: Instant) -> bool {
        self.0.retain(|_, since| now.duration_since(*since) < REFUSAL_FORGOTTEN);
        if self.0.len() >= MOST_REFUSALS && !self.0.contains_key(&port) {
            return false;
        }
        let since = *self.0.entry(port).or_insert(now);
        now.duration_since(since) < LISTEN_PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_a_port_without_a_listener_are_repeated_for_a_while() {
        let mut refusals = Refusals::default();
        let port = |number: u16| (0, PortSpace::Tcp, SocketAddr::from(([198, 18, 0, 1], number)));
        let start = Instant::now();
        assert!(refusals.may_repeat(port(1), start));
        assert!(refusals.may_repeat(port(1), start + LISTEN_PATIENCE / 2));
        assert!(!refusals.may_repeat(port(1), start + LISTEN_PATIENCE), "for all identifiers together");
        assert!(refusals.may_repeat(port(2), start + LISTEN_PATIENCE));
        assert!(refusals.may_repeat(port(1), start + REFUSAL_FORGOTTEN), "it may have been started");
        for number in 3..1000 {
            refusals.may_repeat(port(number), start + REFUSAL_FORGOTTEN);
        }
        assert_eq!(refusals.0.len(), MOST_REFUSALS);
    }
}
