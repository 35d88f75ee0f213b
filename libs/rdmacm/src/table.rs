//! The exported names and their version nodes. Used by `build.rs` as well.

/// The node of the functions in `libibverbs.so.1`, whose names have the prefix `roce_`.
pub(crate) const ENTRY_NODE: &str = "ROCE_1";
/// The function for names without an implementation.
pub(crate) const REFUSING: &str = "no_rsockets";

/// A node of the version script, and the names that it defines. Each node depends on the previous one.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) functions: &'static [&'static str],
    /// Names whose calls fail with `EOPNOTSUPP`.
    pub(crate) unsupported: &'static [&'static str],
}

pub(crate) const NODES: &[Node] = &[
    Node {
        name: "RDMACM_1.0",
        functions: &[
            "rdma_accept",
            "rdma_ack_cm_event",
            "rdma_bind_addr",
            "rdma_connect",
            "rdma_create_ep",
            "rdma_create_event_channel",
            "rdma_create_id",
            "rdma_create_qp",
            "rdma_create_qp_ex",
            "rdma_create_srq",
            "rdma_create_srq_ex",
            "rdma_destroy_ep",
            "rdma_destroy_event_channel",
            "rdma_destroy_id",
            "rdma_destroy_qp",
            "rdma_destroy_srq",
            "rdma_disconnect",
            "rdma_event_str",
            "rdma_free_devices",
            "rdma_freeaddrinfo",
            "rdma_get_cm_event",
            "rdma_get_devices",
            "rdma_get_dst_port",
            "rdma_get_request",
            "rdma_get_src_port",
            "rdma_getaddrinfo",
            "rdma_leave_multicast",
            "rdma_join_multicast",
            "rdma_listen",
            "rdma_migrate_id",
            "rdma_notify",
            "rdma_reject",
            "rdma_resolve_addr",
            "rdma_resolve_route",
            "rdma_set_option",
            "raccept",
            "rbind",
            "rclose",
            "rconnect",
            "rfcntl",
            "rgetpeername",
            "rgetsockname",
            "rgetsockopt",
            "riomap",
            "riounmap",
            "riowrite",
            "rlisten",
            "rpoll",
            "rread",
            "rreadv",
            "rrecv",
            "rrecvfrom",
            "rrecvmsg",
            "rselect",
            "rsend",
            "rsendmsg",
            "rsendto",
            "rsetsockopt",
            "rshutdown",
            "rsocket",
            "rwrite",
            "rwritev",
        ],
        unsupported: &[],
    },
    Node { name: "RDMACM_1.1", functions: &["rdma_join_multicast_ex"], unsupported: &[] },
    Node { name: "RDMACM_1.2", functions: &["rdma_establish", "rdma_init_qp_attr"], unsupported: &[] },
    Node {
        name: "RDMACM_1.3",
        functions: &["rdma_get_remote_ece", "rdma_reject_ece", "rdma_set_local_ece"],
        unsupported: &[],
    },
    Node {
        name: "RDMACM_1.4",
        functions: &[],
        // Names for the subnet manager of InfiniBand, and for events that the application writes itself.
        unsupported: &["rdma_query_addrinfo", "rdma_resolve_addrinfo", "rdma_write_cm_event"],
    },
    Node { name: "RDMACM_1.5", functions: &[], unsupported: &["repoll_create", "repoll_ctl", "repoll_wait"] },
];
