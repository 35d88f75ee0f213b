//! The request for a connection (IBTA 12.6.5).

use core::fmt;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::common::{
    ACK_TIMEOUT, CA_GUID, CM_TIMEOUT, INITIATOR_DEPTH, NOT_IN_ROCE, QPN, RESPONDER_RESOURCES, RNR_RETRY,
    STARTING_PSN, local_comm_id, private_data_from, timeout_note,
};
use super::header::CM_LEN;
use super::ip_cm::service_note;
use super::{CmTimeout, CommId, ServiceId};
use crate::fields::Show::{Bytes, Decimal, Flag, Hex, Ipv4, Ipv6};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::gid::Gid;
use crate::mtu::PathMtu;
use crate::number::{Psn, Qpn, from_be_24, to_be_24};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    local_comm_id: U32,
    reserved: u8,
    vendor_id: [u8; 3],
    service_id: U64,
    local_ca_guid: U64,
    reserved2: U32,
    local_q_key: U32,
    local_qpn: [u8; 3],
    responder_resources: u8,
    local_eecn: [u8; 3],
    initiator_depth: u8,
    remote_eecn: [u8; 3],
    /// Remote CM response timeout (5), transport service (2), end-to-end flow control (1).
    timeout_service_flow: u8,
    starting_psn: [u8; 3],
    /// Local CM response timeout (5), retry count (3).
    timeout_retry: u8,
    p_key: U16,
    /// Path MTU (4), RDC exists (1), RNR retry count (3).
    mtu_rdc_rnr: u8,
    /// Max CM retries (4), SRQ (1), extended transport (3).
    retries_srq_extended: u8,
    primary: PathLayout,
    alternate: PathLayout,
    private_data: [u8; CmReq::PRIVATE_DATA],
}

const _: () = assert!(size_of::<Layout>() == CM_LEN);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PathLayout {
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// Flow label (20), reserved (6), packet rate (6).
    label_rate: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// Service level (4), subnet local (1), reserved (3).
    sl_local: u8,
    /// Local ACK timeout (5), reserved (3).
    ack_timeout: u8,
}

const _: () = assert!(size_of::<PathLayout>() == 44);

/// The requested transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportService {
    /// 0: reliable connection.
    Rc,
    /// 1: unreliable connection.
    Uc,
    /// 2: reliable datagram.
    Rd,
    /// 3: the service in [`CmReq::extended_transport`], for example XRC.
    Extended,
}

impl TransportService {
    /// Reads the low two bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended,
        }
    }

    /// Returns the name in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "reliable connection",
            Self::Uc => "unreliable connection",
            Self::Rd => "reliable datagram",
            Self::Extended => "extended",
        }
    }

    /// Returns the two bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
            Self::Rd => 2,
            Self::Extended => 3,
        }
    }
}

/// A path in a REQ, from the view of its sender: *local* is the sender's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CmPath {
    /// LID of the sender; 0xffff in RoCE.
    pub local_lid: u16,
    /// LID of the receiver; 0xffff in RoCE.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// 20-bit flow label, from which both ends derive the UDP source port of the connection.
    pub flow_label: u32,
    /// Six bits with InfiniBand's code of the speed; 0 in RoCE.
    pub packet_rate: u8,
    /// DSCP and ECN of the connection.
    pub traffic_class: u8,
    /// TTL of the connection.
    pub hop_limit: u8,
    /// Service level, four bits, which becomes the VLAN priority.
    pub sl: u8,
    /// Whether the path has no router.
    pub subnet_local: bool,
    /// Time after which a packet of the connection counts as lost.
    pub local_ack_timeout: CmTimeout,
}

impl CmPath {
    fn read(layout: &PathLayout) -> Self {
        let label_rate = layout.label_rate.get();
        Self {
            local_lid: layout.local_lid.get(),
            remote_lid: layout.remote_lid.get(),
            local_gid: Gid(layout.local_gid),
            remote_gid: Gid(layout.remote_gid),
            flow_label: label_rate >> 12,
            packet_rate: (label_rate & 0x3f) as u8,
            traffic_class: layout.traffic_class,
            hop_limit: layout.hop_limit,
            sl: layout.sl_local >> 4,
            subnet_local: layout.sl_local & 0x08 != 0,
            local_ack_timeout: CmTimeout::new(layout.ack_timeout >> 3),
        }
    }

