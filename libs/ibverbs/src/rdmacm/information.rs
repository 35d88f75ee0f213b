//! Calls without a connection: host names, devices, event names.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;

use roce_fault::verbs::Verb;

use super::sockaddr::{read, storage};
use super::with;
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP,
    RDMA_PS_UDP, ibv_context, rdma_addrinfo,
};
use crate::answer::{Errno, count, free_list, list, pointer, value};
use crate::live::{self, Kind, Object};

impl Object for rdma_addrinfo {
    const KIND: Kind = Kind::AddressInformation;
}

/// Returns the length of a socket address.
fn length(address: &SocketAddr) -> libc::socklen_t {
    let len =
        if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    libc::socklen_t::try_from(len).unwrap_or(0)
}

/// Returns a copy of an address for the application, and its length.
fn copy(address: Option<SocketAddr>) -> (*mut libc::sockaddr, libc::socklen_t) {
    match address {
        Some(address) => (Box::into_raw(Box::new(storage(address))).cast(), length(&address)),
        None => (std::ptr::null_mut(), 0),
    }
}

/// The hints of the application.
#[derive(Default)]
struct Hints {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

/// The result of a lookup.
struct Found {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

impl Hints {
    /// # Safety
    ///
    /// `given` contains the application's hints, with addresses or null pointers.
    unsafe fn read(given: &rdma_addrinfo) -> Result<Self, Errno> {
        let address = |pointer: *mut libc::sockaddr, len| match len {
            0 => Ok(None),
            // SAFETY: the caller's promise; a null pointer is refused.
            _ => unsafe { read(pointer) }.map(Some),
        };
        Ok(Self {
            flags: given.ai_flags,
            family: given.ai_family,
            qp_type: given.ai_qp_type,
            port_space: given.ai_port_space,
            source: address(given.ai_src_addr, given.ai_src_len)?,
            destination: address(given.ai_dst_addr, given.ai_dst_len)?,
        })
    }

    fn is_passive(&self) -> bool {
        self.flags & RAI_PASSIVE != 0
    }

