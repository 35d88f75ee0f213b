//! The two ends of a connection, as each side tells the other.

use std::net::IpAddr;

use roce_packet::Qpn;

/// The queue pair of a NIC, as its owner states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The address of the NIC.
    pub address: IpAddr,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends; `None` for the one that the script asks for.
    pub psn: Option<u32>,
    /// The registered memory: first address, key and length in bytes.
    pub memory: Option<(u64, u32, usize)>,
}

/// The description of this end, for the owner of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnEnd {
    /// The address.
    pub address: IpAddr,
    /// The queue pair number.
    pub qpn: Qpn,
}
