//! Opening packet sockets and setting the options that RoCE requires.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use roce_packet::MacAddr;
use socket2::{Domain, SockFilter, Socket, Type};

use super::filter::roce_filter;
use crate::OpenError;
use crate::link::Link;
use crate::sockets::{set_option, set_queues};

/// The privilege for opening a packet socket.
pub(super) const PRIVILEGE: &str = "CAP_NET_RAW, which root has (`sudo setcap cap_net_raw+ep PROGRAM` gives it to a program) and, in a network of \
     its own, every user inside `unshare -Urn`";

/// Opens a socket that receives the RoCE frames of one interface.
pub(super) fn open(spec: &str, link: &Link) -> Result<Socket, OpenError> {
    let socket = open_with(spec, link, Some(&roce_filter()))?;
    if let Err(error) = listen_to(&socket, link.index, libc::PACKET_MR_MULTICAST, MacAddr::MAC_CONTROL) {
        tracing::debug!(%error, "pause frames may not be seen");
    }
    Ok(socket)
}

/// Opens a socket that receives every frame of its interface, regardless of destination.
#[cfg(feature = "whole")]
pub(super) fn open_whole(spec: &str, link: &Link) -> Result<Socket, OpenError> {
    let socket = open_with(spec, link, None)?;
    listen_to(&socket, link.index, libc::PACKET_MR_PROMISC, MacAddr::ZERO)
        .map_err(OpenError::at(spec, "make the interface accept frames for other addresses"))?;
    Ok(socket)
}

fn open_with(spec: &str, link: &Link, filter: Option<&[SockFilter]>) -> Result<Socket, OpenError> {
    let fail = |step| OpenError::at(spec, step);
    let socket = probe().map_err(OpenError::unless_privileged(spec, "open a packet socket", PRIVILEGE))?;
    // All of this happens before binding, so that no other frame can be queued.
    if let Some(filter) = filter {
        socket.attach_filter(filter).map_err(fail("attach a filter to the packet socket"))?;
    }
    for (name, step) in [
        (libc::PACKET_VNET_HDR, "enable segmentation offload of the packet socket"),
        (libc::PACKET_AUXDATA, "enable VLAN tags of the packet socket"),
        (libc::PACKET_IGNORE_OUTGOING, "make the packet socket ignore its own frames"),
    ] {
        set_option(&socket, libc::SOL_PACKET, name, 1_i32).map_err(fail(step))?;
    }
    set_queues(&socket, BUFFER_BYTES);
    bind(&socket, link.index, libc::ETH_P_ALL).map_err(fail("use the interface"))?;
    Ok(socket)
}

/// Opens a socket that receives only the ARP frames of an interface.
pub(super) fn open_for_arp(interface: u32) -> io::Result<Socket> {
    let socket = probe()?;
    bind(&socket, interface, libc::ETH_P_ARP)?;
    Ok(socket)
}

/// Opens a packet socket that does not receive yet.
pub(super) fn probe() -> io::Result<Socket> {
    Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)
}

/// Returns whether the kernel splits UDP for packet sockets (6.2 or later), which only sending would test.
pub(super) fn can_split() -> bool {
    // SAFETY: all zeros are valid: empty strings.
    let mut names: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes to `names`, which has the expected size.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return false;
    }
    let release: Vec<u8> = names.release.iter().map(|byte| *byte as u8).collect();
    version_of(&release) >= Some((6, 2))
}

/// Returns the first two numbers of a release such as `6.12.48-cloud`.
fn version_of(release: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit());
    let mut number = || std::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

/// Returns how many frames the kernel dropped at this socket since the last call.
pub(super) fn take_overflow(socket: &Socket) -> u64 {
    let mut statistics = [0_u32; 2];
    let mut len = size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: the kernel writes two numbers, for which there is room according to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            statistics.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { statistics[1].into() } else { 0 }
}

fn bind(socket: &Socket, interface: u32, protocol: i32) -> io::Result<()> {
    // SAFETY: all zeros are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = interface.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives until the call returns and has the given length.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether the interface that a socket was bound to has been deleted.
pub(super) fn has_lost_interface(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeros are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes an address, for which there is room according to `len`.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    // Deleting an interface invalidates its index in the address.
    result == 0 && address.sll_ifindex < 0
}

/// Makes the interface receive frames for a group, or all frames (`PACKET_MR_…`), besides its own.
fn listen_to(socket: &Socket, interface: u32, kind: libc::c_int, group: MacAddr) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&group.0);
    let request = libc::packet_mreq {
        mr_ifindex: interface.cast_signed(),
        mr_type: kind as _,
        mr_alen: 6,
        mr_address: address,
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request)
}

/// More than twice the window of 64 Gb/s for a millisecond.
const BUFFER_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (text, version) in [
            ("6.12.48-cloud", Some((6, 12))),
            ("6.2", Some((6, 2))),
            ("5.15.0", Some((5, 15))),
            ("6", None),
            ("", None),
            ("next", None),
        ] {
            assert_eq!(version_of(text.as_bytes()), version, "{text}");
        }
    }
}