    fn write(&self) -> PathLayout {
        PathLayout {
            local_lid: U16::new(self.local_lid),
            remote_lid: U16::new(self.remote_lid),
            local_gid: self.local_gid.0,
            remote_gid: self.remote_gid.0,
            label_rate: U32::new(self.flow_label << 12 | u32::from(self.packet_rate & 0x3f)),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl_local: self.sl << 4 | u8::from(self.subnet_local) << 3,
            ack_timeout: self.local_ack_timeout.code() << 3,
        }
    }
}

/// REQ: asks a listener for a connection. IBTA 12.6.5.
///
/// If a field has fewer bits than its type, only those bits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmReq {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// Manufacturer of the sender's adapter, 24 bits.
    pub vendor_id: u32,
    /// The service of the listener.
    pub service_id: ServiceId,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// Unused in connections; 0.
    pub local_q_key: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Number of READs and atomics of the peer that the sender can hold.
    pub responder_resources: u8,
    /// End-to-end context of reliable datagrams, 24 bits; 0.
    pub local_eecn: u32,
    /// Number of READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver for reliable datagrams, 24 bits; 0.
    pub remote_eecn: u32,
    /// Time within which the receiver must answer.
    pub remote_cm_response_timeout: CmTimeout,
    /// The transport service.
    pub transport: TransportService,
    /// Whether the sender obeys credits.
    pub flow_control: bool,
    /// PSN of the first packet that the sender of this message expects. The other side starts with it.
    pub starting_psn: Psn,
    /// Time within which the sender will answer.
    pub local_cm_response_timeout: CmTimeout,
    /// Three bits: number of times that the receiver must resend a lost packet.
    pub retry_count: u8,
    /// Partition key.
    pub p_key: u16,
    /// Four bits: code of the path MTU; see [`Self::path_mtu`].
    pub path_mtu_code: u8,
    /// Whether the reliable datagram channel exists.
    pub rdc_exists: bool,
    /// Three bits: number of retries of the receiver after an RNR NAK; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Four bits: largest number of times that messages of this exchange are repeated.
    pub max_cm_retries: u8,
    /// Whether the sender receives from a shared receive queue.
    pub srq: bool,
    /// Three bits; 1 is XRC.
    pub extended_transport: u8,
    /// The primary path.
    pub primary: CmPath,
    /// Path for migration; all 0 if unused.
    pub alternate: CmPath,
    /// Private data of the application, after the header of rdma_cm ([`super::IpCm`]) if rdma_cm made the
    /// connection.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmReq {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 92;

    /// Returns the path MTU, unless its code is reserved.
    #[must_use]
    pub const fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(self.path_mtu_code & 0xf)
    }

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &Layout = zerocopy::transmute_ref!(content);
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            vendor_id: from_be_24(layout.vendor_id),
            service_id: ServiceId(layout.service_id.get()),
            local_ca_guid: layout.local_ca_guid.get(),
            local_q_key: layout.local_q_key.get(),
            local_qpn: Qpn::from_be_bytes(layout.local_qpn),
            responder_resources: layout.responder_resources,
            local_eecn: from_be_24(layout.local_eecn),
            initiator_depth: layout.initiator_depth,
            remote_eecn: from_be_24(layout.remote_eecn),
            remote_cm_response_timeout: CmTimeout::new(layout.timeout_service_flow >> 3),
            transport: TransportService::from_bits(layout.timeout_service_flow >> 1),
            flow_control: layout.timeout_service_flow & 1 != 0,
            starting_psn: Psn::from_be_bytes(layout.starting_psn),
            local_cm_response_timeout: CmTimeout::new(layout.timeout_retry >> 3),
            retry_count: layout.timeout_retry & 0x07,
            p_key: layout.p_key.get(),
            path_mtu_code: layout.mtu_rdc_rnr >> 4,
            rdc_exists: layout.mtu_rdc_rnr & 0x08 != 0,
            rnr_retry_count: layout.mtu_rdc_rnr & 0x07,
            max_cm_retries: layout.retries_srq_extended >> 4,
            srq: layout.retries_srq_extended & 0x08 != 0,
            extended_transport: layout.retries_srq_extended & 0x07,
            primary: CmPath::read(&layout.primary),
            alternate: CmPath::read(&layout.alternate),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(Layout {
            local_comm_id: U32::new(self.local_comm_id.0),
            reserved: 0,
            vendor_id: to_be_24(self.vendor_id),
            service_id: U64::new(self.service_id.0),
            local_ca_guid: U64::new(self.local_ca_guid),
            reserved2: U32::ZERO,
            local_q_key: U32::new(self.local_q_key),
            local_qpn: self.local_qpn.to_be_bytes(),
            responder_resources: self.responder_resources,
            local_eecn: to_be_24(self.local_eecn),
            initiator_depth: self.initiator_depth,
            remote_eecn: to_be_24(self.remote_eecn),
            timeout_service_flow: self.remote_cm_response_timeout.code() << 3
                | self.transport.bits() << 1
                | u8::from(self.flow_control),
            starting_psn: self.starting_psn.to_be_bytes(),
            timeout_retry: self.local_cm_response_timeout.code() << 3 | self.retry_count & 0x07,
            p_key: U16::new(self.p_key),
            mtu_rdc_rnr: self.path_mtu_code << 4
                | u8::from(self.rdc_exists) << 3
                | self.rnr_retry_count & 0x07,
            retries_srq_extended: self.max_cm_retries << 4
                | u8::from(self.srq) << 3
                | self.extended_transport & 0x07,
            primary: self.primary.write(),
            alternate: self.alternate.write(),
            private_data: self.private_data,
        })
    }
}

