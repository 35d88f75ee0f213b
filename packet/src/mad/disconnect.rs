//! The two messages that end a connection (IBTA 12.6.10, 12.6.11).

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::CommId;
use super::common::{local_comm_id, private_data_from, remote_comm_id};
use super::header::CM_LEN;
use crate::fields::{Field, Header, Show, bytes};
use crate::number::Qpn;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DreqLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    remote_qpn: [u8; 3],
    reserved: u8,
    private_data: [u8; CmDreq::PRIVATE_DATA],
}

const _: () = assert!(size_of::<DreqLayout>() == CM_LEN);

/// DREQ: asks to end a connection. Either side may send it. IBTA 12.6.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmDreq {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of the connection.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmDreq {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 220;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &DreqLayout = zerocopy::transmute_ref!(content);
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            remote_comm_id: CommId(layout.remote_comm_id.get()),
            remote_qpn: Qpn::from_be_bytes(layout.remote_qpn),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(DreqLayout {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            remote_qpn: self.remote_qpn.to_be_bytes(),
            reserved: 0,
            private_data: self.private_data,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DrepLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; CmDrep::PRIVATE_DATA],
}

const _: () = assert!(size_of::<DrepLayout>() == CM_LEN);

/// DREP: confirms that a connection has ended. IBTA 12.6.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmDrep {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of the connection.
    pub remote_comm_id: CommId,
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmDrep {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 224;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &DrepLayout = zerocopy::transmute_ref!(content);
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            remote_comm_id: CommId(layout.remote_comm_id.get()),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(DrepLayout {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            private_data: self.private_data,
        })
    }
}

/// The fields of a [`CmDreq`].
pub static DREQ: Header = Header {
    name: "CM DREQ",
    title: "request to disconnect",
    purpose: "Ends a connection; either side may send it.",
    rule: "IBTA 12.6.10",
    fields: &[
        local_comm_id("infiniband.cm.dreq.localcommid"),
        remote_comm_id("infiniband.cm.dreq.remotecommid"),
        Field::new("remote QPN", "infiniband.cm.req.remoteqpneecn", bytes(8, 3), Show::Hex)
            .means("The receiver's queue pair."),
        Field::reserved("roce.cm.dreq.reserved", bytes(11, 1)),
        private_data_from(12, "infiniband.cm.dreq.private"),
    ],
};

/// The fields of a [`CmDrep`].
pub static DREP: Header = Header {
    name: "CM DREP",
    title: "reply to a disconnect",
    purpose: "Confirms that the connection has ended.",
    rule: "IBTA 12.6.11",
    fields: &[
        local_comm_id("infiniband.cm.drsp.localcommid"),
        remote_comm_id("infiniband.cm.drsp.remotecommid"),
        private_data_from(8, "infiniband.cm.drsp.private"),
    ],
};
