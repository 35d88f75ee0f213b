//! The exported entry points. Each one is an assembly jump to a function of this crate. The reason is that
//! rustc exports the Rust functions of a cdylib through its own version script, without versions.

use std::arch::global_asm;

use crate::address::{ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_init_ah_from_wc};
use crate::async_events::{ibv_ack_async_event, ibv_get_async_event};
use crate::buffer::{ibv_alloc_buf, ibv_export_buf_dmabuf_fd, ibv_free_buf, ibv_reg_buf_mr, ibv_reg_mr_ex};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::context::ibv_close_device;
use crate::cq::{ibv_ack_cq_events, ibv_create_cq, ibv_destroy_cq, ibv_get_cq_event, ibv_resize_cq};
use crate::device::{
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list, ibv_get_device_name,
};
use crate::device_memory::ibv_dm_export_dmabuf_fd;
use crate::domain::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::memory::{
    ibv_dereg_mr, ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr,
};
use crate::multicast::{ibv_attach_mcast, ibv_detach_mcast};
use crate::opening::ibv_open_device;
use crate::process::{
    ibv_alloc_dmah, ibv_create_comp_cntr, ibv_dealloc_dmah, ibv_dofork_range, ibv_dontfork_range,
    ibv_fork_init, ibv_get_sysfs_path, ibv_import_device, ibv_import_dm, ibv_import_mr, ibv_import_pd,
    ibv_is_fork_initialized, ibv_read_sysfs_file,
};
use crate::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_qp_to_qp_ex, ibv_query_qp};
use crate::query::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_device, ibv_query_gid,
    ibv_query_gid_type, ibv_query_pkey, ibv_query_port, ibv_query_port_speed,
};
use crate::srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};
use crate::strings::{
    ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_rate_to_mbps, ibv_rate_to_mult,
    ibv_wc_status_str, mbps_to_ibv_rate, mult_to_ibv_rate,
};

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

macro_rules! exports {
    ($prefix:literal, $($name:ident)+) => {
        $(std::arch::global_asm!(
            concat!(".globl ", $prefix, stringify!($name)),
            concat!(".type ", $prefix, stringify!($name), ",@function"),
            concat!($prefix, stringify!($name), ": ", jump!(), " {function}"),
            concat!(".size ", $prefix, stringify!($name), ", . - ", $prefix, stringify!($name)),
            function = sym $name,
        );)+

        /// The names, for the comparison with the table.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

pub(crate) use {exports, jump};

exports! {
    "",
    _ibv_query_gid_ex _ibv_query_gid_table ibv_ack_async_event ibv_ack_cq_events ibv_alloc_buf ibv_alloc_dmah ibv_alloc_pd
    ibv_attach_mcast ibv_create_comp_cntr ibv_dealloc_dmah ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd ibv_free_buf
    ibv_query_port_speed ibv_reg_buf_mr ibv_reg_mr_ex ibv_close_device ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel ibv_create_cq ibv_create_qp
    ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_comp_channel ibv_destroy_cq ibv_destroy_qp
    ibv_destroy_srq ibv_detach_mcast ibv_dofork_range ibv_dontfork_range ibv_event_type_str ibv_fork_init
    ibv_free_device_list ibv_get_async_event ibv_get_cq_event ibv_get_device_guid ibv_get_device_index
    ibv_get_device_list ibv_get_device_name ibv_get_pkey_index ibv_get_sysfs_path ibv_import_device ibv_import_dm
    ibv_import_mr ibv_import_pd ibv_init_ah_from_wc ibv_is_fork_initialized ibv_modify_qp ibv_modify_srq
    ibv_node_type_str ibv_open_device ibv_port_state_str ibv_qp_to_qp_ex ibv_query_device ibv_query_gid
    ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_srq ibv_rate_to_mbps ibv_rate_to_mult ibv_read_sysfs_file
    ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_iova ibv_reg_mr_iova2 ibv_rereg_mr ibv_resize_cq ibv_wc_status_str
    mbps_to_ibv_rate mult_to_ibv_rate
}

// Names without a function of this crate, and the private nodes.
global_asm!(include_str!(concat!(env!("OUT_DIR"), "/unused.s")), query_gid_type = sym ibv_query_gid_type);

#[cfg(test)]
mod tests {
    use super::NAMES;
    use crate::table::PUBLIC;

    #[test]
    fn every_function_of_the_table_has_an_entry_point() {
        let mut listed: Vec<&str> = PUBLIC.iter().flat_map(|node| node.functions).copied().collect();
        listed.sort_unstable();
        let mut exported = NAMES.to_vec();
        exported.sort_unstable();
        assert_eq!(listed, exported);
    }
}
