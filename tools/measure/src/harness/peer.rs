//! The addresses of the two sides, and the connection attributes of the original programs.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use roce::verbs::{AddressHandle, ConnectOptions, Context, Endpoint, QpType, QueuePair};
use roce_exchange::{PeerAddresses, ToolError};
use roce_packet::{Gid, Psn, Qpn};
use socket2::{Domain, Socket, Type};

/// The Q_Key that the originals use.
const QKEY: u32 = 0x1111_1111;

/// Connects over kernel TCP from an address of this side, so that a comparison takes the route of the device.
pub(crate) fn connect_from(own: IpAddr, server: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(own, 0).into())?;
    socket.connect(&server.into())?;
    Ok(socket.into())
}

/// The address of a queue pair, for the other side or of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerQueuePair {
    pub(crate) gid: Gid,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
}

/// Connects a queue pair. For UD, prepares the queue pair and returns the destination of its messages. A
/// server passes the addresses that packets may go to.
pub(crate) fn connect_as_originals(
    context: &Context,
    qp: &QueuePair,
    qp_type: QpType,
    own: Gid,
    peer: PeerQueuePair,
    allowed: Option<&PeerAddresses>,
    options: &ConnectOptions,
) -> Result<Option<AddressHandle>, ToolError> {
    let address = peer.gid.to_ip();
    if let Some(allowed) = allowed {
        allowed.check(address)?;
    }
    if own.is_ipv4_mapped() != peer.gid.is_ipv4_mapped() {
        return Err(ToolError::Peer(format!(
            "uses the GID of {address}, but this side uses a GID of the other IP version; choose another GID \
             there or another --device here"
        )));
    }
    if qp_type == QpType::Ud {
        qp.activate_datagram(QKEY)?;
        return Ok(Some(context.create_address_handle(address, peer.qpn, QKEY, &options.path)?));
    }
    qp.connect(&Endpoint { address, qpn: peer.qpn.get(), psn: peer.psn.get() }, options)?;
    Ok(None)
}

/// Waits until no packet has arrived for `quiet`, for 20 such periods at most. The last acknowledgement may
/// have been lost, and the other side then retransmits.
pub(crate) fn await_silence(context: &Context, quiet: Duration) {
    for _ in 0..20 {
        let before = context.counters().rdma_rx_packets;
        std::thread::sleep(quiet);
        if context.counters().rdma_rx_packets == before {
            return;
        }
    }
}
