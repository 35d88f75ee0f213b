//! Requests to the TAP driver and to interfaces, each in a safe function.

use std::ffi::c_ulong;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};

use crate::ifreq::{self, request_for};
use crate::offload::Offload;

/// A TAP whose frames have an offload header only.
const TAP: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
const SPLITS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// Attaches `/dev/net/tun` to the TAP interface `name`, creating it if necessary.
pub(super) fn attach(tun: &File, name: &str) -> io::Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_flags = TAP as libc::c_short;
    ask(tun, libc::TUNSETIFF as c_ulong, &mut request)
}

/// Checks whether this process may create TAP interfaces in its network namespace, without creating one: the
/// driver checks the privilege before it notices that the request has no interface type.
pub(super) fn check_right(tun: &File) -> io::Result<()> {
    // An interface cannot have this name, because spaces are not allowed.
    let mut request = request_for("no such")?;
    match ask(tun, libc::TUNSETIFF as c_ulong, &mut request) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Sets the length of the header before each frame; an existing interface may have another length.
pub(super) fn set_header_len(tun: &File) -> io::Result<()> {
    let len = Offload::LEN as libc::c_int;
    // SAFETY: the request reads an int, which outlives the call.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Enables frames of several UDP datagrams and with incomplete checksums. Returns whether the kernel supports
/// them; it then accepts such frames from this process as well.
pub(super) fn set_offload(tun: &File) -> io::Result<bool> {
    let set = |flags: libc::c_uint| {
        // SAFETY: the argument is a number, not an address.
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

/// Sets the MTU of an interface.
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

/// Makes one of the requests above, which read and write only one `ifreq`.
fn ask(to: impl AsFd, what: c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the requests of this module do not contain pointers.
    unsafe { ifreq::ask(to, what, request) }
}
