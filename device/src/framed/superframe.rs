//! The frame that is being filled in the slot of a port.

use roce_packet::{Encapsulation, Gid, MacAddr, Path};
use roce_transport::{Batch, Transmit};

/// The contiguous datagrams of one path in the port's slot.
pub(super) struct Superframe {
    pub(super) first: Transmit,
    pub(super) batch: Batch,
    /// Position of the next datagram.
    pub(super) end: usize,
    pub(super) segments: u16,
}

/// Returns the Ethernet address that follows from the destination without a lookup: that of a group, or the
/// one in the default GID of RoCE v1.
pub(super) fn address_in(path: &Path) -> Option<MacAddr> {
    MacAddr::for_multicast(path.destination).or_else(|| match path.encapsulation {
        Encapsulation::RoceV1 => Gid::from_ip(path.destination).link_local_mac(),
        Encapsulation::RoceV2 => None,
    })
}
