//! The interface of a framed device to its host.

use std::fmt;
use std::io;
use std::net::IpAddr;

use roce_packet::MacAddr;
use roce_transport::Instant;

use super::port::Incoming;
use crate::HostTcp;

/// The destination of frames for an IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// This Ethernet address: of the destination itself or of the gateway to it.
    Known(MacAddr),
    /// A request was sent and is unanswered so far.
    Pending,
    /// The address cannot be reached, for this reason.
    Failed(Unreachable),
}

/// The reason why no frame can be sent to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No route to the address leads through this interface.
    NoRoute,
    /// No host answers for the address, or for the gateway to it.
    NoAnswer {
        /// The address whose Ethernet address was requested.
        next_hop: IpAddr,
    },
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute => f.write_str("there is no route through this interface"),
            Self::NoAnswer { next_hop } => {
                write!(f, "{next_hop} does not answer address resolution")
            }
        }
    }
}

/// The host of a framed device. Only addresses and neighbours are required; a host that answers ARP or has a
/// TCP also implements the other methods.
///
/// The documentation of [`framed`](crate::framed) has a program with a host in memory.
pub trait Host: Send {
    /// Returns the addresses to send from, in GID table order; at least one.
    fn addresses(&self) -> &[IpAddr];

    /// Returns the scope ID for [`Device::scope_id`](crate::Device::scope_id).
    fn scope_id(&self) -> Option<u32> {
        None
    }

    /// Returns the destination of frames for a unicast address, and starts a request if it is unknown. Called
    /// for every packet, so it must be fast if the address is known. `now` never goes back.
    fn resolve(&mut self, now: Instant, destination: IpAddr) -> Resolution;

    /// Handles a frame other than RoCE.
    fn handle_frame(&mut self, now: Instant, frame: &Incoming<'_>) {
        let _ = (now, frame);
    }

    /// Writes the next frame of the host into `buffer` and returns its length.
    fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<usize> {
        let _ = (now, buffer);
        None
    }

    /// Returns when [`poll_transmit`](Self::poll_transmit) must be called again even if nothing arrived.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Joins or leaves a multicast group.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses.
    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()>;

    /// Returns the TCP of this host; `None` if the kernel's TCP serves it.
    fn tcp(&mut self) -> Option<&mut dyn HostTcp> {
        None
    }

    /// Calls `visit` with name and value of each counter.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let _ = visit;
    }
}