    /// Returns the hints for `getaddrinfo`; ignores an unknown type or port space.
    fn of_sockets(&self) -> libc::addrinfo {
        // SAFETY: numbers and null pointers.
        let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
        wanted.ai_family = self.family;
        wanted.ai_socktype = match self.qp_type {
            IBV_QPT_RC | IBV_QPT_UC => libc::SOCK_STREAM,
            IBV_QPT_UD => libc::SOCK_DGRAM,
            _ => 0,
        };
        wanted.ai_protocol = match (self.port_space, wanted.ai_socktype) {
            (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
            (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
            _ => 0,
        };
        if self.is_passive() {
            wanted.ai_flags |= libc::AI_PASSIVE;
        }
        if self.flags & RAI_NUMERICHOST != 0 {
            wanted.ai_flags |= libc::AI_NUMERICHOST;
        }
        wanted
    }

    /// Returns the result of the hints alone, without a name and a service.
    fn alone(self) -> Found {
        let Self { flags, family, qp_type, port_space, source, destination } = self;
        Found { flags, family, qp_type, port_space, source, destination }
    }

    /// Looks up a name and a service; the error is a code of `getaddrinfo`.
    ///
    /// # Safety
    ///
    /// `node` and `service` are null-terminated strings, or null.
    unsafe fn look_up(self, node: *const c_char, service: *const c_char) -> Result<Found, c_int> {
        let wanted = self.of_sockets();
        let mut list: *mut libc::addrinfo = std::ptr::null_mut();
        // SAFETY: the caller's promise; the list is released after its first entry has been copied.
        let (address, kind, protocol) = unsafe {
            match libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) {
                0 => {}
                code => return Err(code),
            }
            let first = list.as_ref().ok_or(libc::EAI_NONAME)?;
            let copied = (read(first.ai_addr), first.ai_socktype, first.ai_protocol);
            libc::freeaddrinfo(list);
            copied
        };
        let address = address.map_err(|_| libc::EAI_FAMILY)?;
        let qp_type = match (self.qp_type, kind) {
            (0, libc::SOCK_STREAM) => IBV_QPT_RC,
            (0, libc::SOCK_DGRAM) => IBV_QPT_UD,
            (given, _) => given,
        };
        let port_space = match (self.port_space, protocol) {
            (0, libc::IPPROTO_TCP) => RDMA_PS_TCP,
            (0, libc::IPPROTO_UDP) => RDMA_PS_UDP,
            (given, _) => given,
        };
        let is_passive = self.is_passive();
        Ok(Found {
            flags: if is_passive { RAI_PASSIVE } else { 0 },
            family: if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 },
            qp_type,
            port_space,
            source: if is_passive { Some(address) } else { self.source },
            destination: if is_passive { None } else { Some(address) },
        })
    }
}

impl Found {
    /// Converts the result for the application.
    fn release(self) -> *mut rdma_addrinfo {
        let (ai_src_addr, ai_src_len) = copy(self.source);
        let (ai_dst_addr, ai_dst_len) = copy(self.destination);
        let nothing = std::ptr::null_mut();
        live::release(Box::new(rdma_addrinfo {
            ai_flags: self.flags,
            ai_family: self.family,
            ai_qp_type: self.qp_type,
            ai_port_space: self.port_space,
            ai_src_len,
            ai_dst_len,
            ai_src_addr,
            ai_dst_addr,
            ai_src_canonname: nothing,
            ai_dst_canonname: nothing,
            ai_route_len: 0,
            ai_route: std::ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: std::ptr::null_mut(),
            ai_next: std::ptr::null_mut(),
        }))
    }
}

pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    answer: *mut *mut rdma_addrinfo,
) -> c_int {
    count(Verb::rdma_getaddrinfo, || {
        // SAFETY: the application's pointers are strings or null, hints or null, and room for a pointer.
        unsafe {
            if answer.is_null() || node.is_null() && service.is_null() && hints.is_null() {
                return Err(Errno::INVALID);
            }
            let hints = hints.as_ref().map_or_else(|| Ok(Hints::default()), |given| Hints::read(given))?;
            if !matches!(hints.qp_type, 0 | IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD) {
                return Err(Errno::UNSUPPORTED);
            }
            let found = if node.is_null() && service.is_null() {
                hints.alone()
            } else {
                match hints.look_up(node, service) {
                    Ok(found) => found,
                    // The manual says otherwise, but librdmacm returns this code, and programs pass it to
                    // `gai_strerror`.
                    Err(code) => return Ok(code),
                }
            };
            answer.write(found.release());
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_freeaddrinfo(information: *mut rdma_addrinfo) {
    value(Verb::rdma_freeaddrinfo, (), || {
        // SAFETY: the boxes of `rdma_getaddrinfo`, which are freed once.
        unsafe {
            let Some(information) = live::reclaim(information) else { return };
            for address in [information.ai_src_addr, information.ai_dst_addr] {
                if !address.is_null() {
                    drop(Box::from_raw(address.cast::<libc::sockaddr_storage>()));
                }
            }
        }
    });
}

pub(super) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    pointer(Verb::rdma_get_devices, || {
        let contexts: Vec<_> = with(|cm| {
            cm.open_devices()?;
            Ok::<_, Errno>(cm.devices.iter().map(|device| device.context.0).collect())
        })?;
        // SAFETY: the application gives a null pointer or room for an integer.
        Ok(unsafe { list(Kind::ContextList, &contexts, number) })
    })
}

/// Frees the list; the contexts stay open.
pub(super) extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    value(Verb::rdma_free_devices, (), || free_list(Kind::ContextList, list));
}

pub(super) extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 16] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    let known = usize::try_from(event).ok().and_then(|event| NAMES.get(event));
    known.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn information_has_the_address_of_the_side_that_is_asked_for() {
        // SAFETY: texts and structures of this test.
        unsafe {
            let mut hints: rdma_addrinfo = std::mem::zeroed();
            for (flags, is_passive) in [(0, false), (RAI_PASSIVE, true)] {
                hints.ai_flags = flags;
                let mut found = std::ptr::null_mut();
                let answer = rdma_getaddrinfo(
                    c"198.18.0.7".as_ptr(),
                    c"7174".as_ptr(),
                    &raw const hints,
                    &raw mut found,
                );
                assert_eq!(answer, 0);
                let (own, other) = ((*found).ai_src_addr, (*found).ai_dst_addr);
                let (there, missing) = if is_passive { (own, other) } else { (other, own) };
                assert_eq!(read(there), Ok("198.18.0.7:7174".parse().unwrap()));
                assert!(missing.is_null());
                assert_eq!(((*found).ai_qp_type, (*found).ai_port_space), (IBV_QPT_RC, RDMA_PS_TCP));
                rdma_freeaddrinfo(found);
            }
            let mut found = std::ptr::null_mut();
            assert_eq!(
                rdma_getaddrinfo(std::ptr::null(), std::ptr::null(), std::ptr::null(), &raw mut found),
                -1
            );
        }
    }

    /// A client of libfabric passes only its peer's address, without a name.
    #[test]
    fn an_address_in_the_hints_is_enough() {
        let peer: SocketAddr = "198.18.0.7:7174".parse().unwrap();
        let mut address = storage(peer);
        // SAFETY: structures of this test.
        unsafe {
            let mut hints: rdma_addrinfo = std::mem::zeroed();
            hints.ai_dst_addr = (&raw mut address).cast();
            (hints.ai_dst_len, hints.ai_family) = (length(&peer), libc::AF_INET);
            let mut found = std::ptr::null_mut();
            let nothing = std::ptr::null();
            assert_eq!(rdma_getaddrinfo(nothing, nothing, &raw const hints, &raw mut found), 0);
            assert_eq!(read((*found).ai_dst_addr), Ok(peer));
            assert!((*found).ai_src_addr.is_null() && (*found).ai_family == libc::AF_INET);
            rdma_freeaddrinfo(found);
        }
    }
}
