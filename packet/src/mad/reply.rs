//! The second and the third message of the handshake (IBTA 12.6.8, 12.6.9).

use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::common::{
    CA_GUID, INITIATOR_DEPTH, NOT_IN_ROCE, QPN, RESPONDER_RESOURCES, RNR_RETRY, STARTING_PSN, local_comm_id,
    private_data_from, remote_comm_id, timeout_note,
};
use super::header::CM_LEN;
use super::{CmTimeout, CommId};
use crate::fields::Show::{Decimal, Flag, Hex};
use crate::fields::{Field, Header, bytes, mask};
use crate::number::{Psn, Qpn, from_be_24, to_be_24};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RepLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    local_q_key: U32,
    local_qpn: [u8; 3],
    vendor_id_high: u8,
    local_eecn: [u8; 3],
    vendor_id_middle: u8,
    starting_psn: [u8; 3],
    vendor_id_low: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// Target ACK delay (5), failover accepted (2), end-to-end flow control (1).
    delay_failover_flow: u8,
    /// RNR retry count (3), SRQ (1), reserved (4).
    rnr_srq: u8,
    local_ca_guid: U64,
    private_data: [u8; CmRep::PRIVATE_DATA],
}

const _: () = assert!(size_of::<RepLayout>() == CM_LEN);

/// REP: accepts a connection and gives the attributes of this end. IBTA 12.6.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmRep {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of the connection.
    pub remote_comm_id: CommId,
    /// Unused in connections; 0.
    pub local_q_key: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Manufacturer of the sender's adapter, 24 bits.
    pub vendor_id: u32,
    /// End-to-end context of reliable datagrams, 24 bits; 0.
    pub local_eecn: u32,
    /// PSN of the first packet that the sender of this message expects. The other side starts with it.
    pub starting_psn: Psn,
    /// Number of READs and atomics of the peer that the sender will hold.
    pub responder_resources: u8,
    /// Largest number of READs and atomics that the sender has outstanding.
    pub initiator_depth: u8,
    /// Longest time until the sender acknowledges a packet.
    pub target_ack_delay: CmTimeout,
    /// Two bits with the state of the alternate path: 0 accepted, 1 not supported, 2 refused.
    pub failover_accepted: u8,
    /// Whether the sender obeys credits.
    pub flow_control: bool,
    /// Three bits: number of retries of the receiver after an RNR NAK; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the sender receives from a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmRep {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 196;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &RepLayout = zerocopy::transmute_ref!(content);
        let vendor_id = [layout.vendor_id_high, layout.vendor_id_middle, layout.vendor_id_low];
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            remote_comm_id: CommId(layout.remote_comm_id.get()),
            local_q_key: layout.local_q_key.get(),
            local_qpn: Qpn::from_be_bytes(layout.local_qpn),
            vendor_id: from_be_24(vendor_id),
            local_eecn: from_be_24(layout.local_eecn),
            starting_psn: Psn::from_be_bytes(layout.starting_psn),
            responder_resources: layout.responder_resources,
            initiator_depth: layout.initiator_depth,
            target_ack_delay: CmTimeout::new(layout.delay_failover_flow >> 3),
            failover_accepted: layout.delay_failover_flow >> 1 & 0b11,
            flow_control: layout.delay_failover_flow & 1 != 0,
            rnr_retry_count: layout.rnr_srq >> 5,
            srq: layout.rnr_srq & 0x10 != 0,
            local_ca_guid: layout.local_ca_guid.get(),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        let [vendor_id_high, vendor_id_middle, vendor_id_low] = to_be_24(self.vendor_id);
        zerocopy::transmute!(RepLayout {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            local_q_key: U32::new(self.local_q_key),
            local_qpn: self.local_qpn.to_be_bytes(),
            vendor_id_high,
            local_eecn: to_be_24(self.local_eecn),
            vendor_id_middle,
            starting_psn: self.starting_psn.to_be_bytes(),
            vendor_id_low,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            delay_failover_flow: self.target_ack_delay.code() << 3
                | (self.failover_accepted & 0b11) << 1
                | u8::from(self.flow_control),
            rnr_srq: self.rnr_retry_count << 5 | u8::from(self.srq) << 4,
            local_ca_guid: U64::new(self.local_ca_guid),
            private_data: self.private_data,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RtuLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; CmRtu::PRIVATE_DATA],
}

