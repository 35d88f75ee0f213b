//! The extended interface of completion queues, which reads one completion at a time, field by field.

use std::ffi::{c_int, c_uint, c_void};

use roce::verbs::{Wc, WcStatus};
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex,
};
use crate::answer::{Errno, guarded, pointer, status};
use crate::cq::{self, Cq, Wanted, cq_unchecked, immediate, opcode_number};
use crate::{failing, faults};

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(Verb::ibv_create_cq_ex, || {
        // SAFETY: the application's pointer is to attributes that it has filled in.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::INVALID)?;
        // Time stamps and the other fields are not supported. A parent domain is accepted and ignored.
        if attributes.wc_flags & !IBV_WC_STANDARD_FLAGS != 0
            || attributes.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        {
            return Err(Errno::UNSUPPORTED);
        }
        let wanted = Wanted {
            entries: attributes.cqe as usize,
            cq_context: attributes.cq_context,
            channel: attributes.channel,
            vector: attributes.comp_vector,
        };
        // SAFETY: the application's pointers are an open context, and a channel of it or null.
        let object = unsafe { cq::create(context, &wanted)? };
        // SAFETY: made just now, and not yet given to the application.
        let abi = unsafe { &mut (*object).abi };
        abi.start_poll = Some(start_poll);
        abi.next_poll = Some(next_poll);
        abi.end_poll = Some(end_poll);
        abi.read_opcode = Some(read_opcode);
        abi.read_vendor_err = Some(read_vendor_err);
        abi.read_byte_len = Some(read_byte_len);
        abi.read_imm_data = Some(read_imm_data);
        abi.read_qp_num = Some(read_qp_num);
        abi.read_src_qp = Some(read_src_qp);
        abi.read_wc_flags = Some(read_wc_flags);
        abi.read_slid = Some(read_nothing);
        abi.read_sl = Some(read_sl);
        abi.read_dlid_path_bits = Some(read_no_byte);
        Ok(object.cast())
    })
}

/// Makes the next completion the current one; fails with `ENOENT` if the queue is empty.
///
/// # Safety
///
/// `cq` is a queue of the application, and no other thread uses its extended interface now.
unsafe fn advance(cq: *mut ibv_cq_ex) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let object: &Cq = unsafe { cq_unchecked(cq.cast())? };
    let mut found = [Wc::default()];
    if object.open.raw().poll_cq(&object.raw, &mut found)? == 0 {
        return Err(Errno::NO_ENTRY);
    }
    if found[0].status != WcStatus::Success {
        object.open.failures.note(&found[0], &object.open.context);
    } else if faults::is_active() {
        failing::decide(&object.open, &mut found[0]);
    }
    object.present.set(found[0]);
    // SAFETY: as above; these fields are the library's to write.
    unsafe {
        (*cq).status = c_int::from(found[0].status as u8);
        (*cq).wr_id = found[0].wr_id;
    }
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut c_void) -> c_int {
    // The only field of the attributes is a mask without defined bits.
    // SAFETY: the application's pointers are a queue, and attributes or null.
    status(Verb::ibv_start_poll, || unsafe {
        match attributes.cast::<u32>().as_ref() {
            Some(mask) if *mask != 0 => Err(Errno::INVALID),
            _ => advance(cq),
        }
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the application's pointer is a queue between the start and the end of polling.
    status(Verb::ibv_next_poll, || unsafe { advance(cq) })
}

extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

/// Returns a field of the current completion.
///
/// # Safety
///
/// As for [`advance`].
unsafe fn read<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Wc) -> T) -> T {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { cq_unchecked(cq.cast()) }.map(|object| field(&object.present.get())))
        .unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the application reads from a queue while it polls it; so below.
    unsafe { read(cq, |wc| opcode_number(wc.opcode)) }
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(cq, |wc| wc.cause as u32) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(cq, |wc| wc.byte_len) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(cq, immediate) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(cq, |wc| wc.qpn.get()) }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(cq, |wc| wc.src_qp.get()) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: as above.
    unsafe { read(cq, cq::flags) }
}

/// Returns 0, because RoCE has no LIDs.
extern "C" fn read_nothing(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as above.
    unsafe { read(cq, |wc| wc.service_level) }
}

extern "C" fn read_no_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
