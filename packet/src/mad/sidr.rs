//! Service ID resolution: lets a sender of datagrams find a queue pair (IBTA 12.11).

use core::fmt;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::common::private_data_from;
use super::header::CM_LEN;
use super::ip_cm::service_note;
use super::{CommId, ServiceId};
use crate::deth::q_key_note;
use crate::fields::Show::{Bytes, Decimal, Hex};
use crate::fields::{Field, Header, bytes};
use crate::number::Qpn;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SidrReqLayout {
    request_id: U32,
    p_key: U16,
    reserved: U16,
    service_id: U64,
    private_data: [u8; CmSidrReq::PRIVATE_DATA],
}

const _: () = assert!(size_of::<SidrReqLayout>() == CM_LEN);

/// SIDR_REQ: asks for the queue pair that receives the datagrams of a service. IBTA 12.11.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmSidrReq {
    /// Number of the request.
    pub request_id: CommId,
    /// Partition key.
    pub p_key: u16,
    /// The service.
    pub service_id: ServiceId,
    /// Private data of the application, after the header of rdma_cm ([`super::IpCm`]) if rdma_cm made the
    /// request.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmSidrReq {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 216;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &SidrReqLayout = zerocopy::transmute_ref!(content);
        Self {
            request_id: CommId(layout.request_id.get()),
            p_key: layout.p_key.get(),
            service_id: ServiceId(layout.service_id.get()),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(SidrReqLayout {
            request_id: U32::new(self.request_id.0),
            p_key: U16::new(self.p_key),
            reserved: U16::ZERO,
            service_id: U64::new(self.service_id.0),
            private_data: self.private_data,
        })
    }
}

/// Result of a service ID resolution (IBTA 12.11.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The service is available.
    pub const VALID: Self = Self(0);
    /// The service has no listener.
    pub const UNSUPPORTED: Self = Self(1);
    /// The application refused.
    pub const REJECTED: Self = Self(2);
    /// No queue pair is left.
    pub const NO_QP: Self = Self(3);
    /// The service is at another address.
    pub const REDIRECT: Self = Self(4);
    /// The version of connection management is not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(5);

    /// Returns the meaning in a few words, or `None` for a reserved number.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::VALID => "valid",
            Self::UNSUPPORTED => "service ID not supported",
            Self::REJECTED => "the application refused",
            Self::NO_QP => "no queue pair available",
            Self::REDIRECT => "redirected",
            Self::UNSUPPORTED_VERSION => "class version not supported",
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SidrRepLayout {
    request_id: U32,
    status: u8,
    info_length: u8,
    reserved: U16,
    qpn: [u8; 3],
    reserved2: u8,
    service_id: U64,
    q_key: U32,
    info: [u8; CmSidrRep::INFO],
    private_data: [u8; CmSidrRep::PRIVATE_DATA],
}

const _: () = assert!(size_of::<SidrRepLayout>() == CM_LEN);

/// SIDR_REP: gives the queue pair and the Q_Key for datagrams to a service. IBTA 12.11.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmSidrRep {
    /// Number of the request.
    pub request_id: CommId,
    /// Result of the resolution.
    pub status: SidrStatus,
    /// Number of relevant bytes of the additional information.
    pub info_length: u8,
    /// Queue pair that receives the datagrams.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// Q_Key that datagrams must carry.
    pub q_key: u32,
    /// Additional information that depends on the status.
    pub info: [u8; Self::INFO],
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmSidrRep {
    /// Length of the additional information, in bytes.
    pub const INFO: usize = 72;
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 136;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &SidrRepLayout = zerocopy::transmute_ref!(content);
        Self {
            request_id: CommId(layout.request_id.get()),
            status: SidrStatus(layout.status),
            info_length: layout.info_length,
            qpn: Qpn::from_be_bytes(layout.qpn),
            service_id: ServiceId(layout.service_id.get()),
            q_key: layout.q_key.get(),
            info: layout.info,
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(SidrRepLayout {
            request_id: U32::new(self.request_id.0),
            status: self.status.0,
            info_length: self.info_length,
            reserved: U16::ZERO,
            qpn: self.qpn.to_be_bytes(),
            reserved2: 0,
            service_id: U64::new(self.service_id.0),
            q_key: U32::new(self.q_key),
            info: self.info,
            private_data: self.private_data,
        })
    }
}

/// The fields of a [`CmSidrReq`].
pub static SIDR_REQ: Header = Header {
    name: "CM SIDR_REQ",
    title: "request to resolve a service ID",
    purpose: "Asks which queue pair receives the datagrams of a service.",
    rule: "IBTA 12.11.1",
    fields: &[
        Field::new("request ID", "roce.cm.sidr_req.requestid", bytes(0, 4), Hex)
            .means("Number of the request, which the reply repeats."),
        Field::new("P_Key", "roce.cm.sidr_req.pkey", bytes(4, 2), Hex).means("Partition of the datagrams."),
        Field::reserved("roce.cm.sidr_req.reserved", bytes(6, 2)),
        Field::new("service ID", "roce.cm.sidr_req.serviceid", bytes(8, 8), Hex)
            .note(service_note)
            .means("The requested service."),
        private_data_from(16, "roce.cm.sidr_req.private"),
    ],
};

/// The fields of a [`CmSidrRep`].
pub static SIDR_REP: Header = Header {
    name: "CM SIDR_REP",
    title: "reply with the queue pair of a service",
    purpose: "Gives the queue pair and the Q_Key for datagrams to a service.",
    rule: "IBTA 12.11.2",
    fields: &[
        Field::new("request ID", "roce.cm.sidr_rep.requestid", bytes(0, 4), Hex)
            .means("The number of the request."),
        Field::new("status", "roce.cm.sidr_rep.status", bytes(4, 1), Decimal)
            .note(status_note)
            .means("Whether the service is available."),
        Field::new("info length", "roce.cm.sidr_rep.infolen", bytes(5, 1), Decimal)
            .means("Valid bytes of the additional information."),
        Field::reserved("roce.cm.sidr_rep.reserved0", bytes(6, 2)),
        Field::new("QPN", "roce.cm.sidr_rep.qpn", bytes(8, 3), Hex)
            .means("The queue pair that receives the datagrams."),
        Field::reserved("roce.cm.sidr_rep.reserved1", bytes(11, 1)),
        Field::new("service ID", "roce.cm.sidr_rep.serviceid", bytes(12, 8), Hex)
            .note(service_note)
            .means("The service."),
        Field::new("Q_Key", "roce.cm.sidr_rep.qkey", bytes(20, 4), Hex)
            .note(q_key_note)
            .means("The key that the datagrams must carry."),
        Field::new("additional information", "roce.cm.sidr_rep.info", bytes(24, 72), Bytes)
            .means("Depends on the status."),
        private_data_from(96, "roce.cm.sidr_rep.private"),
    ],
};

fn status_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(SidrStatus(value as u8).name().unwrap_or_default())
}
