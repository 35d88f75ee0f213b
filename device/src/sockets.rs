//! Socket options and addresses that several devices use.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
#[cfg(any(feature = "udp", feature = "raw", feature = "xdp"))]
use std::os::fd::AsRawFd;

use rustix::net::sockopt;
use socket2::{InterfaceIndexOrAddress, SockFilter, Socket};

#[cfg(any(feature = "udp", feature = "raw", feature = "xdp"))]
/// Sets a socket option to a number or structure, as the kernel expects it. If a structure contains pointers,
/// their targets must outlive the call.
pub(crate) fn set_option<T: Copy>(socket: impl AsFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: the value outlives the call and its size is given; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(feature = "udp")]
/// Reads an option that consists of numbers. Numbers that the kernel does not provide are 0.
pub(crate) fn numbers_of<const COUNT: usize>(
    socket: impl AsFd,
    level: i32,
    name: i32,
) -> io::Result<[u32; COUNT]> {
    let mut numbers = [0_u32; COUNT];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, all of them valid, and both variables outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, numbers.as_mut_ptr().cast(), &raw mut len)
    };
    if result == 0 { Ok(numbers) } else { Err(io::Error::last_os_error()) }
}

/// Requests a send queue of `bytes`. Privileged users may exceed the system's limit.
pub(crate) fn set_send_queue(socket: impl AsFd, bytes: usize) {
    let socket = socket.as_fd();
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
}

#[cfg(any(feature = "udp", feature = "raw"))]
/// Requests a receive queue and a send queue of `bytes` each.
pub(crate) fn set_queues(socket: impl AsFd, bytes: usize) {
    let socket = socket.as_fd();
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    set_send_queue(socket, bytes);
}

/// Makes the kernel drop every datagram that arrives at a socket.
pub(crate) fn receive_nothing(socket: &Socket) -> io::Result<()> {
    // A filter that returns 0 accepts 0 bytes of every datagram.
    socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)])
}

/// Adds the interface as scope, which link-local addresses and IPv6 groups require.
pub(crate) fn with_scope(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() || address.is_multicast() => {
            SocketAddrV6::new(address, port, 0, interface).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

/// Returns an error unless `group` is a multicast address.
pub(crate) fn check_group(group: IpAddr) -> io::Result<()> {
    if group.is_multicast() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{group} is not a multicast address")))
}

/// Joins or leaves a multicast group on the interface with this index; for IPv4 with this address, if it is
/// known. Closing the socket leaves the group only when no child of a fork has the socket.
pub(crate) fn set_member(
    socket: &Socket,
    group: IpAddr,
    (interface, local): (u32, Option<IpAddr>),
    join: bool,
) -> io::Result<()> {
    let at = match local {
        Some(IpAddr::V4(local)) => InterfaceIndexOrAddress::Address(local),
        _ => InterfaceIndexOrAddress::Index(interface),
    };
    match (group, join) {
        (IpAddr::V4(group), true) => socket.join_multicast_v4_n(&group, &at),
        (IpAddr::V4(group), false) => socket.leave_multicast_v4_n(&group, &at),
        (IpAddr::V6(group), true) => socket.join_multicast_v6(&group, interface),
        (IpAddr::V6(group), false) => socket.leave_multicast_v6(&group, interface),
    }
}
