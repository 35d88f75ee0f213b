//! The entry points that `librdmacm.so.1` jumps to: the names of librdmacm with the prefix `roce_`.

use super::addresses::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route,
};
use super::channel::rdma_destroy_event_channel;
use super::connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_get_remote_ece, rdma_listen,
    rdma_notify, rdma_reject, rdma_reject_ece, rdma_set_local_ece,
};
use super::delivery::{rdma_create_event_channel, rdma_get_cm_event};
use super::endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
use super::event::rdma_ack_cm_event;
use super::identifiers::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use super::information::{
    rdma_event_str, rdma_free_devices, rdma_freeaddrinfo, rdma_get_devices, rdma_getaddrinfo,
};
use super::multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
use super::options::rdma_set_option;
use super::queue_pairs::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
};
use super::rsocket::{
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, riomap, riounmap,
    riowrite, rlisten, rpoll, rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rselect, rsend, rsendmsg, rsendto,
    rsetsockopt, rshutdown, rsocket, rwrite, rwritev,
};
use super::sockets::no_rsockets;
use super::states::rdma_init_qp_attr;
use crate::exports::{exports, jump};

exports! {
    "roce_",
    rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep rdma_create_event_channel rdma_create_id
    rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex rdma_destroy_ep rdma_destroy_event_channel
    rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect rdma_establish rdma_event_str rdma_free_devices
    rdma_freeaddrinfo rdma_get_cm_event rdma_get_devices rdma_get_dst_port rdma_get_remote_ece rdma_get_request
    rdma_get_src_port rdma_getaddrinfo rdma_init_qp_attr rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast
    rdma_listen rdma_migrate_id rdma_notify rdma_reject rdma_reject_ece rdma_resolve_addr rdma_resolve_route
    rdma_set_local_ece rdma_set_option raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten
    rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
    no_rsockets
}

#[cfg(test)]
mod tests {
    use super::NAMES;
    use crate::table::OF_RDMACM;

    #[test]
    fn every_function_of_librdmacm_has_an_entry_point() {
        let (mut listed, mut exported) = (OF_RDMACM.to_vec(), NAMES.to_vec());
        listed.sort_unstable();
        exported.sort_unstable();
        assert_eq!(listed, exported);
    }
}
