//! Connects to a server from the address that the packets of the client leave from.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use roce::tcp::Tcp;
use roce::verbs::Context;
use roce_device::{LocalAddress, local_addresses};
use socket2::{Domain, Socket, Type};

/// Interval between two attempts of a refused client.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Repeats a refused connection attempt, for `patience` at most. The server may start at the same time as the
/// client.
///
/// # Errors
///
/// The last refusal once `patience` is over. Any other error is returned at once.
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

/// Connects to `peer` from the source address of the device's packets to `peer`. A server sends packets only
/// to the address that a client connects from.
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

/// Returns whether the kernel has an address. A bind cannot find this out: in a network namespace without any
/// address, every bind succeeds.
pub(super) fn is_of_kernel(address: IpAddr) -> bool {
    let is_it = |local: &LocalAddress| {
        local.address == address
            || address.is_loopback() && local.is_loopback && address.is_ipv4() == local.address.is_ipv4()
    };
    // Without the list of addresses, the connection attempt decides.
    local_addresses().map_or(true, |local| local.iter().any(is_it))
}

/// Connects with the kernel's TCP. Returns `None` if the kernel does not have the address, or if the
/// addresses are of two IP versions.
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
    // Makes both sides send short segments. If it fails, the segments are long.
    let _ = socket.set_tcp_mss(SHORT_SEGMENT);
    let connected = match patience {
        Some(patience) => socket.connect_timeout(&peer.into(), patience),
        None => socket.connect(&peer.into()),
    };
    Some(connected.and_then(|()| Tcp::try_from(std::net::TcpStream::from(socket))))
}

/// Converts an IPv4-mapped address to IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Bytes of data in a TCP segment. Short lines pass a link that drops longer packets because of its small
/// MTU; `roce doctor` then finds that link.
const SHORT_SEGMENT: u32 = 128;
