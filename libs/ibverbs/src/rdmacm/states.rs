//! State transitions of the queue pairs of identifiers.

use std::ffi::c_int;

use roce::packet::flow::flow_label_of_port;
use roce_fault::verbs::Verb;

use super::id::{Id, id_of, is_datagram, is_uc, queue_pair};
use super::parameters::parameters;
use crate::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, ibv_qp_attr, rdma_cm_id,
};
use crate::answer::{Errno, count};
use crate::port::{PORT, mtu_number};
use crate::qp::ibv_modify_qp;

/// States of queue pairs in `enum ibv_qp_state`.
const INIT: c_int = 1;
const RTR: c_int = 2;
const RTS: c_int = 3;
const ERROR: c_int = 6;

/// `IBV_ACCESS_REMOTE_WRITE`, `IBV_ACCESS_REMOTE_READ` and `IBV_ACCESS_REMOTE_ATOMIC`.
const REMOTE: u32 = 0b1110;
/// RNR NAKs request 0.64 ms. Kernels request 655 ms here (code 0), which delays their applications.
const RNR_TIMER: u8 = 12;

/// Returns the attributes that move the queue pair of an identifier to a state, and the mask of those that
/// are set.
fn attributes(id: &Id, state: c_int) -> Result<(ibv_qp_attr, c_int), Errno> {
    // SAFETY: numbers, for which zero is a valid value.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes.port_num = PORT;
    let is_reliable = !is_datagram(id) && !is_uc(id);
    let mask = match state {
        INIT if is_datagram(id) => {
            attributes.qkey = id.state().qkey;
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
        }
        INIT => {
            attributes.qp_access_flags = if id.state().comm.is_some() { REMOTE } else { 0 };
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
        }
        RTR if is_datagram(id) => 0,
        RTR => {
            let agreed = parameters(id)?;
            let held = id.state();
            attributes.ah_attr = held.address_vector();
            attributes.ah_attr.grh.dgid.raw = roce::verbs::Gid::from_ip(agreed.path.destination).0;
            attributes.ah_attr.grh.flow_label = flow_label_of_port(agreed.path.source_port);
            attributes.ah_attr.grh.traffic_class = held.traffic_class.unwrap_or(agreed.path.traffic_class);
            attributes.path_mtu = mtu_number(agreed.path_mtu);
            attributes.dest_qp_num = agreed.dest_qpn.get();
            attributes.rq_psn = held.psn.get();
            attributes.max_dest_rd_atomic = agreed.max_dest_rd_atomic;
            attributes.min_rnr_timer = RNR_TIMER;
            let rest = if is_reliable { IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER } else { 0 };
            IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | rest
        }
        RTS if is_datagram(id) => IBV_QP_SQ_PSN,
        RTS => {
            let agreed = parameters(id)?;
            attributes.sq_psn = agreed.sq_psn.get();
            attributes.timeout = id.state().ack_timeout.unwrap_or(agreed.timeout.code());
            attributes.retry_cnt = agreed.retry_cnt;
            attributes.rnr_retry = agreed.rnr_retry;
            attributes.max_rd_atomic = agreed.max_rd_atomic;
            let rest = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            IBV_QP_SQ_PSN | if is_reliable { rest } else { 0 }
        }
        _ => return Err(Errno::INVALID),
    };
    Ok((attributes, mask | IBV_QP_STATE))
}

pub(super) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    out: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    count(Verb::rdma_init_qp_attr, || {
        // SAFETY: the application's pointers are an identifier, attributes with a state, and room for an
        // integer.
        unsafe {
            let (object, wanted) = (id_of(id)?, out.as_ref().ok_or(Errno::INVALID)?.qp_state);
            let (attributes, set) = attributes(object, wanted)?;
            out.write(attributes);
            mask.as_mut().map(|mask| *mask = set).ok_or(Errno::INVALID)?;
        }
        Ok(0)
    })
}

/// Moves the queue pair of an identifier to a state.
pub(super) fn modify(id: &Id, state: c_int) -> Result<(), Errno> {
    let (mut attributes, mask) = attributes(id, state)?;
    // SAFETY: the queue pair of an identifier is alive while the field refers to it.
    match unsafe { ibv_modify_qp((*id.abi()).qp, &raw mut attributes, mask) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// Moves a datagram queue pair to RTS, where it sends and receives.
pub(super) fn start_datagrams(id: &Id) -> Result<(), Errno> {
    [INIT, RTR, RTS].into_iter().try_for_each(|state| modify(id, state))
}

/// Moves a connected queue pair to INIT, where it accepts receives.
pub(super) fn start_connected(id: &Id) -> Result<(), Errno> {
    modify(id, INIT)
}

/// Moves a queue pair to RTS. Repeats INIT, because the access rights are known only now.
pub(super) fn bring_up(id: &Id) -> Result<(), Errno> {
    [INIT, RTR, RTS].into_iter().try_for_each(|state| modify(id, state))
}

/// Flushes the requests on the queue pair of an identifier, if it has one.
pub(super) fn to_error(id: &Id) {
    if queue_pair(id).is_some() && !is_datagram(id) {
        // SAFETY: numbers, for which zero is a valid value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ERROR;
        // SAFETY: as in `modify`. The queue pair may already be in ERR.
        unsafe { ibv_modify_qp((*id.abi()).qp, &raw mut attributes, IBV_QP_STATE) };
    }
}
