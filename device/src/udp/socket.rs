//! Opening sockets and setting what RoCE needs of them.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::spec::UdpSpec;
use crate::OpenError;
use crate::interfaces::{LocalAddress, interface_of, local_addresses};

/// The socket of a device and the properties that the kernel granted.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    pub(super) interface: Option<LocalAddress>,
    pub(super) report: SocketReport,
}

/// The properties that the kernel granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketReport {
    /// The port it receives on.
    pub port: u16,
    /// The interface that has the address, if it could be found.
    pub interface: Option<String>,
    /// The largest IP packet of that interface in bytes; 1500 if it could not be found.
    pub link_mtu: usize,
    /// Whether the kernel splits superpackets.
    pub gso: bool,
    /// Whether the kernel joins what it received.
    pub gro: bool,
    /// Bytes in the kernel's receive queue, its own bookkeeping included.
    pub receive_buffer_bytes: usize,
    /// Bytes in the kernel's send queue, its own bookkeeping included.
    pub send_buffer_bytes: usize,
}

/// Opens the socket of a device.
pub(super) fn open(spec: &UdpSpec) -> Result<Opened, OpenError> {
    let fail = |step, error| OpenError::System { spec: spec.to_string(), step, error };
    if spec.address.is_unspecified() {
        let local = local_addresses().unwrap_or_default();
        return Err(OpenError::Wildcard { spec: spec.to_string(), address: spec.address, local });
    }
    let interface = interface_of(spec.address);
    let index = interface.as_ref().map_or(0, |interface| interface.index);
    let wanted = with_scope(spec.address, spec.port, index);
    let socket = new_socket(wanted).map_err(|error| fail("open a UDP socket", error))?;
    set_options(&socket, wanted).map_err(|error| fail("set up the UDP socket", error))?;
    let (receive_buffer_bytes, send_buffer_bytes) = set_buffers(&socket, spec.buffer_bytes);
    socket.bind(&wanted.into()).map_err(|error| bind_error(spec, error))?;
    set_multicast_source(&socket, wanted)
        .map_err(|error| fail("choose an interface for multicast", error))?;
    let local = socket.local_addr().map_err(|error| fail("ask for the port", error))?;
    let local = local.as_socket().unwrap_or(wanted);
    let report = SocketReport {
        port: local.port(),
        interface: interface.as_ref().map(|interface| interface.interface.clone()),
        link_mtu: interface.as_ref().map_or(USUAL_MTU, |interface| interface.link_mtu),
        gso: spec.gso && can_split(&socket),
        gro: spec.gro && set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok(),
        receive_buffer_bytes,
        send_buffer_bytes,
    };
    Ok(Opened { socket, local, interface, report })
}

/// Opens a socket that only sends: what arrives there is dropped by the kernel.
pub(super) fn open_transmit_only(local: SocketAddr, buffer_bytes: usize) -> io::Result<Socket> {
    let socket = new_socket(local)?;
    // Before it is bound, so that nothing can be queued. A filter that returns 0 takes 0 bytes.
    socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)])?;
    set_options(&socket, local)?;
    set_send_buffer(&socket, buffer_bytes);
    set_multicast_source(&socket, local)?;
    socket.bind(&local.into())?;
    Ok(socket)
}

/// Opens a socket that only receives what is sent to `group` on the interface of `local`. A socket that is
/// bound to an address of its own gets no multicast, so that each group needs one.
pub(super) fn open_group(group: IpAddr, local: SocketAddr, spec: &UdpSpec, gro: bool) -> io::Result<Socket> {
    let index = match local {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(_) => interface_of(local.ip()).map_or(0, |interface| interface.index),
    };
    let address = with_scope(group, local.port(), index);
    let socket = new_socket(address)?;
    // Other devices of this machine may be in the group as well.
    socket.set_reuse_address(true)?;
    set_options(&socket, address)?;
    set_buffers(&socket, spec.buffer_bytes);
    if gro {
        set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    }
    socket.bind(&address.into())?;
    match (group, local.ip()) {
        (IpAddr::V4(group), IpAddr::V4(local)) => socket.join_multicast_v4(&group, &local)?,
        (IpAddr::V6(group), IpAddr::V6(_)) => socket.join_multicast_v6(&group, index)?,
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the group is of another IP version"));
        }
    }
    Ok(socket)
}

