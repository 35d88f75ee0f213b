//! Where the kernel sends packets to somebody: what `ip route get` and `ip neighbour` show.

use std::io;
use std::net::IpAddr;

use roce_packet::MacAddr;

use super::netlink::{Neighbour, Netlink, Route};

/// Where packets through an interface go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They stay on this machine.
    Own,
    /// To everybody in a group.
    Group,
    /// To this neighbour: the destination itself or a gateway. Its Ethernet address, if it has told.
    Neighbour(IpAddr, Option<MacAddr>),
    /// Nowhere.
    None,
}

/// Asks the kernel where packets to `destination` go when they leave through an interface.
pub fn way_to(destination: IpAddr, interface: u32) -> io::Result<Way> {
    let mut netlink = Netlink::open()?;
    Ok(match netlink.route(destination, interface)? {
        Route::Own => Way::Own,
        Route::Multicast => Way::Group,
        Route::None => Way::None,
        Route::Neighbour(next_hop) => match netlink.neighbour(next_hop, interface)? {
            Neighbour::Known { mac, .. } => Way::Neighbour(next_hop, Some(mac)),
            Neighbour::Asked | Neighbour::Unknown => Way::Neighbour(next_hop, None),
        },
    })
}
