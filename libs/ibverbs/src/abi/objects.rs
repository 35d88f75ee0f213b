//! Objects that the application has pointers to.

use std::ffi::{c_int, c_uint, c_void};

use super::{ibv_context, ibv_mw_bind_info, ibv_sge};

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

/// `struct ibv_xrcd`.
#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
pub(crate) struct ibv_xrcd_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

/// `struct ibv_td`.
#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

/// `struct ibv_td_init_attr`.
#[repr(C)]
pub(crate) struct ibv_td_init_attr {
    pub(crate) comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`. The functions would allocate memory that drivers share with
/// hardware.
#[repr(C)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) td: *mut ibv_td,
    pub(crate) comp_mask: u32,
    pub(crate) alloc: Option<unsafe extern "C" fn()>,
    pub(crate) free: Option<unsafe extern "C" fn()>,
    pub(crate) pd_context: *mut c_void,
}

/// `struct ibv_alloc_dm_attr`.
#[repr(C)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

/// `struct ibv_dm`: device memory, which programs copy to and from with these functions.
#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
    pub(crate) memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_mr_init_attr`, since rdma-core 59.
#[repr(C)]
pub(crate) struct ibv_mr_init_attr {
    pub(crate) length: usize,
    pub(crate) access: c_int,
    pub(crate) comp_mask: u64,
    pub(crate) iova: u64,
    pub(crate) addr: *mut c_void,
    pub(crate) fd: c_int,
    pub(crate) fd_offset: u64,
    pub(crate) dmah: *mut c_void,
    pub(crate) buf: *mut c_void,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_int,
}

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// A function that reads a field of the current completion.
pub(crate) type Read<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

/// `struct ibv_cq_ex`.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_int,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int>,
    pub(crate) next_poll: Read<c_int>,
    pub(crate) end_poll: Read<()>,
    pub(crate) read_opcode: Read<c_int>,
    pub(crate) read_vendor_err: Read<u32>,
    pub(crate) read_byte_len: Read<u32>,
    pub(crate) read_imm_data: Read<u32>,
    pub(crate) read_qp_num: Read<u32>,
    pub(crate) read_src_qp: Read<u32>,
    pub(crate) read_wc_flags: Read<c_uint>,
    pub(crate) read_slid: Read<u32>,
    pub(crate) read_sl: Read<u8>,
    pub(crate) read_dlid_path_bits: Read<u8>,
    pub(crate) read_completion_ts: Read<u64>,
    pub(crate) read_cvlan: Read<u16>,
    pub(crate) read_flow_tag: Read<u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn()>,
    pub(crate) read_completion_wallclock_ns: Read<u64>,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_data_buf`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

/// `struct ibv_qp_ex`; it has `wr_atomic_write` since rdma-core 44 and `wr_flush` since 45.
#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub(crate) wr_bind_mw:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn()>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    pub(crate) wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

layout! {
    ibv_xrcd: 8 { context 0 }
    ibv_xrcd_init_attr: 12 { comp_mask 0, fd 4, oflags 8 }
    ibv_pd: 16 { context 0, handle 8 }
    ibv_td: 8 { context 0 }
    ibv_td_init_attr: 4 { comp_mask 0 }
    ibv_parent_domain_init_attr: 48 { pd 0, td 8, comp_mask 16, alloc 24, free 32, pd_context 40 }
    ibv_alloc_dm_attr: 16 { length 0, log_align_req 8, comp_mask 12 }
    ibv_dm: 32 { context 0, memcpy_to_dm 8, memcpy_from_dm 16, comp_mask 24, handle 28 }
    ibv_mr: 48 { context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 }
    ibv_mr_init_attr: 72 {
        length 0, access 8, comp_mask 16, iova 24, addr 32, fd 40, fd_offset 48, dmah 56, buf 64,
    }
    ibv_mw: 32 { context 0, pd 8, rkey 16, handle 20, mw_type 24 }
    ibv_ah: 24 { context 0, pd 8, handle 16 }
    ibv_comp_channel: 16 { context 0, fd 8, refcnt 12 }
    ibv_cq: 128 {
        context 0, channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72, comp_events_completed 120,
        async_events_completed 124,
    }
    ibv_cq_ex: 288 {
        base 0, comp_mask 128, status 132, wr_id 136, start_poll 144, next_poll 152, end_poll 160, read_opcode 168,
        read_vendor_err 176, read_byte_len 184, read_imm_data 192, read_qp_num 200, read_src_qp 208, read_wc_flags 216,
        read_slid 224, read_sl 232, read_dlid_path_bits 240, read_completion_ts 248, read_cvlan 256, read_flow_tag 264,
        read_tm_info 272, read_completion_wallclock_ns 280,
    }
    ibv_srq: 128 { context 0, srq_context 8, pd 16, handle 24, mutex 32, cond 72, events_completed 120 }
    ibv_qp: 160 {
        context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48, qp_num 52, state 56, qp_type 60,
        mutex 64, cond 104, events_completed 152,
    }
    ibv_data_buf: 16 { addr 0, length 8 }
    ibv_qp_ex: 360 {
        base 0, comp_mask 160, wr_id 168, wr_flags 176, wr_atomic_cmp_swp 184, wr_atomic_fetch_add 192, wr_bind_mw 200,
        wr_local_inv 208, wr_rdma_read 216, wr_rdma_write 224, wr_rdma_write_imm 232, wr_send 240, wr_send_imm 248,
        wr_send_inv 256, wr_send_tso 264, wr_set_ud_addr 272, wr_set_xrc_srqn 280, wr_set_inline_data 288,
        wr_set_inline_data_list 296, wr_set_sge 304, wr_set_sge_list 312, wr_start 320, wr_complete 328, wr_abort 336,
        wr_atomic_write 344, wr_flush 352,
    }
}
