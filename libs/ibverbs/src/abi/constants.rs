//! Constants of the interface.

use std::ffi::{c_int, c_uint};

pub(crate) const IBV_NODE_CA: c_int = 1;
pub(crate) const IBV_TRANSPORT_IB: c_int = 0;

pub(crate) const IBV_ATOMIC_HCA: c_int = 1;
pub(crate) const IBV_PORT_DOWN: c_int = 1;
pub(crate) const IBV_PORT_ACTIVE: c_int = 4;
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;
/// The physical states "disabled" and "link up" (IBTA 14.2.5.6).
pub(crate) const PHYSICAL_DISABLED: u8 = 3;
pub(crate) const PHYSICAL_LINK_UP: u8 = 5;
pub(crate) const IBV_PORT_CM_SUP: u32 = 1 << 16;
pub(crate) const IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;

/// Capabilities of the device: CURR_QP_STATE_MOD, RC_RNR_NAK_GEN, SRQ_RESIZE, MEM_WINDOW (type 1),
/// MEM_MGT_EXTENSIONS (local and remote invalidate), XRC, MEM_WINDOW_TYPE_2B.
pub(crate) const DEVICE_CAPABILITIES: c_uint =
    1 << 7 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;
/// On-demand paging: `IBV_ODP_SUPPORT` and `IBV_ODP_SUPPORT_IMPLICIT`. The constants below are the operations
/// of each transport: SEND and RECV for all, WRITE for UC and RC, READ and atomics for RC, and shared receive
/// queues.
pub(crate) const ODP_CAPABILITIES: u64 = 1 | 1 << 1;
pub(crate) const ODP_OF_RC: u32 = 0x3f;
pub(crate) const ODP_OF_UC: u32 = 0x7;
pub(crate) const ODP_OF_UD: u32 = 0x23;
pub(crate) const ODP_OF_XRC: u32 = 0x3f;
/// `IBV_QPF_GRH_REQUIRED` in the flags of a port.
pub(crate) const PORT_NEEDS_GRH: u8 = 1;

pub(crate) const IBV_GID_TYPE_ROCE_V1: u32 = 1;
pub(crate) const IBV_GID_TYPE_ROCE_V2: u32 = 2;
/// Results of the private `ibv_query_gid_type`, where InfiniBand and RoCE v1 have one value.
pub(crate) const IBV_GID_TYPE_SYSFS_IB_ROCE_V1: c_int = 0;
pub(crate) const IBV_GID_TYPE_SYSFS_ROCE_V2: c_int = 1;

pub(crate) const IBV_QPT_RC: c_int = 2;
pub(crate) const IBV_QPT_UC: c_int = 3;
pub(crate) const IBV_QPT_UD: c_int = 4;
pub(crate) const IBV_QPT_XRC_SEND: c_int = 9;
pub(crate) const IBV_QPT_XRC_RECV: c_int = 10;

pub(crate) const IBV_QP_STATE: c_int = 1;
pub(crate) const IBV_QP_CUR_STATE: c_int = 1 << 1;
pub(crate) const IBV_QP_EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
pub(crate) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const IBV_QP_PORT: c_int = 1 << 5;
pub(crate) const IBV_QP_QKEY: c_int = 1 << 6;
pub(crate) const IBV_QP_AV: c_int = 1 << 7;
pub(crate) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const IBV_QP_ALT_PATH: c_int = 1 << 14;
pub(crate) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const IBV_QP_PATH_MIG_STATE: c_int = 1 << 18;
pub(crate) const IBV_QP_DEST_QPN: c_int = 1 << 20;
pub(crate) const IBV_QP_RATE_LIMIT: c_int = 1 << 25;

pub(crate) const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub(crate) const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub(crate) const IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub(crate) const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub(crate) const IBV_SRQ_MAX_WR: c_int = 1;
pub(crate) const IBV_SRQ_LIMIT: c_int = 1 << 1;
pub(crate) const IBV_SRQT_BASIC: c_int = 0;
pub(crate) const IBV_SRQT_XRC: c_int = 1;
pub(crate) const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
pub(crate) const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub(crate) const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub(crate) const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;

pub(crate) const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
pub(crate) const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

pub(crate) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(crate) const IBV_WR_SEND: c_int = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: c_int = 3;
pub(crate) const IBV_WR_RDMA_READ: c_int = 4;
pub(crate) const IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub(crate) const IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub(crate) const IBV_WR_LOCAL_INV: c_int = 7;
pub(crate) const IBV_WR_BIND_MW: c_int = 8;
pub(crate) const IBV_WR_SEND_WITH_INV: c_int = 9;
pub(crate) const IBV_WR_ATOMIC_WRITE: c_int = 15;

pub(crate) const IBV_SEND_FENCE: c_uint = 1;
pub(crate) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const IBV_SEND_SOLICITED: c_uint = 1 << 2;
pub(crate) const IBV_SEND_INLINE: c_uint = 1 << 3;

/// Bits of `send_ops_flags` for each transport. UD has SEND and SEND_WITH_IMM; UC also has WRITE and
/// WRITE_WITH_IMM. RC also has READ, atomics, invalidates, window binds, FLUSH and ATOMIC_WRITE.
pub(crate) const SEND_OPS_OF_UD: u64 = 0xc;
pub(crate) const SEND_OPS_OF_UC: u64 = 0xf;
pub(crate) const SEND_OPS_OF_RC: u64 = 0x1bff;
/// The operations of RC except FLUSH and ATOMIC_WRITE, which have no XRC packets.
pub(crate) const SEND_OPS_OF_XRC: u64 = 0x3ff;
/// `IBV_QP_EX_WITH_ATOMIC_WRITE`.
pub(crate) const SEND_OP_ATOMIC_WRITE: u64 = 1 << 12;

pub(crate) const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;

pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

pub(crate) const IBV_ADVISE_MR_ADVICE_PREFETCH: c_int = 0;
pub(crate) const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: c_int = 1;
pub(crate) const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: c_int = 2;
/// `IBV_ADVISE_MR_FLAG_FLUSH`: the advice is complete when the function returns.
pub(crate) const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;
/// `byte_len` to `dlid_path_bits`; time stamps, VLAN and flow tags are not supported.
pub(crate) const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

pub(crate) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(crate) const IBV_EVENT_QP_FATAL: c_int = 1;
pub(crate) const IBV_EVENT_QP_REQ_ERR: c_int = 2;
pub(crate) const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const IBV_EVENT_COMM_EST: c_int = 4;
pub(crate) const IBV_EVENT_SQ_DRAINED: c_int = 5;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const IBV_EVENT_PORT_ERR: c_int = 10;
pub(crate) const IBV_EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub(crate) const IBV_EVENT_QP_LAST_WQE_REACHED: c_int = 16;

pub(crate) const IBV_ACCESS_ZERO_BASED: u32 = 1 << 5;
pub(crate) const IBV_ACCESS_ON_DEMAND: u32 = 1 << 6;
/// Access flags that an implementation may ignore.
pub(crate) const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
pub(crate) const IBV_ACCESS_HUGETLB: u32 = 1 << 7;

pub(crate) const IBV_REG_MR_MASK_IOVA: u64 = 1;
pub(crate) const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
pub(crate) const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
pub(crate) const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub(crate) const IBV_REG_MR_MASK_DMAH: u64 = 1 << 4;
pub(crate) const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

pub(crate) const IBV_FORK_UNNEEDED: c_int = 2;
