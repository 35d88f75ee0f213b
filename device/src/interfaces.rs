//! The addresses of this machine and the links they belong to.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// An address that this machine receives for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The name of the interface that has it.
    pub interface: String,
    /// The number of that interface; it tells link-local addresses apart.
    pub index: u32,
    /// Whether the interface leads back to this machine only.
    pub is_loopback: bool,
}

impl LocalAddress {
    /// The largest IP packet of its interface in bytes, if the operating system tells.
    #[must_use]
    pub fn link_mtu(&self) -> Option<usize> {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let socket = UdpSocket::bind(any).ok()?;
        link_mtu(&socket, &self.interface).ok()
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.interface)
    }
}

/// All addresses of interfaces that are up.
///
/// # Errors
///
/// The operating system does not tell.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` is a valid place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list is valid until it is freed and ends with a null pointer.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: `entry` is part of that list.
        found.extend(unsafe { local_address(entry) });
        next = entry.ifa_next;
    }
    // SAFETY: it came from `getifaddrs` and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The interface that has `address`. Loopback interfaces receive for the whole of 127.0.0.0/8.
pub(crate) fn interface_of(address: IpAddr) -> Option<LocalAddress> {
    let all = local_addresses().ok()?;
    let exact = all.iter().find(|local| local.address == address);
    let found = exact.or_else(|| all.iter().find(|local| address.is_loopback() && local.is_loopback))?;
    Some(LocalAddress { address, ..found.clone() })
}

/// The largest IP packet of an interface in bytes. Any socket does for asking.
pub(crate) fn link_mtu(socket: impl AsFd, interface: &str) -> io::Result<usize> {
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero and ends the name.
    let places = request.ifr_name.len() - 1;
    if interface.len() > places {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte.cast_signed();
    }
    // SAFETY: the request reads a name from `request` and writes a number to it; both are in bounds.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this is the member that the request writes.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads one entry; `None` if it has no IP address or is down.
///
/// # Safety
///
/// The pointers in `entry` must be valid or null, as they are in a list from `getifaddrs`.
unsafe fn local_address(entry: &libc::ifaddrs) -> Option<LocalAddress> {
    let flags = entry.ifa_flags.cast_signed();
    if entry.ifa_addr.is_null() || flags & libc::IFF_UP == 0 {
        return None;
    }
    // SAFETY: not null, and every address begins with its family.
    let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
    let address = match family {
        libc::AF_INET => {
            // SAFETY: the family says that this is what lies there.
            let raw = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            IpAddr::V4(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is what lies there.
            let raw = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            IpAddr::V6(Ipv6Addr::from(raw.sin6_addr.s6_addr))
        }
        _ => return None,
    };
    // SAFETY: the name is a string that ends with a zero.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    // SAFETY: as above.
    let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
    let interface = name.to_string_lossy().into_owned();
    Some(LocalAddress { address, interface, index, is_loopback: flags & libc::IFF_LOOPBACK != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_has_a_link() {
        let all = local_addresses().unwrap();
        let loopback = all.iter().find(|local| local.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(loopback.is_loopback);
        assert_ne!(loopback.index, 0);
        assert_eq!(loopback.to_string(), format!("127.0.0.1 ({})", loopback.interface));

        let other = interface_of("127.8.9.10".parse().unwrap()).unwrap();
        assert_eq!(other.interface, loopback.interface);
        assert_eq!(interface_of("203.0.113.77".parse().unwrap()), None);

        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(link_mtu(&socket, &loopback.interface).unwrap() >= 1280);
        assert!(link_mtu(&socket, "no-such-link").is_err());
        assert!(link_mtu(&socket, "a name that is much too long").is_err());
    }
}
