//! The exported names and the version nodes that they belong to: the one place from which the linker's version script, the
//! assembly of the entry points and the tests are made. Used by `build.rs` as well.

/// A node of the version script, and the names that it defines. A node follows the one before it.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    /// Names with a function of this crate.
    pub(crate) functions: &'static [&'static str],
    /// Names that only programs behind a kernel driver call, with what they answer here.
    pub(crate) unused: &'static [(&'static str, Answer)],
}

/// What a function answers that never has anything to do here, because there is no kernel driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The number of `EOPNOTSUPP`, as functions do that return an error.
    Unsupported,
    /// 0: a null pointer, an empty result, or nothing at all.
    Zero,
}

pub(crate) const PUBLIC: &[Node] = &[
    Node {
        name: "IBVERBS_1.0",
        functions: &[
            "ibv_create_comp_channel",
            "ibv_destroy_comp_channel",
            "ibv_get_sysfs_path",
            "ibv_rate_to_mult",
            "ibv_read_sysfs_file",
            "mult_to_ibv_rate",
        ],
        unused: &[
            ("ibv_copy_path_rec_from_kern", Answer::Zero),
            ("ibv_copy_path_rec_to_kern", Answer::Zero),
            ("ibv_copy_qp_attr_from_kern", Answer::Zero),
        ],
    },
    Node {
        name: "IBVERBS_1.1",
        functions: &[
            "ibv_ack_async_event",
            "ibv_ack_cq_events",
            "ibv_alloc_pd",
            "ibv_attach_mcast",
            "ibv_close_device",
            "ibv_create_ah",
            "ibv_create_ah_from_wc",
            "ibv_create_cq",
            "ibv_create_qp",
            "ibv_create_srq",
            "ibv_dealloc_pd",
            "ibv_dereg_mr",
            "ibv_destroy_ah",
            "ibv_destroy_cq",
            "ibv_destroy_qp",
            "ibv_destroy_srq",
            "ibv_detach_mcast",
            "ibv_dofork_range",
            "ibv_dontfork_range",
            "ibv_event_type_str",
            "ibv_fork_init",
            "ibv_free_device_list",
            "ibv_get_async_event",
            "ibv_get_cq_event",
            "ibv_get_device_guid",
            "ibv_get_device_list",
            "ibv_get_device_name",
            "ibv_init_ah_from_wc",
            "ibv_modify_qp",
            "ibv_modify_srq",
            "ibv_node_type_str",
            "ibv_open_device",
            "ibv_port_state_str",
            "ibv_query_device",
            "ibv_query_gid",
            "ibv_query_pkey",
            "ibv_query_port",
            "ibv_query_qp",
            "ibv_query_srq",
            "ibv_rate_to_mbps",
            "ibv_reg_mr",
            "ibv_rereg_mr",
            "ibv_resize_cq",
            "ibv_wc_status_str",
            "mbps_to_ibv_rate",
        ],
        unused: &[
            ("ibv_copy_ah_attr_from_kern", Answer::Zero),
            ("ibv_register_driver", Answer::Zero),
            ("ibv_resolve_eth_l2_from_gid", Answer::Unsupported),
        ],
    },
    Node { name: "IBVERBS_1.5", functions: &["ibv_get_pkey_index"], unused: &[] },
    Node { name: "IBVERBS_1.6", functions: &["ibv_qp_to_qp_ex"], unused: &[] },
    Node { name: "IBVERBS_1.7", functions: &["ibv_reg_mr_iova"], unused: &[] },
    Node { name: "IBVERBS_1.8", functions: &["ibv_reg_mr_iova2"], unused: &[] },
    Node { name: "IBVERBS_1.9", functions: &["ibv_get_device_index"], unused: &[] },
    Node {
        name: "IBVERBS_1.10",
        functions: &["ibv_import_device", "ibv_import_mr", "ibv_import_pd"],
        unused: &[
            ("ibv_query_ece", Answer::Unsupported),
            ("ibv_set_ece", Answer::Unsupported),
            ("ibv_unimport_mr", Answer::Zero),
            ("ibv_unimport_pd", Answer::Zero),
        ],
    },
    Node { name: "IBVERBS_1.11", functions: &["_ibv_query_gid_ex", "_ibv_query_gid_table"], unused: &[] },
    Node { name: "IBVERBS_1.12", functions: &["ibv_reg_dmabuf_mr"], unused: &[] },
    Node {
        name: "IBVERBS_1.13",
        functions: &["ibv_import_dm", "ibv_is_fork_initialized"],
        unused: &[("ibv_unimport_dm", Answer::Zero)],
    },
    Node {
        name: "IBVERBS_1.14",
        functions: &[],
        // No transport here promises that data arrives in order.
        unused: &[("ibv_query_qp_data_in_order", Answer::Zero)],
    },
];

/// The numbers of the private nodes. Provider libraries of rdma-core are linked against one of them: 34 up to release 56, then
/// 57, 59 (from release 59 on) and 64.
pub(crate) const PRIVATE_NODES: &[u32] = &[34, 57, 59, 64];

/// A flag that provider libraries read.
pub(crate) const PRIVATE_FLAG: &str = "verbs_allow_disassociate_destroy";

/// The private function that programs call all the same (`ibv_devinfo`).
pub(crate) const PRIVATE_FUNCTION: &str = "ibv_query_gid_type";

