//! Scale-up networks, such as NVLink, between the accelerators of a server or rack.

use crate::net::time::Time;

/// A second network that joins groups of consecutive hosts: their scale-up domains. It carries transfers of
/// tasks ([`Transfer::ScaleUp`](crate::net::Transfer::ScaleUp)), and no RoCE packets.
///
/// Each host sends its transfers one after the other, and receives one after the other those that arrive,
/// both at the full rate. The switches are never a bottleneck, and nothing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleUp {
    /// The number of hosts of a domain. The first ones are the first domain, and the last domain can be
    /// smaller.
    pub hosts: u32,
    /// Bits per second in each direction of a host.
    pub rate_bps: u64,
    /// The time from the departure to the arrival of a bit.
    pub delay: Time,
}

impl ScaleUp {
    /// Returns the number of the domain of a host.
    #[must_use]
    pub fn domain(&self, host: u32) -> u32 {
        host / self.hosts.max(1)
    }

    /// Returns whether two hosts have the same domain.
    #[must_use]
    pub fn joins(&self, one: u32, other: u32) -> bool {
        self.domain(one) == self.domain(other)
    }

    /// Returns what is wrong, if anything is.
    pub(super) fn problem(&self) -> Option<&'static str> {
        if self.hosts < 2 {
            return Some("a domain has at least 2 hosts");
        }
        if self.rate_bps == 0 {
            return Some("the rate is above 0");
        }
        (self.delay == Time::ZERO).then_some("the delay is above 0")
    }
}
