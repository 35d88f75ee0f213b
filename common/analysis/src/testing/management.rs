//! Messages of connection management for tests.

use std::net::IpAddr;

use roce_packet::mad::{
    CmDrep, CmDreq, CmMessage, CmMessageKind, CmPath, CmRej, CmRep, CmReq, CmRtu, CmTimeout, CommId,
    PortSpace, RejReason, ServiceId, TransportService,
};
use roce_packet::{Gid, Psn, Qpn};

use crate::testing::wire::Wire;

pub(crate) const PORT: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7174);

fn path() -> CmPath {
    let gid = |host| Gid::from(IpAddr::from([198, 18, 0, host]));
    CmPath {
        local_lid: 0,
        remote_lid: 0,
        local_gid: gid(1),
        remote_gid: gid(2),
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: CmTimeout::new(14),
    }
}

pub(crate) fn req() -> CmMessage {
    CmMessage::Req(CmReq {
        local_comm_id: CommId(7),
        vendor_id: 0,
        service_id: PORT,
        local_ca_guid: 1,
        local_q_key: 0,
        local_qpn: Qpn::new(0x11),
        responder_resources: 4,
        local_eecn: 0,
        initiator_depth: 4,
        remote_eecn: 0,
        remote_cm_response_timeout: CmTimeout::new(15),
        transport: TransportService::Rc,
        flow_control: true,
        starting_psn: Psn::new(500),
        local_cm_response_timeout: CmTimeout::new(15),
        retry_count: 7,
        p_key: 0xffff,
        path_mtu_code: 3,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary: path(),
        alternate: path(),
        private_data: [0; CmReq::PRIVATE_DATA],
    })
}

pub(crate) fn rep() -> CmMessage {
    CmMessage::Rep(CmRep {
        local_comm_id: CommId(9),
        remote_comm_id: CommId(7),
        local_q_key: 0,
        local_qpn: Qpn::new(0x22),
        vendor_id: 0,
        local_eecn: 0,
        starting_psn: Psn::new(100),
        responder_resources: 4,
        initiator_depth: 4,
        target_ack_delay: CmTimeout::new(5),
        failover_accepted: 0,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: 2,
        private_data: [0; CmRep::PRIVATE_DATA],
    })
}

pub(crate) fn rtu() -> CmMessage {
    let (local_comm_id, remote_comm_id) = (CommId(7), CommId(9));
    CmMessage::Rtu(CmRtu { local_comm_id, remote_comm_id, private_data: [0; CmRtu::PRIVATE_DATA] })
}

pub(crate) fn dreq() -> CmMessage {
    let (local_comm_id, remote_comm_id) = (CommId(9), CommId(7));
    let private_data = [0; CmDreq::PRIVATE_DATA];
    CmMessage::Dreq(CmDreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(0x11), private_data })
}

pub(crate) fn drep() -> CmMessage {
    let (local_comm_id, remote_comm_id) = (CommId(7), CommId(9));
    CmMessage::Drep(CmDrep { local_comm_id, remote_comm_id, private_data: [0; CmDrep::PRIVATE_DATA] })
}

pub(crate) fn rej(reason: RejReason) -> CmMessage {
    CmMessage::Rej(CmRej {
        local_comm_id: CommId(0),
        remote_comm_id: CommId(7),
        rejected: CmMessageKind::Req,
        info_length: 0,
        reason,
        info: [0; CmRej::INFO],
        private_data: [0; CmRej::PRIVATE_DATA],
    })
}

/// Connects the queue pairs of both hosts, with four READs and atomics in each direction.
pub(crate) fn connect(wire: &mut Wire) {
    for (ms, from, message) in [(0, 1, req()), (1, 2, rep()), (2, 1, rtu())] {
        wire.cm(ms * 1000, from, 1, message);
    }
}
