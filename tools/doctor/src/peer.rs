//! The address of the other side.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The peer to examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the peer.
    pub address: IpAddr,
    /// The zone of a link-local address: the index of the interface that leads to it; otherwise 0.
    pub zone: u32,
    /// The TCP port on which a doctor may wait.
    pub exchange_port: u16,
    /// The rdma_cm port of the request if no doctor waits.
    pub service_port: u16,
}

impl Peer {
    /// Returns the address at which a doctor may wait.
    pub(super) fn exchange(&self) -> SocketAddr {
        match self.address {
            IpAddr::V6(address) => SocketAddrV6::new(address, self.exchange_port, 0, self.zone).into(),
            IpAddr::V4(_) => SocketAddr::new(self.address, self.exchange_port),
        }
    }
}
