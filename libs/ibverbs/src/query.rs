//! Attributes of the device and its port.

use std::ffi::{c_char, c_int, c_void};

use roce::device::interfaces_of;
use roce::transport::{MAX_MESSAGE, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
use roce::verbs::{Encapsulation, GidEntry, PathMtu};
use roce_fault::verbs::Verb;

use crate::abi::{
    COMPATIBLE_PORT_ATTR, DEVICE_CAPABILITIES, IBV_ATOMIC_HCA, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2,
    IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE,
    IBV_PORT_CM_SUP, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, ODP_CAPABILITIES, ODP_OF_RC, ODP_OF_UC,
    ODP_OF_UD, ODP_OF_XRC, PHYSICAL_DISABLED, PHYSICAL_LINK_UP, PORT_NEEDS_GRH, ibv_context, ibv_device_attr,
    ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
};
use crate::address::lid;
use crate::answer::{Errno, count, put, status};
use crate::context::{Open, open_of};
use crate::device_memory;
use crate::port::{PORT, mtu_number};

/// The only partition key, in network byte order.
const P_KEY: u16 = 0xffff_u16.to_be();
/// Vendor ID of the kernel's Soft-RoCE: a device without a vendor.
const NO_VENDOR: u32 = 0x00ff_ffff;

fn number(limit: usize) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

fn device_attributes(open: &Open) -> ibv_device_attr {
    let limits = open.context.query().limits;
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from.cast_signed() as c_char;
    }
    // SAFETY: numbers only; zero is valid and means that the device does not have the feature.
    let none: ibv_device_attr = unsafe { std::mem::zeroed() };
    ibv_device_attr {
        fw_ver,
        node_guid: open.device.guid(),
        sys_image_guid: open.device.guid(),
        max_mr_size: u64::MAX,
        // All page sizes from 4 KiB on.
        page_size_cap: !0xfff,
        vendor_id: NO_VENDOR,
        max_qp: number(limits.max_qp),
        max_qp_wr: number(MAX_QP_WR),
        device_cap_flags: DEVICE_CAPABILITIES,
        max_sge: number(MAX_SGE),
        max_sge_rd: number(MAX_SGE),
        max_cq: number(limits.max_cq),
        max_cqe: number(limits.max_cqe),
        max_mr: number(limits.max_mr),
        max_pd: number(limits.max_pd),
        max_qp_rd_atom: MAX_RD_ATOMIC.into(),
        max_res_rd_atom: number(limits.max_qp.saturating_mul(MAX_RD_ATOMIC.into())),
        max_qp_init_rd_atom: MAX_RD_ATOMIC.into(),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: number(limits.max_mr),
        max_mcast_grp: number(limits.max_qp),
        max_mcast_qp_attach: number(limits.max_qp),
        max_total_mcast_qp_attach: number(limits.max_qp),
        max_ah: number(limits.max_qp),
        max_srq: number(limits.max_srq),
        max_srq_wr: number(MAX_QP_WR),
        max_srq_sge: number(MAX_SGE),
        max_pkeys: 1,
        phys_port_cnt: PORT,
        ..none
    }
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the application's pointers are an open context and room for the attributes.
    status(Verb::ibv_query_device, || unsafe { put(attributes, device_attributes(open_of(context)?)) })
}

/// Writes the part of `answer` that the application has room for, and fills further room with zeros.
///
/// # Safety
///
/// `to` is null or has room for `room` bytes.
unsafe fn write_part<T>(answer: &T, to: *mut T, room: usize) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno::INVALID);
    }
    let len = size_of::<T>().min(room);
    // SAFETY: the answer and the caller's memory have at least `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(answer).cast::<u8>(), to.cast::<u8>(), len);
        to.cast::<u8>().add(len).write_bytes(0, room - len);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attributes: *mut ibv_device_attr_ex,
    room: usize,
) -> c_int {
    status(Verb::ibv_query_device_ex, || {
        // SAFETY: the application's pointer is an open context.
        let open = unsafe { open_of(context)? };
        // SAFETY: numbers only, for which zero is a valid value.
        let mut answer: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        answer.orig_attr = device_attributes(open);
        answer.device_cap_flags_ex = DEVICE_CAPABILITIES.into();
        answer.phys_port_cnt_ex = PORT.into();
        answer.odp_general_caps = ODP_CAPABILITIES;
        (answer.odp_caps_of_rc, answer.odp_caps_of_uc) = (ODP_OF_RC, ODP_OF_UC);
        (answer.odp_caps_of_ud, answer.xrc_odp_caps) = (ODP_OF_UD, ODP_OF_XRC);
        answer.max_dm_size = device_memory::MAX_SIZE as u64;
        // SAFETY: the application passes the size of its room.
        unsafe { write_part(&answer, attributes, room) }
    })
}

