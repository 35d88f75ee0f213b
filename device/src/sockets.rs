//! What several devices ask of sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
#[cfg(any(feature = "udp", feature = "raw", feature = "xdp"))]
use std::os::fd::AsRawFd;

use rustix::net::sockopt;
use socket2::{SockFilter, Socket};

#[cfg(any(feature = "udp", feature = "raw", feature = "xdp"))]
/// Sets an option whose value is what the kernel wants for it: a number, or a structure. Where a structure has pointers, what
/// they lead to outlives the call.
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
/// Asks for an option that consists of numbers. Those that the kernel does not have are 0.
pub(crate) fn numbers_of<const COUNT: usize>(
    socket: impl AsFd,
    level: i32,
    name: i32,
) -> io::Result<[u32; COUNT]> {
    let mut numbers = [0_u32; COUNT];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, any of which make numbers, and both places outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, numbers.as_mut_ptr().cast(), &raw mut len)
    };
    if result == 0 { Ok(numbers) } else { Err(io::Error::last_os_error()) }
}

/// Asks for a send queue of `bytes`. Privileged users may exceed the limit.
pub(crate) fn set_send_queue(socket: impl AsFd, bytes: usize) {
    let socket = socket.as_fd();
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
}

#[cfg(any(feature = "udp", feature = "raw"))]
/// The same for both queues.
pub(crate) fn set_queues(socket: impl AsFd, bytes: usize) {
    let socket = socket.as_fd();
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    set_send_queue(socket, bytes);
}

/// Makes the kernel drop everything that arrives at a socket.
pub(crate) fn receive_nothing(socket: &Socket) -> io::Result<()> {
    // A filter that returns 0 takes 0 bytes of every datagram.
    socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)])
}

/// Link-local addresses and IPv6 groups mean something only together with an interface.
pub(crate) fn with_scope(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() || address.is_multicast() => {
            SocketAddrV6::new(address, port, 0, interface).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

/// The error for a group to join that is not one.
pub(crate) fn check_group(group: IpAddr) -> io::Result<()> {
    if group.is_multicast() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{group} is not a multicast address")))
}