/// The other names of the private nodes, all of them at each node. `verbs_register_driver_<number>` comes on top.
pub(crate) const PRIVATE: &[(&str, Answer)] = &[
    ("__ioctl_final_num_attrs", Answer::Zero),
    ("__verbs_log", Answer::Zero),
    ("_verbs_init_and_alloc_context", Answer::Zero),
    ("execute_ioctl", Answer::Unsupported),
    ("ibv_cmd_advise_mr", Answer::Unsupported),
    ("ibv_cmd_alloc_dm", Answer::Unsupported),
    ("ibv_cmd_alloc_dmah", Answer::Unsupported),
    ("ibv_cmd_alloc_mw", Answer::Unsupported),
    ("ibv_cmd_alloc_pd", Answer::Unsupported),
    ("ibv_cmd_attach_mcast", Answer::Unsupported),
    ("ibv_cmd_close_xrcd", Answer::Unsupported),
    ("ibv_cmd_create_ah", Answer::Unsupported),
    ("ibv_cmd_create_counters", Answer::Unsupported),
    ("ibv_cmd_create_cq", Answer::Unsupported),
    ("ibv_cmd_create_cq_ex", Answer::Unsupported),
    ("ibv_cmd_create_cq_ex2", Answer::Unsupported),
    ("ibv_cmd_create_flow", Answer::Unsupported),
    ("ibv_cmd_create_flow_action_esp", Answer::Unsupported),
    ("ibv_cmd_create_qp", Answer::Unsupported),
    ("ibv_cmd_create_qp_ex", Answer::Unsupported),
    ("ibv_cmd_create_qp_ex2", Answer::Unsupported),
    ("ibv_cmd_create_rwq_ind_table", Answer::Unsupported),
    ("ibv_cmd_create_srq", Answer::Unsupported),
    ("ibv_cmd_create_srq_ex", Answer::Unsupported),
    ("ibv_cmd_create_wq", Answer::Unsupported),
    ("ibv_cmd_dealloc_mw", Answer::Unsupported),
    ("ibv_cmd_dealloc_pd", Answer::Unsupported),
    ("ibv_cmd_dereg_mr", Answer::Unsupported),
    ("ibv_cmd_destroy_ah", Answer::Unsupported),
    ("ibv_cmd_destroy_counters", Answer::Unsupported),
    ("ibv_cmd_destroy_cq", Answer::Unsupported),
    ("ibv_cmd_destroy_flow", Answer::Unsupported),
    ("ibv_cmd_destroy_flow_action", Answer::Unsupported),
    ("ibv_cmd_destroy_qp", Answer::Unsupported),
    ("ibv_cmd_destroy_rwq_ind_table", Answer::Unsupported),
    ("ibv_cmd_destroy_srq", Answer::Unsupported),
    ("ibv_cmd_destroy_wq", Answer::Unsupported),
    ("ibv_cmd_detach_mcast", Answer::Unsupported),
    ("ibv_cmd_export_dmabuf_fd", Answer::Unsupported),
    ("ibv_cmd_free_dm", Answer::Unsupported),
    ("ibv_cmd_free_dmah", Answer::Unsupported),
    ("ibv_cmd_get_context", Answer::Unsupported),
    ("ibv_cmd_modify_cq", Answer::Unsupported),
    ("ibv_cmd_modify_flow_action_esp", Answer::Unsupported),
    ("ibv_cmd_modify_qp", Answer::Unsupported),
    ("ibv_cmd_modify_qp_ex", Answer::Unsupported),
    ("ibv_cmd_modify_srq", Answer::Unsupported),
    ("ibv_cmd_modify_wq", Answer::Unsupported),
    ("ibv_cmd_open_qp", Answer::Unsupported),
    ("ibv_cmd_open_xrcd", Answer::Unsupported),
    ("ibv_cmd_poll_cq", Answer::Unsupported),
    ("ibv_cmd_post_recv", Answer::Unsupported),
    ("ibv_cmd_post_send", Answer::Unsupported),
    ("ibv_cmd_post_srq_recv", Answer::Unsupported),
    ("ibv_cmd_query_context", Answer::Unsupported),
    ("ibv_cmd_query_device", Answer::Unsupported),
    ("ibv_cmd_query_device_any", Answer::Unsupported),
    ("ibv_cmd_query_mr", Answer::Unsupported),
    ("ibv_cmd_query_port", Answer::Unsupported),
    ("ibv_cmd_query_port_speed", Answer::Unsupported),
    ("ibv_cmd_query_qp", Answer::Unsupported),
    ("ibv_cmd_query_srq", Answer::Unsupported),
    ("ibv_cmd_read_counters", Answer::Unsupported),
    ("ibv_cmd_reg_dm_mr", Answer::Unsupported),
    ("ibv_cmd_reg_dmabuf_mr", Answer::Unsupported),
    ("ibv_cmd_reg_mr", Answer::Unsupported),
    ("ibv_cmd_reg_mr_ex", Answer::Unsupported),
    ("ibv_cmd_req_notify_cq", Answer::Unsupported),
    ("ibv_cmd_rereg_mr", Answer::Unsupported),
    ("ibv_cmd_resize_cq", Answer::Unsupported),
    ("ibv_dmabuf_heap_alloc", Answer::Unsupported),
    ("ibv_dmabuf_heap_cc_shared_init", Answer::Unsupported),
    ("ibv_dmabuf_heap_destroy", Answer::Zero),
    ("ibv_dmabuf_heap_free", Answer::Zero),
    ("ibv_read_ibdev_sysfs_file", Answer::Unsupported),
    ("ibv_wr_opcode_str", Answer::Unsupported),
    ("verbs_init_cq", Answer::Zero),
    ("verbs_open_device", Answer::Zero),
    ("verbs_set_ops", Answer::Zero),
    ("verbs_uninit_context", Answer::Zero),
];