const _: () = assert!(size_of::<RtuLayout>() == CM_LEN);

/// RTU: the requester is ready to use the connection. IBTA 12.6.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmRtu {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of the connection.
    pub remote_comm_id: CommId,
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmRtu {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 224;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &RtuLayout = zerocopy::transmute_ref!(content);
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            remote_comm_id: CommId(layout.remote_comm_id.get()),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(RtuLayout {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            private_data: self.private_data,
        })
    }
}

/// The fields of a [`CmRep`].
pub static REP: Header = Header {
    name: "CM REP",
    title: "reply to a request",
    purpose: "Accepts the connection and gives the attributes of the sender's end.",
    rule: "IBTA 12.6.8",
    fields: &[
        local_comm_id("infiniband.cm.rep"),
        remote_comm_id("infiniband.cm.rep.remotecommid"),
        Field::new("local Q_Key", "infiniband.cm.rep.localqkey", bytes(8, 4), Hex).means(NOT_IN_ROCE),
        Field::new("local QPN", "infiniband.cm.rep.localqpn", bytes(12, 3), Hex).means(QPN),
        Field::new("vendor ID", "roce.cm.rep.vendorid.high", bytes(15, 1), Hex)
            .means("Manufacturer of the sender's adapter, bits 23 to 16."),
        Field::new("local EECN", "infiniband.cm.rep.localeecn", bytes(16, 3), Hex).means(NOT_IN_ROCE),
        Field::new("vendor ID", "roce.cm.rep.vendorid.middle", bytes(19, 1), Hex)
            .means("Manufacturer of the sender's adapter, bits 15 to 8."),
        Field::new("starting PSN", "infiniband.cm.rep.startpsn", bytes(20, 3), Decimal).means(STARTING_PSN),
        Field::new("vendor ID", "roce.cm.rep.vendorid.low", bytes(23, 1), Hex)
            .means("Manufacturer of the sender's adapter, bits 7 to 0."),
        Field::new("responder resources", "infiniband.cm.rep.respres", bytes(24, 1), Decimal)
            .means(RESPONDER_RESOURCES),
        Field::new("initiator depth", "infiniband.cm.rep.initdepth", bytes(25, 1), Decimal)
            .means(INITIATOR_DEPTH),
        Field::new("target ACK delay", "infiniband.cm.rep.tgtackdelay", mask(26, 0xf8), Decimal)
            .note(timeout_note)
            .means("Code t for 4.096 us times 2^t: the longest delay of the sender's acknowledgements."),
        Field::new("failover accepted", "infiniband.cm.rep.failoveracc", mask(26, 0x06), Decimal)
            .means("Answer to the alternate path: 0 accepted, 1 not supported, 2 refused."),
        Field::new("flow control", "infiniband.cm.rep.e2eflowctrl", mask(26, 0x01), Flag)
            .means("Set if the sender obeys credits."),
        Field::new("RNR retry count", "infiniband.cm.rep.rnrretrcount", mask(27, 0xe0), Decimal)
            .means(RNR_RETRY),
        Field::new("SRQ", "infiniband.cm.rep.srq", mask(27, 0x10), Flag)
            .means("Set if the sender receives from a shared queue."),
        Field::reserved("infiniband.cm.rep.reserved", mask(27, 0x0f)),
        Field::new("local CA GUID", "infiniband.cm.rep.localcaguid", bytes(28, 8), Hex).means(CA_GUID),
        private_data_from(36, "infiniband.cm.rep.private"),
    ],
};

/// The fields of a [`CmRtu`].
pub static RTU: Header = Header {
    name: "CM RTU",
    title: "ready to use",
    purpose: "Completes the handshake: the active side is ready to receive.",
    rule: "IBTA 12.6.9",
    fields: &[
        local_comm_id("infiniband.cm.rtu.localcommid"),
        remote_comm_id("infiniband.cm.rtu.remotecommid"),
        private_data_from(8, "infiniband.cm.rtu.private"),
    ],
};