/// Why a RoCE socket cannot be opened here; `None` if it can.
pub(crate) fn bind_problem(local: &LocalAddress, port: u16) -> Option<io::Error> {
    let address = with_scope(local.address, port, local.index);
    new_socket(address).and_then(|socket| socket.bind(&address.into())).err()
}

/// Link-local addresses mean something only together with an interface.
pub(super) fn with_scope(address: IpAddr, port: u16, index: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => {
            let needs_scope = address.is_unicast_link_local() || address.is_multicast();
            SocketAddrV6::new(address, port, 0, if needs_scope { index } else { 0 }).into()
        }
    }
}

fn new_socket(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Sets the options that the ICRC and the congestion bits need.
fn set_options(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    match local {
        SocketAddr::V4(_) => {
            // Sets DF, and together with not being connected makes the Identification 0: both are in the
            // ICRC, which is computed before the kernel writes the header.
            sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
            sockopt::set_ip_ttl(socket, DEFAULT_HOP_LIMIT.into())?;
            sockopt::set_ip_recvtos(socket, true)?;
            set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
        }
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
            sockopt::set_ipv6_unicast_hops(socket, Some(DEFAULT_HOP_LIMIT))?;
            sockopt::set_ipv6_recvtclass(socket, true)?;
            socket.set_recv_hoplimit_v6(true)?;
            // RoCE senders leave the UDP checksum 0, which IPv6 otherwise forbids.
            set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
    }
    // Not essential: with it the kernel reports how much it dropped.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    Ok(())
}

/// Sends multicast from the interface of the local address, also to listeners on this machine.
fn set_multicast_source(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    match local {
        SocketAddr::V4(local) => {
            socket.set_multicast_if_v4(local.ip())?;
            socket.set_multicast_loop_v4(true)
        }
        SocketAddr::V6(local) => {
            let index = interface_of((*local.ip()).into()).map_or(0, |interface| interface.index);
            socket.set_multicast_if_v6(index)?;
            socket.set_multicast_loop_v6(true)
        }
    }
}

/// Asks for queues of `bytes` and returns what both became. Privileged users may exceed the limits.
fn set_buffers(socket: &Socket, bytes: usize) -> (usize, usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = socket.set_recv_buffer_size(bytes);
    }
    set_send_buffer(socket, bytes);
    (socket.recv_buffer_size().unwrap_or(0), socket.send_buffer_size().unwrap_or(0))
}

fn set_send_buffer(socket: &Socket, bytes: usize) {
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = socket.set_send_buffer_size(bytes);
    }
}

/// Whether the kernel knows segmentation offload for UDP. The option stays off: each message has its own.
fn can_split(socket: &Socket) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1024).is_ok()
        && set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Sets an option that is an `int`.
fn set_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value outlives the call and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn bind_error(spec: &UdpSpec, error: io::Error) -> OpenError {
    let (address, port, text) = (spec.address, spec.port, spec.to_string());
    match error.kind() {
        io::ErrorKind::AddrInUse => OpenError::PortInUse { spec: text, address, port },
        io::ErrorKind::AddrNotAvailable => {
            let local = local_addresses().unwrap_or_default();
            OpenError::AddressNotLocal { spec: text, address, local }
        }
        _ => OpenError::System { spec: text, step: "use the address", error },
    }
}

/// The address to send to, in the form that the kernel wants.
pub(super) fn destination(address: IpAddr, port: u16, index: u32) -> SockAddr {
    with_scope(address, port, index).into()
}

/// The hop limit of a datagram whose path has none.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;
/// The MTU of Ethernet.
const USUAL_MTU: usize = 1500;
