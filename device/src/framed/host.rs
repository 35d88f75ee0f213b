//! The interface of a framed device to its host.

use std::fmt;
use std::io;
use std::net::IpAddr;

use roce_packet::MacAddr;
use roce_transport::Instant;

use super::port::Incoming;
use crate::HostTcp;

/// Where frames for an IP address go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// To this Ethernet address: of the destination itself or of the gateway to it.
    Known(MacAddr),
    /// A request is on its way and has no answer yet.
    Pending,
    /// Nowhere; why.
    Failed(Unreachable),
}

/// Why no frame can be sent to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No route to it leads through this interface.
    NoRoute,
    /// No host answers for the address, or for the gateway to it.
    NoAnswer {
        /// The address that was asked for.
        next_hop: IpAddr,
    },
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute => f.write_str("no route to it leads through this interface"),
            Self::NoAnswer { next_hop } => {
                write!(f, "{next_hop} does not answer when asked for its Ethernet address")
            }
        }
    }
}

/// The host of a framed device. Only addresses and neighbours are required; a host that answers ARP or
/// has a TCP implements the other methods as well.
///
/// The page of [`framed`](crate::framed) has a host in memory as a program.
pub trait Host: Send {
    /// The addresses to send from, in GID table order; at least one.
    fn addresses(&self) -> &[IpAddr];

    /// As [`Device::scope_id`](crate::Device::scope_id).
    fn scope_id(&self) -> Option<u32> {
        None
    }

    /// Where frames for a unicast address go. Starts a request by itself if the answer is not known. It is called for
    /// every packet, so it must be fast when the answer is known. `now` never goes back.
    fn resolve(&mut self, now: Instant, destination: IpAddr) -> Resolution;

    /// Takes a frame that is not RoCE.
    fn handle_frame(&mut self, now: Instant, frame: &Incoming<'_>) {
        let _ = (now, frame);
    }

    /// Writes a frame that the host wants to send into `buffer` and returns its length.
    fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<usize> {
        let _ = (now, buffer);
        None
    }

    /// When [`poll_transmit`](Self::poll_transmit) must be called again although nothing arrived.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Joins or leaves a multicast group.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()>;

    /// TCP of this host; `None` if it is the kernel's.
    fn tcp(&mut self) -> Option<&mut dyn HostTcp> {
        None
    }

    /// Name and value of each counter.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let _ = visit;
    }
}
