//! Work requests and completions.

use std::ffi::{c_int, c_uint, c_void};

use super::{ibv_ah, ibv_mr, ibv_mw};

/// `struct ibv_sge`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// The part of a send request for WRITE, READ and others with a remote address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The part of a send request for atomics.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The part of a send request of UD.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The union `wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union wr_target {
    pub(crate) rdma: wr_rdma,
    pub(crate) atomic: wr_atomic,
    pub(crate) ud: wr_ud,
}

/// The part of a send request that binds a window.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_bind_mw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// The part of a send request for segmentation, which this library does not support.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_tso {
    pub(crate) hdr: *mut c_void,
    pub(crate) hdr_sz: u16,
    pub(crate) mss: u16,
}

/// The last union of a send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union wr_special {
    pub(crate) bind_mw: wr_bind_mw,
    pub(crate) tso: wr_tso,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// Immediate data as its four bytes on the wire, or the key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: wr_target,
    pub(crate) remote_srqn: u32,
    pub(crate) special: wr_special,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data as its four bytes on the wire, or the key that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

layout! {
    ibv_sge: 16 { addr 0, length 8, lkey 12 }
    ibv_mw_bind_info: 32 { mr 0, addr 8, length 16, mw_access_flags 24 }
    ibv_mw_bind: 48 { wr_id 0, send_flags 8, bind_info 16 }
    wr_rdma: 16 { remote_addr 0, rkey 8 }
    wr_atomic: 32 { remote_addr 0, compare_add 8, swap 16, rkey 24 }
    wr_ud: 16 { ah 0, remote_qpn 8, remote_qkey 12 }
    wr_bind_mw: 48 { mw 0, rkey 8, bind_info 16 }
    wr_tso: 16 { hdr 0, hdr_sz 8, mss 10 }
    ibv_send_wr: 128 {
        wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, wr 40, remote_srqn 72, special
        80,
    }
    ibv_recv_wr: 32 { wr_id 0, next 8, sg_list 16, num_sge 24 }
    ibv_wc: 48 {
        wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, imm_data 24, qp_num 28, src_qp 32, wc_flags 36,
        pkey_index 40, slid 42, sl 44, dlid_path_bits 45,
    }
}
