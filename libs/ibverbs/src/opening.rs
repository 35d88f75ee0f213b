//! Opening a device: the tables of functions that an `ibv_context` contains.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use roce_fault::verbs::Verb;

use crate::abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::answer::{Errno, pointer};
use crate::context::{self, Open};
use crate::device::Device;
use crate::{cq, cq_ex, device_memory, domain, exit, memory, outages, qp, qp_ex, query, srq, window, xrc};

/// Returns the tables of functions, and the other fields for the application.
fn tables(device: *mut ibv_device, async_fd: c_int, engines: usize) -> verbs_context {
    let ops = ibv_context_ops {
        before_mw: [None; 7],
        alloc_mw: Some(window::alloc_mw),
        bind_mw: Some(window::bind_mw),
        dealloc_mw: Some(window::dealloc_mw),
        create_cq: None,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        before_post_srq: [None; 7],
        post_srq_recv: Some(srq::post_srq_recv),
        before_post: [None; 4],
        post_send: Some(qp::post_send),
        post_recv: Some(qp::post_recv),
        after_post: [None; 5],
    };
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: Some(memory::alloc_null_mr),
        counters: [None; 4],
        reg_dm_mr: Some(device_memory::reg_dm_mr),
        alloc_dm: Some(device_memory::alloc_dm),
        free_dm: Some(device_memory::free_dm),
        flow_actions_and_rates: [None; 4],
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: None,
        tags_and_work_queues: [None; 6],
        query_rt_values: None,
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: std::ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        flow: [None; 4],
        open_qp: None,
        create_qp_ex: Some(qp_ex::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        placeholder: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops,
            // A kernel device does not exist, but programs change flags of the descriptor or duplicate it.
            cmd_fd: async_fd,
            async_fd,
            // A completion vector is an engine.
            num_comp_vectors: c_int::try_from(engines).unwrap_or(c_int::MAX),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: VERBS_ABI_IS_EXTENDED as *mut c_void,
        },
    }
}

pub(crate) extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(Verb::ibv_open_device, || open(Device::of(device)?))
}

/// Opens a device.
pub(crate) fn open(device: Arc<Device>) -> Result<*mut ibv_context, Errno> {
    let abi = device.abi();
    let open = Arc::new(Open::new(device)?);
    let verbs = tables(abi, open.async_events.as_fd().as_raw_fd(), open.context.engines());
    exit::watch(&open);
    outages::watch(&open);
    Ok(context::release(verbs, open))
}