/// The fields of a [`CmReq`].
pub static REQ: Header = Header {
    name: "CM REQ",
    title: "request for a connection",
    purpose: "Asks a listener for a connection and gives the attributes of the sender's end.",
    rule: "IBTA 12.6.5",
    fields: &[
        local_comm_id("infiniband.cm.req"),
        Field::reserved("roce.cm.req.reserved0", bytes(4, 1)),
        Field::new("vendor ID", "roce.cm.req.vendorid", bytes(5, 3), Hex)
            .note(vendor_note)
            .means("Manufacturer of the sender's adapter."),
        Field::new("service ID", "infiniband.cm.req.serviceid", bytes(8, 8), Hex)
            .note(service_note)
            .means("Service of the listener; rdma_cm puts a port number into it."),
        Field::new("local CA GUID", "infiniband.cm.req.localcaguid", bytes(16, 8), Hex).means(CA_GUID),
        Field::reserved("roce.cm.req.reserved1", bytes(24, 4)),
        Field::new("local Q_Key", "infiniband.cm.req.localqkey", bytes(28, 4), Hex).means(NOT_IN_ROCE),
        Field::new("local QPN", "infiniband.cm.req.localqpn", bytes(32, 3), Hex).means(QPN),
        Field::new("responder resources", "infiniband.cm.req.responderres", bytes(35, 1), Decimal)
            .means(RESPONDER_RESOURCES),
        Field::new("local EECN", "infiniband.cm.req.localeecn", bytes(36, 3), Hex).means(NOT_IN_ROCE),
        Field::new("initiator depth", "infiniband.cm.req.initdepth", bytes(39, 1), Decimal)
            .means(INITIATOR_DEPTH),
        Field::new("remote EECN", "infiniband.cm.req.remoteeecn", bytes(40, 3), Hex).means(NOT_IN_ROCE),
        Field::new("remote response timeout", "infiniband.cm.req.remoteresptout", mask(43, 0xf8), Decimal)
            .note(timeout_note)
            .means(CM_TIMEOUT),
        Field::new("transport service", "infiniband.cm.req.transpsvctype", mask(43, 0x06), Decimal)
            .note(transport_note)
            .means("0 reliable connection, 1 unreliable connection, 3 see the extended transport."),
        Field::new("flow control", "infiniband.cm.req.e2eflowctrl", mask(43, 0x01), Flag)
            .means("Set if the sender obeys credits."),
        Field::new("starting PSN", "infiniband.cm.req.startpsn", bytes(44, 3), Decimal).means(STARTING_PSN),
        Field::new("local response timeout", "infiniband.cm.req.localresptout", mask(47, 0xf8), Decimal)
            .note(timeout_note)
            .means(CM_TIMEOUT),
        Field::new("retry count", "infiniband.cm.req.retrcount", mask(47, 0x07), Decimal)
            .means("How often the receiver of this message resends a lost packet, 0 to 7."),
        Field::new("P_Key", "infiniband.cm.req.pkey", bytes(48, 2), Hex)
            .means("Partition of the connection."),
        Field::new("path MTU", "infiniband.cm.req.pppmtu", mask(50, 0xf0), Decimal)
            .note(mtu_note)
            .means("Code of the path MTU; both ends use the same."),
        Field::new("RDC exists", "infiniband.cm.req.rdcexist", mask(50, 0x08), Flag).means(NOT_IN_ROCE),
        Field::new("RNR retry count", "infiniband.cm.req.rnrretrcount", mask(50, 0x07), Decimal)
            .means(RNR_RETRY),
        Field::new("max CM retries", "infiniband.cm.req.maxcmretr", mask(51, 0xf0), Decimal)
            .means("How often this message is sent again, at most."),
        Field::new("SRQ", "infiniband.cm.req.srq", mask(51, 0x08), Flag)
            .means("Set if the sender receives from a shared queue."),
        Field::new("extended transport", "infiniband.cm.req.ext_transport", mask(51, 0x07), Decimal)
            .means("1 for an extended reliable connection."),
        Field::new("primary local LID", "infiniband.cm.req.prim_locallid", bytes(52, 2), Hex)
            .means("InfiniBand address; 0xffff in RoCE."),
        Field::new("primary remote LID", "infiniband.cm.req.prim_remotelid", bytes(54, 2), Hex)
            .means("InfiniBand address; 0xffff in RoCE."),
        Field::new("primary local GID", "infiniband.cm.req.prim_localgid_ipv4", bytes(56, 16), Ipv4)
            .when(|req| is_mapped(req, 56))
            .means("The sender's end of the path."),
        Field::new("primary local GID", "infiniband.cm.req.prim_localgid", bytes(56, 16), Ipv6)
            .when(|req| !is_mapped(req, 56))
            .means("The sender's end of the path."),
        Field::new("primary remote GID", "infiniband.cm.req.prim_remotegid_ipv4", bytes(72, 16), Ipv4)
            .when(|req| is_mapped(req, 72))
            .means("The receiver's end of the path."),
        Field::new("primary remote GID", "infiniband.cm.req.prim_remotegid", bytes(72, 16), Ipv6)
            .when(|req| !is_mapped(req, 72))
            .means("The receiver's end of the path."),
        Field::new("primary flow label", "infiniband.cm.req.prim_flowlabel", bits(88, 0, 20), Hex)
            .means("Both ends compute the UDP source port of the connection from it."),
        Field::reserved("infiniband.cm.req.prim_reserved0", bits(90, 4, 6)),
        Field::new("primary packet rate", "infiniband.cm.req.prim_pktrate", mask(91, 0x3f), Decimal)
            .means("InfiniBand's code of the path's rate; 0 in RoCE."),
        Field::new("primary traffic class", "infiniband.cm.req.prim_tfcclass", bytes(92, 1), Hex)
            .means("DSCP and ECN for the connection."),
        Field::new("primary hop limit", "infiniband.cm.req.prim_hoplim", bytes(93, 1), Decimal)
            .means("TTL for the connection."),
        Field::new("primary SL", "infiniband.cm.req.prim_sl", mask(94, 0xf0), Decimal)
            .means("Service level: the VLAN priority of the connection."),
        Field::new("primary subnet local", "infiniband.cm.req.prim_subnetlocal", mask(94, 0x08), Flag)
            .means("Set if the path has no router."),
        Field::reserved("infiniband.cm.req.prim_reserved1", mask(94, 0x07)),
        Field::new(
            "primary local ACK timeout",
            "infiniband.cm.req.prim_localacktout",
            mask(95, 0xf8),
            Decimal,
        )
        .note(timeout_note)
        .means(ACK_TIMEOUT),
        Field::reserved("infiniband.cm.req.prim_reserved2", mask(95, 0x07)),
        Field::new("alternate path", "roce.cm.req.alternate_path", bytes(96, 44), Bytes)
            .means("A second path to migrate to, in the layout of the first; all zero if absent."),
        private_data_from(140, "infiniband.cm.req.private"),
    ],
};

fn is_mapped(req: &[u8], gid: usize) -> bool {
    req.get(gid..).and_then(<[u8]>::first_chunk).is_some_and(|gid| Gid(*gid).to_ipv4().is_some())
}

fn mtu_note(code: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    match PathMtu::from_code(code as u8) {
        Some(mtu) => write!(out, "{mtu} bytes"),
        None => Ok(()),
    }
}

fn transport_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(TransportService::from_bits(value as u8).name())
}

fn vendor_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value {
        0x15b3 => "Mellanox, NVIDIA",
        0x02c9 => "Mellanox",
        _ => "",
    })
}
