//! The functions of libibverbs and librdmacm that a plan can name.

use std::fmt;

use crate::closest::closest;

/// Defines [`Verb`] from the names of functions that report errors, and of those that cannot fail.
macro_rules! verbs {
    (fail: $($failing:ident)+; cannot_fail: $($safe:ident)+;) => {
        /// A function of libibverbs or librdmacm, by its name in C. Functions that a header maps to others
        /// have the name that a program writes: `ibv_post_send` is a call of a function pointer.
        #[expect(non_camel_case_types, reason = "the names of C")]
        #[allow(missing_docs, reason = "the manual pages of the functions document them")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Verb {
            $($failing,)+
            $($safe,)+
        }

        impl Verb {
            /// All functions: those that report errors, then those that cannot fail.
            pub const ALL: &'static [Self] = &[$(Self::$failing,)+ $(Self::$safe,)+];

            /// Returns the name in C.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$failing => stringify!($failing),)+
                    $(Self::$safe => stringify!($safe),)+
                }
            }

            /// Returns whether the function can report an error to its caller.
            #[must_use]
            pub const fn can_fail(self) -> bool {
                match self {
                    $(Self::$failing => true,)+
                    $(Self::$safe => false,)+
                }
            }
        }
    };
}

verbs! {
    fail:
        ibv_advise_mr ibv_alloc_buf ibv_alloc_dm ibv_alloc_dmah ibv_alloc_mw ibv_alloc_null_mr
        ibv_alloc_parent_domain ibv_alloc_pd ibv_alloc_td ibv_attach_mcast ibv_bind_mw
        ibv_close_device ibv_close_xrcd ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel
        ibv_create_comp_cntr ibv_create_cq ibv_create_cq_ex ibv_create_qp ibv_create_qp_ex
        ibv_create_srq ibv_create_srq_ex ibv_dealloc_dmah ibv_dealloc_mw ibv_dealloc_pd
        ibv_dealloc_td ibv_dereg_mr ibv_destroy_ah ibv_destroy_comp_channel ibv_destroy_cq
        ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_dm_export_dmabuf_fd
        ibv_export_buf_dmabuf_fd ibv_fork_init ibv_free_dm ibv_get_async_event ibv_get_cq_event
        ibv_get_device_list ibv_get_device_name ibv_get_pkey_index ibv_get_srq_num ibv_import_device
        ibv_import_dm ibv_import_mr ibv_import_pd ibv_init_ah_from_wc ibv_memcpy_from_dm
        ibv_memcpy_to_dm ibv_modify_qp ibv_modify_srq ibv_next_poll ibv_open_device ibv_open_xrcd
        ibv_poll_cq ibv_post_recv ibv_post_send ibv_post_srq_recv ibv_qp_to_qp_ex ibv_query_device
        ibv_query_device_ex ibv_query_gid ibv_query_gid_ex ibv_query_gid_table ibv_query_gid_type
        ibv_query_pkey ibv_query_port ibv_query_port_speed ibv_query_qp ibv_query_srq
        ibv_read_sysfs_file ibv_reg_dm_mr ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_ex
        ibv_req_notify_cq ibv_rereg_mr ibv_resize_cq ibv_start_poll ibv_wr_complete raccept rbind
        rclose rconnect rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep
        rdma_create_event_channel rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq
        rdma_create_srq_ex rdma_destroy_id rdma_disconnect rdma_establish rdma_get_cm_event
        rdma_get_devices rdma_get_remote_ece rdma_get_request rdma_getaddrinfo rdma_init_qp_attr
        rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_listen rdma_migrate_id
        rdma_notify rdma_reject rdma_resolve_addr rdma_resolve_route rdma_set_local_ece
        rdma_set_option rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite
        rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto
        rsetsockopt rshutdown rsocket rwrite rwritev;
    cannot_fail:
        ibv_ack_async_event ibv_ack_cq_events ibv_free_buf ibv_free_device_list ibv_get_device_guid
        ibv_get_device_index ibv_wr_abort ibv_wr_start rdma_destroy_ep rdma_destroy_event_channel
        rdma_destroy_qp rdma_destroy_srq rdma_free_devices rdma_freeaddrinfo rdma_get_dst_port
        rdma_get_src_port;
}

/// Other names of functions. The headers of libibverbs call one of several functions for `ibv_reg_mr`, which
/// depends on the arguments, so all of them count as one verb.
const ALIASES: &[(&str, Verb)] = &[
    ("ibv_reg_mr_iova", Verb::ibv_reg_mr),
    ("ibv_reg_mr_iova2", Verb::ibv_reg_mr),
    ("ibv_reg_buf_mr", Verb::ibv_reg_mr_ex),
    ("rdma_reject_ece", Verb::rdma_reject),
];

impl Verb {
    /// Returns the function with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        let alias = || ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, verb)| *verb);
        Self::ALL.iter().copied().find(|verb| verb.name() == name).or_else(alias)
    }

    /// Returns the name that a misspelled one may stand for.
    pub(super) fn suggest(name: &str) -> Option<&'static str> {
        let lower = name.to_ascii_lowercase();
        let complete = ["", "ibv_", "rdma_"].iter().find_map(|start| Self::find(&format!("{start}{lower}")));
        complete.map(Self::name).or_else(|| closest(&lower, Self::ALL.iter().map(|verb| verb.name())))
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
