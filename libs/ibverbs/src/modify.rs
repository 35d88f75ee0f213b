//! Conversion of queue pair attributes from and to the application's structures.

use std::ffi::c_int;

use roce::transport::DEFAULT_P_KEY;
use roce::verbs::{Access, Gid, GidEntry, Path, PathMtu, Psn, QpAttr, QpAttributes, QpState, Qpn, RnrTimer};

use crate::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_AV, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN,
    IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RATE_LIMIT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap,
};
use crate::address::route;
use crate::answer::Errno;
use crate::context::Open;
use crate::memory::access;
use crate::port::{PORT, mtu_number};

/// Known attribute masks; others are an error, as with kernels.
const KNOWN: c_int = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_DEST_QPN;
/// Path migration and rate limits are not supported.
const UNSUPPORTED: c_int = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_RATE_LIMIT;

const MTUS: [PathMtu; 5] =
    [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

fn state(number: c_int) -> Result<QpState, Errno> {
    let index = usize::try_from(number).map_err(|_| Errno::INVALID)?;
    QpState::ALL.get(index).copied().ok_or(Errno::INVALID)
}

fn path_mtu(number: c_int) -> Result<PathMtu, Errno> {
    MTUS.into_iter().find(|mtu| mtu_number(*mtu) == number).ok_or(Errno::INVALID)
}

/// The significant bits of an attribute, which are the bits of the hardware field. An mlx5 device uses the
/// low bits of a larger value, and applications pass such values. docs/reference/verbs.md has the table.
const TIMER_BITS: u8 = 0x1f;
const RETRY_BITS: u8 = 0x07;

/// Returns the access rights of peers, in the engine's representation.
fn rights(flags: u32) -> Result<Access, Errno> {
    Ok(access(flags)? & Access::REMOTE)
}

/// Returns the path of an address vector, with a source port from the device. Without a new peer in the call,
/// the path leads to the current peer of the queue pair.
fn path(open: &Open, qpn: Qpn, attributes: &ibv_qp_attr, mask: c_int) -> Result<Path, Errno> {
    let (address, options) = route(open, &attributes.ah_attr)?;
    let peer = if mask & IBV_QP_DEST_QPN != 0 {
        Qpn::new(attributes.dest_qp_num)
    } else {
        open.raw().query_qp(qpn).ok_or(Errno::INVALID)?.dest_qpn
    };
    Ok(open.raw().path_of_qp(qpn, peer, address, &options)?)
}

/// Returns the attributes that `mask` selects.
pub(crate) fn given(open: &Open, qpn: Qpn, attributes: &ibv_qp_attr, mask: c_int) -> Result<QpAttr, Errno> {
    if mask & UNSUPPORTED != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if mask & !KNOWN != 0 {
        return Err(Errno::INVALID);
    }
    let has = |bit: c_int| mask & bit != 0;
    let rnr_timer = || RnrTimer::new(attributes.min_rnr_timer & TIMER_BITS).ok_or(Errno::INVALID);
    Ok(QpAttr {
        state: has(IBV_QP_STATE).then(|| state(attributes.qp_state)).transpose()?,
        cur_state: has(IBV_QP_CUR_STATE).then(|| state(attributes.cur_qp_state)).transpose()?,
        en_sqd_async_notify: has(IBV_QP_EN_SQD_ASYNC_NOTIFY).then_some(attributes.en_sqd_async_notify != 0),
        access: has(IBV_QP_ACCESS_FLAGS).then(|| rights(attributes.qp_access_flags)).transpose()?,
        pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attributes.pkey_index),
        port: has(IBV_QP_PORT).then_some(attributes.port_num),
        qkey: has(IBV_QP_QKEY).then_some(attributes.qkey),
        path_mtu: has(IBV_QP_PATH_MTU).then(|| path_mtu(attributes.path_mtu)).transpose()?,
        timeout: has(IBV_QP_TIMEOUT).then_some(attributes.timeout & TIMER_BITS),
        retry_cnt: has(IBV_QP_RETRY_CNT).then_some(attributes.retry_cnt & RETRY_BITS),
        rnr_retry: has(IBV_QP_RNR_RETRY).then_some(attributes.rnr_retry & RETRY_BITS),
        rq_psn: has(IBV_QP_RQ_PSN).then(|| Psn::new(attributes.rq_psn)),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attributes.max_rd_atomic),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then(rnr_timer).transpose()?,
        sq_psn: has(IBV_QP_SQ_PSN).then(|| Psn::new(attributes.sq_psn)),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attributes.max_dest_rd_atomic),
        dest_qpn: has(IBV_QP_DEST_QPN).then(|| Qpn::new(attributes.dest_qp_num)),
        // Last, because it takes a source port of the device.
        path: has(IBV_QP_AV).then(|| path(open, qpn, attributes, mask)).transpose()?,
    })
}

const NO_GID: ibv_gid = ibv_gid { raw: [0; 16] };

/// Returns the address vector of a path.
fn address_vector(open: &Open, path: Option<&Path>, sgid_index: u8) -> ibv_ah_attr {
    let none =
        ibv_global_route { dgid: NO_GID, flow_label: 0, sgid_index: 0, hop_limit: 0, traffic_class: 0 };
    let grh = path.map_or(none, |path| {
        let is_own =
            |entry: &GidEntry| entry.gid_type == path.encapsulation && entry.address() == path.source;
        let given = usize::from(sgid_index);
        let index = if open.gids.get(given).is_some_and(is_own) {
            given
        } else {
            open.gids.iter().position(is_own).unwrap_or(0)
        };
        ibv_global_route {
            dgid: ibv_gid { raw: Gid::from_ip(path.destination).0 },
            flow_label: path.flow_label,
            sgid_index: u8::try_from(index).unwrap_or(u8::MAX),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        }
    });
    let is_global = u8::from(path.is_some());
    ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global, port_num: PORT }
}

/// Returns all current attributes. `sgid_index` is the last one from the application, because several refer
/// to one GID.
pub(crate) fn in_force(open: &Open, found: &QpAttributes, cap: ibv_qp_cap, sgid_index: u8) -> ibv_qp_attr {
    debug_assert_eq!(found.p_key, DEFAULT_P_KEY, "the one at index 0");
    ibv_qp_attr {
        qp_state: c_int::from(found.state as u8),
        cur_qp_state: c_int::from(found.state as u8),
        path_mtu: mtu_number(found.path_mtu),
        path_mig_state: 0,
        qkey: found.qkey,
        rq_psn: found.rq_psn.get(),
        sq_psn: found.sq_psn.get(),
        dest_qp_num: found.dest_qpn.get(),
        qp_access_flags: found.access.bits(),
        cap,
        ah_attr: address_vector(open, found.path.as_ref(), sgid_index),
        alt_ah_attr: address_vector(open, None, 0),
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: found.en_sqd_async_notify.into(),
        sq_draining: 0,
        max_rd_atomic: found.max_rd_atomic,
        max_dest_rd_atomic: found.max_dest_rd_atomic,
        min_rnr_timer: found.min_rnr_timer.code(),
        port_num: PORT,
        timeout: found.timeout,
        retry_cnt: found.retry_cnt,
        rnr_retry: found.rnr_retry,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}
