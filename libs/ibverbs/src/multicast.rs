//! Multicast groups of queue pairs.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce_fault::verbs::Verb;

use crate::abi::{ibv_gid, ibv_qp};
use crate::answer::{Errno, status};
use crate::qp::qp_of;

/// Returns the multicast group of a GID. The GID of an IPv4 group is its mapped form, or `ff0e::ffff:` and
/// the address, which the kernel's connection manager uses.
fn group(gid: &ibv_gid) -> IpAddr {
    match gid.raw {
        [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        raw => Ipv6Addr::from(raw).to_canonical(),
    }
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(Verb::ibv_attach_mcast, || {
        // SAFETY: the application's pointers are a queue pair and a GID.
        let (object, gid) = unsafe { (qp_of(qp)?, gid.as_ref().ok_or(Errno::INVALID)?) };
        Ok(object.open.raw().attach_multicast(object.qpn, group(gid))?)
    })
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(Verb::ibv_detach_mcast, || {
        // SAFETY: the application's pointers are a queue pair and a GID.
        let (object, gid) = unsafe { (qp_of(qp)?, gid.as_ref().ok_or(Errno::INVALID)?) };
        Ok(object.open.raw().detach_multicast(object.qpn, group(gid))?)
    })
}

#[cfg(test)]
mod tests {
    use roce::verbs::Gid;

    use super::*;

    #[test]
    fn groups_have_two_forms_for_ipv4() {
        let kernel = ibv_gid { raw: [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3] };
        let mapped = ibv_gid { raw: Gid::from_ip("239.1.2.3".parse().unwrap()).0 };
        assert_eq!(group(&kernel), group(&mapped));
        let six = ibv_gid { raw: "ff0e::1".parse::<Ipv6Addr>().unwrap().octets() };
        assert_eq!(group(&six), "ff0e::1".parse::<IpAddr>().unwrap());
    }
}
