//! Options of identifiers.

use std::ffi::{c_int, c_void};

use roce_fault::verbs::Verb;

use super::id::id_of;
use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, rdma_cm_id,
};
use crate::answer::{Errno, count};

/// The largest code of a local ACK timeout (IBTA 9.7.6.1.3).
const LONGEST_TIMEOUT: u8 = 31;

pub(super) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    count(Verb::rdma_set_option, || {
        // SAFETY: the application's pointers are an identifier and a value of `len` bytes.
        let (object, byte) = unsafe { (id_of(id)?, value.cast::<u8>().as_ref().copied()) };
        let byte = byte.filter(|_| len == 1).ok_or(Errno::INVALID);
        // SAFETY: as above.
        let number = (len == size_of::<c_int>() && !value.is_null())
            .then(|| unsafe { value.cast::<c_int>().read_unaligned() != 0 });
        let number = number.ok_or(Errno::INVALID);
        let mut state = object.state();
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => state.traffic_class = Some(byte?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let code = byte?;
                if code > LONGEST_TIMEOUT {
                    return Err(Errno::INVALID);
                }
                state.ack_timeout = Some(code);
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => state.shares_port = number?,
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => state.is_family_only = Some(number?),
            // InfiniBand paths come from a subnet manager.
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return Err(Errno::UNSUPPORTED),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(0)
    })
}
