//! Devices and contexts, with the function tables that inline functions of the header use.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_dm, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_wc,
    ibv_xrcd, ibv_xrcd_init_attr,
};

/// An entry that programs no longer call through the table, or that is not supported.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// `struct ibv_device`. The memory directly behind it must be zero, because provider libraries read a pointer
/// there.
#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) ops: [Unused; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) before_mw: [Unused; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub(crate) bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub(crate) create_cq: Unused,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) before_post_srq: [Unused; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) before_post: [Unused; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) after_post: [Unused; 5],
}

/// `struct ibv_context`.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// Value of `abi_compat` if a `verbs_context` contains the `ibv_context`.
pub(crate) const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

/// `struct verbs_context`: precedes `ibv_context`, and grows at its own front.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub(crate) advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_int, u32, *mut ibv_sge, u32) -> c_int>,
    pub(crate) alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub(crate) counters: [Unused; 4],
    pub(crate) reg_dm_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub(crate) alloc_dm:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub(crate) free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub(crate) flow_actions_and_rates: [Unused; 4],
    pub(crate) alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub(crate) alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub(crate) modify_cq: Unused,
    pub(crate) tags_and_work_queues: [Unused; 6],
    pub(crate) query_rt_values: Unused,
    pub(crate) create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int,
    >,
    pub(crate) flow: [Unused; 4],
    pub(crate) open_qp: Unused,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(crate) get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut c_uint) -> c_int>,
    pub(crate) create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(crate) open_xrcd:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub(crate) placeholder: u64,
    /// The size of this structure, from which the application derives the available entries.
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

layout! {
    ibv_device: 664 { ops 0, node_type 16, transport_type 20, name 24, dev_name 88, dev_path 152, ibdev_path 408 }
    ibv_context_ops: 256 {
        before_mw 0, alloc_mw 56, bind_mw 64, dealloc_mw 72, create_cq 80, poll_cq 88, req_notify_cq 96, before_post_srq
        104, post_srq_recv 160, before_post 168, post_send 200, post_recv 208, after_post 216,
    }
    ibv_context: 328 { device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 320 }
    verbs_context: 648 {
        query_port 0, advise_mr 8, alloc_null_mr 16, counters 24, reg_dm_mr 56, alloc_dm 64, free_dm 72,
        flow_actions_and_rates 80, alloc_parent_domain 112, dealloc_td 120, alloc_td 128, modify_cq 136,
        tags_and_work_queues 144, query_rt_values 192, create_cq_ex 200, private 208, query_device_ex 216, flow 224,
        open_qp 256, create_qp_ex 264, get_srq_num 272, create_srq_ex 280, open_xrcd 288, close_xrcd 296,
        placeholder 304, sz 312, context 320,
    }
}
