//! Opening sockets and setting the options that RoCE requires.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use roce_machine::interfaces::{LocalAddress, interfaces_of, local_addresses};
use roce_transport::MOST_SEGMENTS;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::group::{JoinError, Member, Place, advice_on};
use super::spec::{UdpSpec, is_link_local};
use crate::OpenError;
use crate::descriptors::aside;
use crate::sockets::{receive_nothing, set_member, set_option, set_queues, set_send_queue, with_scope};

/// The socket of a device and the properties that the kernel granted.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    pub(super) interface: Option<LocalAddress>,
    pub(super) report: SocketReport,
    /// If the address is shared: the place in its group, and datagrams dropped at the socket before.
    pub(super) member: Option<Member>,
    pub(super) overflow: u32,
}

/// The properties that the kernel granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketReport {
    /// The port that the socket receives on.
    pub port: u16,
    /// The interface that has the address, if it was found.
    pub interface: Option<String>,
    /// The largest IP packet of that interface in bytes; 1500 if the interface was not found.
    pub link_mtu: usize,
    /// The maximum number of datagrams in a superpacket that the kernel splits; 1 if it does not split any.
    pub max_segments: u16,
    /// Whether the kernel joins received datagrams.
    pub gro: bool,
    /// Whether other devices can share the address.
    pub shared: bool,
    /// The size of the kernel's receive queue in bytes, including bookkeeping.
    pub receive_buffer_bytes: usize,
    /// The size of the kernel's send queue in bytes, including bookkeeping.
    pub send_buffer_bytes: usize,
}

/// Opens the socket of a device.
pub(super) fn open(spec: &UdpSpec) -> Result<Opened, OpenError> {
    let fail = |step, error| OpenError::System { spec: spec.to_string(), step, error };
    if spec.address.is_unspecified() {
        let local = local_addresses().unwrap_or_default();
        return Err(OpenError::Wildcard { spec: spec.to_string(), address: spec.address, local });
    }
    let interface = find_interface(spec)?;
    let index = interface.as_ref().map_or(0, |interface| interface.index);
    let wanted = with_scope(spec.address, spec.port, index);
    let (socket, member, overflow) = match join(spec, wanted)? {
        Some(Place { member, socket, overflow }) => (socket, Some(member), overflow),
        None => (open_alone(spec, wanted)?, None, 0),
    };
    set_queues(&socket, spec.buffer_bytes);
    set_multicast_source(&socket, wanted, index)
        .map_err(|error| fail("choose an interface for multicast", error))?;
    let local = socket.local_addr().map_err(|error| fail("read the port", error))?;
    let local = local.as_socket().unwrap_or(wanted);
    let report = SocketReport {
        port: local.port(),
        interface: interface.as_ref().map(|interface| interface.interface.clone()),
        link_mtu: interface.as_ref().map_or(USUAL_MTU, |interface| interface.link_mtu),
        max_segments: if spec.gso { most_segments(&socket) } else { 1 },
        // A socket of a group may have belonged to another device before.
        gro: set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, i32::from(spec.gro)).is_ok() && spec.gro,
        shared: member.is_some(),
        receive_buffer_bytes: socket.recv_buffer_size().unwrap_or(0),
        send_buffer_bytes: socket.send_buffer_size().unwrap_or(0),
    };
    Ok(Opened { socket, local, interface, report, member, overflow })
}

/// Opens a socket that does not share the address and port.
fn open_alone(spec: &UdpSpec, wanted: SocketAddr) -> Result<Socket, OpenError> {
    let fail = |step, error| OpenError::System { spec: spec.to_string(), step, error };
    let socket = new_socket(wanted).map_err(|error| fail("open a UDP socket", error))?;
    set_options(&socket, wanted).map_err(|error| fail("set up the UDP socket", error))?;
    socket.bind(&wanted.into()).map_err(|error| alone_error(spec, wanted, error))?;
    Ok(socket)
}

/// Joins the group of the address; `None` if sharing is disabled or the system does not allow it.
fn join(spec: &UdpSpec, wanted: SocketAddr) -> Result<Option<Place>, OpenError> {
    if !spec.share || wanted.port() == 0 {
        return Ok(None);
    }
    let make = |local| {
        let socket = new_socket(local)?;
        set_options(&socket, local)?;
        set_queues(&socket, spec.buffer_bytes);
        if spec.gro {
            // The kernel may ask any socket of the group whether to join arriving datagrams.
            let _ = set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1_i32);
        }
        Ok(socket)
    };
    match Member::join(wanted, make) {
        Ok(place) => Ok(Some(place)),
        Err(JoinError::Excluded(problem)) => Err(not_shared(spec, problem)),
        Err(JoinError::System(error)) => match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => Err(bind_error(spec, error)),
            _ if Member::exists(wanted) => {
                Err(not_shared(spec, format!("cannot join them: {}", advice_on(&error))))
            }
            _ => {
                tracing::info!(%error, device = %spec, "the address is not shared with other processes");
                Ok(None)
            }
        },
    }
}

/// Finds the interface of the address. Unless it is link-local, the kernel reports a missing address.
fn find_interface(spec: &UdpSpec) -> Result<Option<LocalAddress>, OpenError> {
    let mut found = interfaces_of(spec.address, spec.zone.as_deref());
    if !is_link_local(spec.address) {
        return Ok(found.into_iter().next());
    }
    let address = spec.address;
    if found.len() > 1 {
        let names: Vec<_> = found.iter().map(|local| local.interface.as_str()).collect();
        return Err(OpenError::Unsuitable {
            spec: spec.to_string(),
            problem: format!(
                "several interfaces have the address {address}: {}; add one of them, as in udp:{address}%{}",
                names.join(", "),
                names[0]
            ),
        });
    }
    match found.pop() {
        Some(local) => Ok(Some(local)),
        None => {
            let local = local_addresses().unwrap_or_default();
            Err(OpenError::AddressNotLocal { spec: spec.to_string(), address, local })
        }
    }
}

