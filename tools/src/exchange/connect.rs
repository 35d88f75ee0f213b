//! Connects from the address that packets will come from.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use roce::tcp::Tcp;
use roce::verbs::Context;
use roce_device::{LocalAddress, local_addresses};
use socket2::{Domain, Socket, Type};

/// How long a client that was refused waits before it tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Tries to connect until the server, which may have been started at the same time, listens: for so long at most.
///
/// # Errors
///
/// The last refusal when the time is over, and at once what is no refusal.
pub fn until_listening<T, E>(
    patience: Duration,
    is_refused: impl Fn(&E) -> bool,
    mut connect: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let end = Instant::now() + patience;
    loop {
        match connect() {
            Err(error) if is_refused(&error) && Instant::now() < end => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Connects to `peer` from the address that packets of the device to it leave from: a server sends packets only to the
/// address that a client calls from.
///
/// # Errors
///
/// No server listens there, or it does not answer in time.
pub fn connect_tcp(
    context: &Context,
    gid_index: Option<usize>,
    peer: SocketAddr,
    patience: Option<Duration>,
) -> io::Result<Tcp> {
    let own = context.gid_address(gid_index.or_else(|| context.gid_towards(peer.ip())));
    let connected = own.and_then(|own| of_kernel(own, peer, patience));
    connected.unwrap_or_else(|| match patience {
        Some(patience) => Tcp::connect_within(context, peer, patience),
        None => Tcp::connect(context, peer),
    })
}

/// Whether the kernel has an address. A bind would not tell: in a network namespace without any address, every bind succeeds.
pub(super) fn is_of_kernel(address: IpAddr) -> bool {
    let is_it = |local: &LocalAddress| {
        local.address == address
            || address.is_loopback() && local.is_loopback && address.is_ipv4() == local.address.is_ipv4()
    };
    // Without the list, the attempt tells.
    local_addresses().map_or(true, |local| local.iter().any(is_it))
}

/// Connects with the TCP of the kernel. `None`: the kernel does not have the address, or it is of the other IP version.
pub(super) fn of_kernel(
    own: IpAddr,
    peer: SocketAddr,
    patience: Option<Duration>,
) -> Option<io::Result<Tcp>> {
    let own = match (own.to_canonical(), peer) {
        (IpAddr::V4(own), SocketAddr::V4(_)) => SocketAddr::new(own.into(), 0),
        (IpAddr::V6(own), SocketAddr::V6(peer)) => SocketAddrV6::new(own, 0, 0, peer.scope_id()).into(),
        _ => return None,
    };
    if !is_of_kernel(own.ip()) {
        return None;
    }
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None).ok()?;
    socket.bind(&own.into()).ok()?;
    // Both sides then send short segments. A failure leaves long ones.
    let _ = socket.set_tcp_mss(SHORT_SEGMENT);
    let connected = match patience {
        Some(patience) => socket.connect_timeout(&peer.into(), patience),
        None => socket.connect(&peer.into()),
    };
    Some(connected.and_then(|()| Tcp::try_from(std::net::TcpStream::from(socket))))
}

/// Bytes of data in a TCP segment: lines pass a link whose small MTU swallows longer packets, which `roce doctor` then finds.
const SHORT_SEGMENT: u32 = 128;