fn port_attributes(open: &Open, port: u8) -> Result<ibv_port_attr, Errno> {
    if port != PORT {
        return Err(Errno::INVALID);
    }
    let active = open.context.largest_path_mtu().map_or(1, mtu_number);
    let is_up = open.link.as_ref().is_none_or(|link| link.is_up());
    let (state, phys_state) = match is_up {
        true => (IBV_PORT_ACTIVE, PHYSICAL_LINK_UP),
        false => (IBV_PORT_DOWN, PHYSICAL_DISABLED),
    };
    Ok(ibv_port_attr {
        state,
        max_mtu: mtu_number(PathMtu::Mtu4096),
        active_mtu: active,
        gid_tbl_len: number(open.gids.len()),
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: MAX_MESSAGE,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: lid(open),
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        // Four lanes of 25 Gb/s. These values are nominal, because no physical link exists.
        active_width: 2,
        active_speed: 32,
        phys_state,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: PORT_NEEDS_GRH,
        port_cap_flags2: 0,
        active_speed_ex: 0,
    })
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    room: usize,
) -> c_int {
    // SAFETY: the application's pointers are an open context and `room` bytes.
    status(Verb::ibv_query_port, || unsafe {
        write_part(&port_attributes(open_of(context)?, port)?, attributes, room)
    })
}

/// Queries the port for programs that know only the fields up to `link_layer`.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: every program has room for this part.
    unsafe { query_port(context, port, attributes, COMPATIBLE_PORT_ATTR) }
}

/// Speed of the port in units of 100 Mb/s.
const PORT_SPEED: u64 = 1_000;

pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    status(Verb::ibv_query_port_speed, || {
        // SAFETY: the application's pointer is an open context.
        unsafe { open_of(context)? };
        if port != PORT.into() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application has room for a number.
        unsafe { put(speed, PORT_SPEED) }
    })
}

/// Returns the entry of the GID table with this index.
fn gid_at(open: &Open, port: u32, index: u32) -> Result<&GidEntry, Errno> {
    let index = usize::try_from(index).map_err(|_| Errno::INVALID)?;
    if port == PORT.into() { open.gid(index) } else { Err(Errno::INVALID) }
}

const fn gid_type(entry: &GidEntry) -> u32 {
    match entry.gid_type {
        Encapsulation::RoceV1 => IBV_GID_TYPE_ROCE_V1,
        Encapsulation::RoceV2 => IBV_GID_TYPE_ROCE_V2,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    count(Verb::ibv_query_gid, || {
        let index = u32::try_from(index).map_err(|_| Errno::INVALID)?;
        // SAFETY: the application's pointers are an open context and room for a GID.
        unsafe {
            let entry = gid_at(open_of(context)?, port.into(), index)?;
            put(gid, ibv_gid { raw: entry.gid.0 })?;
        }
        Ok(0)
    })
}

fn gid_entry(index: u32, entry: &GidEntry) -> ibv_gid_entry {
    let address = entry.address();
    let interface = interfaces_of(address, None).first().map_or(0, |local| local.index);
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: index,
        port_num: PORT.into(),
        gid_type: gid_type(entry),
        ndev_ifindex: interface,
    }
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    status(Verb::ibv_query_gid_ex, || {
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's pointers are an open context and room for an entry of this size.
        unsafe {
            let found = gid_at(open_of(context)?, port, index)?;
            write_part(&gid_entry(index, found), entry, entry_size)
        }
    })
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // This function returns negative error numbers.
    let written = count_entries(Verb::ibv_query_gid_table, || {
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's pointer is an open context.
        let open = unsafe { open_of(context)? };
        if entries.is_null() || max_entries < open.gids.len() {
            return Err(Errno::INVALID);
        }
        for (index, found) in open.gids.iter().enumerate() {
            let entry = gid_entry(u32::try_from(index).unwrap_or(u32::MAX), found);
            // SAFETY: the application has room for `max_entries` entries of this size.
            unsafe { write_part(&entry, entries.byte_add(index * entry_size), entry_size)? };
        }
        Ok(open.gids.len())
    });
    written.unwrap_or_else(|errno| -(errno.0 as isize))
}

/// Runs the body as an entry point, and returns its number of entries.
fn count_entries(verb: Verb, body: impl FnOnce() -> Result<usize, Errno>) -> Result<isize, Errno> {
    let mut found = Ok(0);
    let failed = status(verb, || {
        found = Ok(body()?.cast_signed());
        Ok(())
    });
    if failed == 0 { found } else { Err(Errno(failed)) }
}

pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    count(Verb::ibv_query_gid_type, || {
        // SAFETY: the application's pointers are an open context and room for a number.
        unsafe {
            let entry = gid_at(open_of(context)?, port.into(), index)?;
            let found = match entry.gid_type {
                Encapsulation::RoceV1 => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
                Encapsulation::RoceV2 => IBV_GID_TYPE_SYSFS_ROCE_V2,
            };
            put(kind, found)?;
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    count(Verb::ibv_query_pkey, || {
        // SAFETY: the application's pointer is an open context.
        unsafe { open_of(context)? };
        if port != PORT || index != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application has room for a key.
        unsafe { put(key, P_KEY)? };
        Ok(0)
    })
}

/// Returns the index of a partition key; the port has only the default one.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int {
    count(Verb::ibv_get_pkey_index, || {
        // SAFETY: the application's pointer is an open context.
        unsafe { open_of(context)? };
        if port == PORT && key == P_KEY { Ok(0) } else { Err(Errno::INVALID) }
    })
}
