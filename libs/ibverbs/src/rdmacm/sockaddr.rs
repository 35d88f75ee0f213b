//! Addresses of the application: socket addresses and address vectors.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use roce::verbs::Gid;

use crate::abi::{ibv_ah_attr, ibv_gid, ibv_global_route};
use crate::answer::Errno;
use crate::context::Open;
use crate::port::PORT;

/// Address family of InfiniBand.
const AF_IB: c_int = 27;
/// Hop limit of all packets.
pub(super) const HOP_LIMIT: u8 = 64;

pub(super) const NO_ADDRESS: ibv_ah_attr = ibv_ah_attr {
    grh: ibv_global_route {
        dgid: ibv_gid { raw: [0; 16] },
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
    },
    dlid: 0,
    sl: 0,
    src_path_bits: 0,
    static_rate: 0,
    is_global: 0,
    port_num: 0,
};

/// Reads an address of the application.
///
/// # Safety
///
/// `address` is null or points to a socket address with the length of its family.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        match c_int::from(address.as_ref().ok_or(Errno::INVALID)?.sa_family) {
            libc::AF_INET => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
            }
            libc::AF_INET6 => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
                Ok(SocketAddrV6::new(ip, u16::from_be(found.sin6_port), 0, found.sin6_scope_id).into())
            }
            AF_IB => Err(Errno(libc::EAFNOSUPPORT)),
            _ => Err(Errno::INVALID),
        }
    }
}

/// Converts an address for the application.
pub(super) fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: numbers, for which zero is a valid value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    // SAFETY: the storage is larger than every address, and aligned for each.
    unsafe {
        match address {
            SocketAddr::V4(address) => to.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => to.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
    storage
}

/// Returns the port of an address, in network byte order.
pub(super) fn port_of(storage: &libc::sockaddr_storage) -> u16 {
    // SAFETY: the storage has room for every address, and an address without a family is all zeros.
    unsafe { read(std::ptr::from_ref(storage).cast()) }.map_or(0, |address| address.port().to_be())
}

/// Returns the address vector from an address of a device to another address.
pub(super) fn vector(
    open: Option<&Open>,
    from: Option<IpAddr>,
    to: Option<IpAddr>,
    traffic_class: Option<u8>,
) -> ibv_ah_attr {
    let own = |open: &Open| open.gids.iter().position(|entry| Some(entry.address()) == from);
    let family = |open: &Open| {
        open.gids.iter().position(|entry| to.is_none_or(|to| to.is_ipv4() == entry.address().is_ipv4()))
    };
    let index = open.and_then(|open| own(open).or_else(|| family(open))).unwrap_or(0);
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: to.map_or([0; 16], |to| Gid::from_ip(to).0) },
            flow_label: 0,
            sgid_index: u8::try_from(index).unwrap_or(u8::MAX),
            hop_limit: HOP_LIMIT,
            traffic_class: traffic_class.unwrap_or(0),
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: PORT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_to_the_application_and_back() {
        for text in ["198.18.0.1:7174", "[2001:db8::7]:18515", "0.0.0.0:0", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = storage(address);
            // SAFETY: the storage is an address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
            assert_eq!(u16::from_be(port_of(&storage)), address.port());
        }
        // SAFETY: numbers, for which zero is a valid value.
        let nothing: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: as above, and a null pointer.
        unsafe {
            assert_eq!(read((&raw const nothing).cast()), Err(Errno::INVALID));
            assert_eq!(read(std::ptr::null()), Err(Errno::INVALID));
        }
    }
}
