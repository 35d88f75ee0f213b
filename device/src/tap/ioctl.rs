//! Requests to the TAP driver and to interfaces, each in a safe function.

use std::ffi::c_ulong;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};

use crate::ifreq::{self, request_for};
use crate::offload::Offload;

/// A TAP whose frames have a header for offloads and no other.
const TAP: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
const SPLITS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// Attaches `/dev/net/tun` to the TAP interface `name`, which is made if it is not there.
pub(super) fn attach(tun: &File, name: &str) -> io::Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_flags = TAP as libc::c_short;
    ask(tun, libc::TUNSETIFF as c_ulong, &mut request)
}

/// Whether this process may make TAP interfaces in its network namespace, found out without making one: the
/// driver checks the right before it sees that the request names no type of interface.
pub(super) fn check_right(tun: &File) -> io::Result<()> {
    // A name that no interface has: a space is not allowed in one.
    let mut request = request_for("no such")?;
    match ask(tun, libc::TUNSETIFF as c_ulong, &mut request) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Sets the length of the header before each frame. An interface that was there may have another.
pub(super) fn set_header_len(tun: &File) -> io::Result<()> {
    let len = Offload::LEN as libc::c_int;
    // SAFETY: the request reads an int, which outlives the call.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Says what we take from the kernel: several UDP datagrams in one frame, and checksums that are not finished.
/// Returns whether the kernel knows such frames. It then takes them from us as well.
pub(super) fn set_offload(tun: &File) -> io::Result<bool> {
    let set = |flags: libc::c_uint| {
        // SAFETY: the argument is a number and no address.
        let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as _, c_ulong::from(flags)) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    if set(SPLITS).is_ok() {
        return Ok(true);
    }
    set(0).map(|()| false)
}

/// Brings an interface up.
pub(super) fn set_up(socket: &UdpSocket, name: &str) -> io::Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_flags = flags(socket, name)? | libc::IFF_UP as libc::c_short;
    ask(socket, libc::SIOCSIFFLAGS, &mut request)
}

/// Sets the largest IP packet of an interface.
pub(super) fn set_mtu(socket: &UdpSocket, name: &str, mtu: u16) -> io::Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_mtu = mtu.into();
    ask(socket, libc::SIOCSIFMTU, &mut request)
}

fn flags(socket: &UdpSocket, name: &str) -> io::Result<libc::c_short> {
    let mut request = request_for(name)?;
    ask(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: this is the member that the request writes.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// Makes one of the requests above. All of them read and write one `ifreq` and nothing else.
fn ask(to: impl AsFd, what: c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: no pointer is part of the requests of this module.
    unsafe { ifreq::ask(to, what, request) }
}