/// Opens a socket that only sends: the kernel drops datagrams that arrive there.
pub(super) fn open_transmit_only(local: SocketAddr, index: u32, buffer_bytes: usize) -> io::Result<Socket> {
    let socket = new_socket(local)?;
    // Before the socket is bound, so that no datagram can be queued.
    receive_nothing(&socket)?;
    set_options(&socket, local)?;
    set_send_queue(&socket, buffer_bytes);
    set_multicast_source(&socket, local, index)?;
    socket.bind(&local.into())?;
    Ok(socket)
}

/// Opens a socket that only receives datagrams for `group` on interface `index`, which has the address of
/// `local`. Each group needs a socket, because a socket that is bound to a unicast address gets no multicast.
pub(super) fn open_group(
    group: IpAddr,
    local: SocketAddr,
    index: u32,
    spec: &UdpSpec,
    gro: bool,
) -> io::Result<Socket> {
    let address = with_scope(group, local.port(), index);
    let socket = new_socket(address)?;
    // Other devices of this machine may be in the group as well.
    socket.set_reuse_address(true)?;
    set_options(&socket, address)?;
    set_queues(&socket, spec.buffer_bytes);
    if gro {
        set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1_i32)?;
    }
    socket.bind(&address.into())?;
    if group.is_ipv4() != local.is_ipv4() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the group is of another IP version"));
    }
    set_member(&socket, group, (index, Some(local.ip())), true)?;
    Ok(socket)
}

/// Returns the reason why a RoCE socket cannot be opened here; `None` if it can be opened.
pub(crate) fn bind_problem(local: &LocalAddress, port: u16) -> Option<io::Error> {
    let address = with_scope(local.address, port, local.index);
    let problem = new_socket(address).and_then(|socket| socket.bind(&address.into())).err()?;
    let is_shared = problem.kind() == io::ErrorKind::AddrInUse && Member::can_join(address);
    (!is_shared).then_some(problem)
}

fn new_socket(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    let socket = Socket::from(aside(socket.into()));
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Sets the options that the ICRC and the congestion bits need.
fn set_options(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    match local {
        SocketAddr::V4(_) => {
            // Sets DF, which makes the Identification of an unconnected socket 0. The ICRC covers both fields
            // and is computed before the kernel writes the header.
            sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
            sockopt::set_ip_ttl(socket, DEFAULT_HOP_LIMIT.into())?;
            sockopt::set_ip_recvtos(socket, true)?;
            set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1_i32)?;
        }
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
            sockopt::set_ipv6_unicast_hops(socket, Some(DEFAULT_HOP_LIMIT))?;
            sockopt::set_ipv6_recvtclass(socket, true)?;
            socket.set_recv_hoplimit_v6(true)?;
            // RoCE senders leave the UDP checksum 0, which IPv6 otherwise forbids.
            set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1_i32)?;
        }
    }
    // Optional: makes the kernel report how many datagrams it dropped.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1_i32);
    Ok(())
}

/// Sends multicast from the interface of the local address, also to listeners on this machine.
fn set_multicast_source(socket: &Socket, local: SocketAddr, index: u32) -> io::Result<()> {
    match local {
        SocketAddr::V4(local) => {
            socket.set_multicast_if_v4(local.ip())?;
            socket.set_multicast_loop_v4(true)
        }
        SocketAddr::V6(_) => {
            socket.set_multicast_if_v6(index)?;
            socket.set_multicast_loop_v6(true)
        }
    }
}

/// Returns the maximum number of segments per send. The option stays off: each message sets its own.
fn most_segments(socket: &Socket) -> u16 {
    let splits = set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1024_i32).is_ok()
        && set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0_i32).is_ok();
    match splits {
        false => 1,
        true if splits_many().is_ok() => MOST_SEGMENTS,
        true => SEGMENTS,
    }
}

/// Tests whether the kernel splits a superpacket of [`MOST_SEGMENTS`]: a new socket sends one to itself.
fn splits_many() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1_i32)?;
    socket.send_to(&[0; MOST_SEGMENTS as usize], socket.local_addr()?)?;
    Ok(())
}

/// Segments of one superpacket that every kernel accepts. Linux accepts [`MOST_SEGMENTS`] since 6.9.
const SEGMENTS: u16 = 64;

/// Returns the error of a device that requests exclusive use of the address.
fn alone_error(spec: &UdpSpec, wanted: SocketAddr, error: io::Error) -> OpenError {
    if error.kind() != io::ErrorKind::AddrInUse || !Member::exists(wanted) {
        return bind_error(spec, error);
    }
    let problem =
        "share=off requests it exclusively; leave share=off out, end the others (`ss -xlp` shows them with the name @roce) or \
         use another address"
            .to_owned();
    not_shared(spec, problem)
}

fn not_shared(spec: &UdpSpec, problem: String) -> OpenError {
    OpenError::NotShared { spec: spec.to_string(), address: spec.address, port: spec.port, problem }
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

/// The hop limit of datagrams whose path has none.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;
/// The MTU of standard Ethernet.
const USUAL_MTU: usize = 1500;
