//! Address handles.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use roce::verbs::raw::listing;
use roce::verbs::{AddressHandle, Gid, PathOptions, PdId, Qpn, UdDestination};
use roce_fault::verbs::Verb;

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use crate::answer::{Errno, pointer, put, status};
use crate::context::{Open, open_of};
use crate::domain::pd_of;
use crate::live::{self, Kind, Object};
use crate::port::PORT;

/// The hop limit that replaces 0.
const HOP_LIMIT: u8 = 64;
/// The ECN codepoint of packets whose application set none: ECT(0), which RNICs send.
const ECT_0: u8 = 2;
const ECN: u8 = 3;

/// Returns the traffic class of packets for an application that requests this one.
pub(crate) const fn marked(traffic_class: u8) -> u8 {
    if traffic_class & ECN == 0 { traffic_class | ECT_0 } else { traffic_class }
}

/// An `ibv_ah` with the state of the library.
#[repr(C)]
struct Ah {
    abi: ibv_ah,
    /// Held because the handle belongs to its context.
    _open: Arc<Open>,
    /// Held because a protection domain with address handles must not be deallocated.
    _domain: Arc<PdId>,
    handle: AddressHandle,
}

impl Object for Ah {
    const KIND: Kind = Kind::AddressHandle;

    fn handle(&self) -> u32 {
        self.abi.handle
    }
}

/// Returns the LID of the port: the last two bytes of an IPv4 address. RoCE has no LIDs, but some InfiniBand
/// programs (qperf) know nothing else. With these LIDs they reach each other within a network of 16 bits.
pub(crate) fn lid(open: &Open) -> u16 {
    listing::lid(open.context.address())
}

/// Returns the address with this LID.
fn of_lid(open: &Open, lid: u16) -> Result<IpAddr, Errno> {
    match open.context.address() {
        Some(IpAddr::V4(address)) if lid != 0 => {
            let ([a, b, _, _], [c, d]) = (address.octets(), lid.to_be_bytes());
            Ok(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
        }
        _ => Err(Errno::INVALID),
    }
}

/// Returns the address and the options of an address vector: those of its GRH, or the address of its LID.
pub(crate) fn route(open: &Open, attributes: &ibv_ah_attr) -> Result<(IpAddr, PathOptions), Errno> {
    if attributes.port_num != PORT {
        return Err(Errno::INVALID);
    }
    if attributes.is_global == 0 {
        return Ok((of_lid(open, attributes.dlid)?, PathOptions::default()));
    }
    let grh = &attributes.grh;
    let options = PathOptions::default()
        .sgid_index(open.gid(grh.sgid_index.into())?.index)
        .traffic_class(marked(grh.traffic_class))
        .hop_limit(if grh.hop_limit == 0 { HOP_LIMIT } else { grh.hop_limit })
        .flow_label(grh.flow_label & 0x000f_ffff);
    Ok((Gid(grh.dgid.raw).to_ip(), options))
}

/// Returns the destination of a datagram.
///
/// # Safety
///
/// `ah` is an address handle of the application, or null.
pub(crate) unsafe fn destination(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDestination, Errno> {
    // SAFETY: the `ibv_ah` is the first field of an `Ah`, which the caller keeps alive.
    let object = unsafe { live::unchecked(ah.cast::<Ah>())? };
    let path = object.handle.destination().path;
    Ok(UdDestination { path, remote_qpn: Qpn::new(qpn), remote_qkey: qkey })
}

pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer(Verb::ibv_create_ah, || {
        // SAFETY: the application's pointers are a protection domain and attributes.
        let (domain, attributes) = unsafe { (pd_of(pd)?, attributes.as_ref().ok_or(Errno::INVALID)?) };
        let (address, options) = route(&domain.open, attributes)?;
        // Each work request contains the QP number and the Q_Key of the peer.
        let handle = domain.open.context.create_address_handle(address, Qpn::new(0), 0, &options)?;
        let abi = ibv_ah { context: domain.context(), pd, handle: 0 };
        let (_open, _domain) = (Arc::clone(&domain.open), domain.hold());
        Ok(live::release(Box::new(Ah { abi, _open, _domain, handle })).cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(Verb::ibv_destroy_ah, || {
        // SAFETY: the application's pointer is an address handle that it has not destroyed.
        unsafe { live::object(ah.cast::<Ah>())? };
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(ah.cast::<Ah>()) });
        Ok(())
    })
}

/// Returns the two addresses and the traffic class from the 40 bytes in front of a datagram. They contain a
/// GRH or IPv6 header, or 20 unused bytes and an IPv4 header (IBTA annex 17).
fn addresses(grh: &[u8; 40]) -> (IpAddr, IpAddr, u8) {
    let six = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&grh[at..at + 16]);
        Gid(octets).to_ip()
    };
    let four = |at: usize| IpAddr::V4(Ipv4Addr::new(grh[at], grh[at + 1], grh[at + 2], grh[at + 3]));
    if grh[0] >> 4 == 6 {
        (six(8), six(24), grh[0] << 4 | grh[1] >> 4)
    } else {
        (four(32), four(36), grh[21])
    }
}

/// Writes the address vector for replies to a datagram.
///
/// # Safety
///
/// `grh` points to 40 bytes and `attributes` has room.
unsafe fn from_wc(
    open: &Open,
    port: u8,
    grh: *const ibv_grh,
    attributes: *mut ibv_ah_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; every byte is a valid value.
    let bytes = unsafe { grh.cast::<[u8; 40]>().as_ref() }.ok_or(Errno::INVALID)?;
    let (source, own, traffic_class) = addresses(bytes);
    // Replies to multicast datagrams come from the first GID of the same IP version.
    let index = open.gids.iter().position(|entry| entry.address() == own);
    let index =
        index.or_else(|| open.gids.iter().position(|entry| entry.address().is_ipv4() == own.is_ipv4()));
    let sgid_index = index.and_then(|index| u8::try_from(index).ok()).ok_or(Errno::INVALID)?;
    let dgid = ibv_gid { raw: Gid::from_ip(source).0 };
    let grh = ibv_global_route { dgid, flow_label: 0, sgid_index, hop_limit: 0xff, traffic_class };
    let answer =
        ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: port };
    // SAFETY: the caller's promise.
    unsafe { put(attributes, answer) }
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    _wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attributes: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the application's pointers are an open context, the 40 bytes of a datagram, and room for
    // attributes.
    status(Verb::ibv_init_ah_from_wc, || unsafe { from_wc(open_of(context)?, port, grh, attributes) })
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: numbers only, for which zero is a valid value.
    let mut attributes: ibv_ah_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the application's pointers are a protection domain and the 40 bytes of a datagram.
    let made = status(Verb::ibv_create_ah_from_wc, || unsafe {
        from_wc(&pd_of(pd)?.open, port, grh, &raw mut attributes)
    });
    if made != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { ibv_create_ah(pd, &raw mut attributes) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn both_headers_in_front_of_a_datagram_are_read() {
        let mut four = [0; 40];
        four[20] = 0x45;
        four[21] = 0x6a;
        four[32..36].copy_from_slice(&[192, 0, 2, 1]);
        four[36..40].copy_from_slice(&[192, 0, 2, 2]);
        assert_eq!(addresses(&four), ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap(), 0x6a));
        let mut six = [0; 40];
        six[..2].copy_from_slice(&[0x66, 0xa0]);
        six[8..24].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        six[24..40].copy_from_slice(&"2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(addresses(&six), ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap(), 0x6a));
    }
}
