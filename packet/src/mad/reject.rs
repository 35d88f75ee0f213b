//! Rejections with their reasons, and message receipts (IBTA 12.6.6, 12.6.7).

use core::fmt;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::common::{local_comm_id, private_data_from, remote_comm_id, timeout_note};
use super::header::CM_LEN;
use super::{CmTimeout, CommId};
use crate::fields::Show::{Bytes, Decimal};
use crate::fields::{Field, Header, bytes, mask};

/// The message that a rejection or a receipt concerns, two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmMessageKind {
    /// 0: the REQ.
    Req,
    /// 1: the REP.
    Rep,
    /// 2: no particular message in a rejection, a LAP in a receipt.
    Other,
    /// 3: reserved.
    Reserved,
}

impl CmMessageKind {
    /// Reads the low two bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    /// Returns the two bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
            Self::Reserved => 3,
        }
    }
}

/// Reason for rejecting a connection: the number in IBTA 12.6.7.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl RejReason {
            $($(#[$meta])* pub const $name: Self = Self($number);)*

            /// Every reason with a name, in numerical order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the meaning in a few words, or `None` for a reserved number.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// No queue pair is left.
    NO_QP = 1, "no queue pair available";
    /// No end-to-end context is left (reliable datagrams).
    NO_EEC = 2, "no end-to-end context available";
    /// Another resource is exhausted.
    NO_RESOURCES = 3, "no resources available";
    /// The sender received no answer in time.
    TIMEOUT = 4, "timeout";
    /// The request is not supported.
    UNSUPPORTED = 5, "unsupported request";
    /// The receiver knows no such connection.
    INVALID_COMM_ID = 6, "invalid communication ID";
    /// The two IDs no longer belong to the same connection.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// The service has no listener.
    INVALID_SERVICE_ID = 8, "invalid service ID: no listener";
    /// The listener does not accept this transport.
    INVALID_TRANSPORT_TYPE = 9, "invalid transport type";
    /// The queue pair of the request is still connected as far as the sender knows.
    STALE_CONNECTION = 10, "stale connection";
    /// The reliable datagram channel does not exist.
    RDC_DOES_NOT_EXIST = 11, "RDC does not exist";
    /// The GIDs of the path are not those of its ends.
    INVALID_GID = 12, "invalid primary GID";
    /// A LID of the path is invalid.
    INVALID_LID = 13, "invalid primary LID";
    /// The service level of the path is invalid.
    INVALID_SL = 14, "invalid primary SL";
    /// The traffic class of the path is invalid.
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    /// The hop limit of the path is invalid.
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    /// The packet rate of the path is too high.
    INVALID_PACKET_RATE = 17, "primary packet rate too high";
    /// The GIDs of the alternate path are invalid.
    INVALID_ALTERNATE_GID = 18, "invalid alternate GID";
    /// A LID of the alternate path is invalid.
    INVALID_ALTERNATE_LID = 19, "invalid alternate LID";
    /// The service level of the alternate path is invalid.
    INVALID_ALTERNATE_SL = 20, "invalid alternate SL";
    /// The traffic class of the alternate path is invalid.
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// The hop limit of the alternate path is invalid.
    INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// The packet rate of the alternate path is too high.
    INVALID_ALTERNATE_PACKET_RATE = 23, "alternate packet rate too high";
    /// The service is at another port and with another connection manager.
    PORT_AND_CM_REDIRECTION = 24, "port and CM redirection";
    /// The service is at another port.
    PORT_REDIRECTION = 25, "port redirection";
    /// The path MTU is too large.
    INVALID_PATH_MTU = 26, "path MTU unacceptable";
    /// The responder cannot hold enough READs and atomics.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The application refused.
    CONSUMER = 28, "the application refused";
    /// The RNR retry count is not acceptable.
    INVALID_RNR_RETRY = 29, "RNR retry count unacceptable";
    /// The sender's ID is in use.
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication ID";
    /// The version of connection management is not supported.
    INVALID_CLASS_VERSION = 31, "class version not supported";
    /// The flow label of the path is invalid.
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    /// The flow label of the alternate path is invalid.
    INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
    /// An option of the manufacturer is not supported.
    VENDOR_OPTION = 35, "vendor option not supported";
}

impl fmt::Display for RejReason {
    /// Writes number and name: `8 (invalid service ID: no listener)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name().unwrap_or("reserved"))
    }
}

impl fmt::Debug for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejReason({self})")
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RejLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message rejected (2), reserved (6).
    rejected: u8,
    /// Length of the additional information (7), reserved (1).
    info_length: u8,
    reason: U16,
    info: [u8; CmRej::INFO],
    private_data: [u8; CmRej::PRIVATE_DATA],
}

const _: () = assert!(size_of::<RejLayout>() == CM_LEN);

/// REJ: refuses a connection, or abandons a handshake. IBTA 12.6.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmRej {
    /// The sender's ID of the connection; 0 if it has none.
    pub local_comm_id: CommId,
    /// The receiver's ID of the connection; 0 if unknown.
    pub remote_comm_id: CommId,
    /// The rejected message.
    pub rejected: CmMessageKind,
    /// Number of relevant bytes of the additional information, seven bits.
    pub info_length: u8,
    /// Reason for the rejection.
    pub reason: RejReason,
    /// Additional information that depends on the reason, for example an acceptable value.
    pub info: [u8; Self::INFO],
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmRej {
    /// Length of the additional information, in bytes.
    pub const INFO: usize = 72;
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 148;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &RejLayout = zerocopy::transmute_ref!(content);
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            remote_comm_id: CommId(layout.remote_comm_id.get()),
            rejected: CmMessageKind::from_bits(layout.rejected >> 6),
            info_length: layout.info_length >> 1,
            reason: RejReason(layout.reason.get()),
            info: layout.info,
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(RejLayout {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            rejected: self.rejected.bits() << 6,
            info_length: self.info_length << 1,
            reason: U16::new(self.reason.0),
            info: self.info,
            private_data: self.private_data,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MraLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message received (2), reserved (6).
    received: u8,
    /// Service timeout (5), reserved (3).
    service_timeout: u8,
    private_data: [u8; CmMra::PRIVATE_DATA],
}

const _: () = assert!(size_of::<MraLayout>() == CM_LEN);

/// MRA: a message arrived, and its answer takes longer. IBTA 12.6.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMra {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of the connection.
    pub remote_comm_id: CommId,
    /// The message that arrived.
    pub received: CmMessageKind,
    /// Time within which the answer will arrive.
    pub service_timeout: CmTimeout,
    /// Private data of the application.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl CmMra {
    /// Length of the private data, in bytes.
    pub const PRIVATE_DATA: usize = 222;

    pub(super) fn read(content: &[u8; CM_LEN]) -> Self {
        let layout: &MraLayout = zerocopy::transmute_ref!(content);
        Self {
            local_comm_id: CommId(layout.local_comm_id.get()),
            remote_comm_id: CommId(layout.remote_comm_id.get()),
            received: CmMessageKind::from_bits(layout.received >> 6),
            service_timeout: CmTimeout::new(layout.service_timeout >> 3),
            private_data: layout.private_data,
        }
    }

    pub(super) fn write(&self) -> [u8; CM_LEN] {
        zerocopy::transmute!(MraLayout {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            received: self.received.bits() << 6,
            service_timeout: self.service_timeout.code() << 3,
            private_data: self.private_data,
        })
    }
}

/// The fields of a [`CmRej`].
pub static REJ: Header = Header {
    name: "CM REJ",
    title: "rejection",
    purpose: "Refuses a connection, or abandons a handshake.",
    rule: "IBTA 12.6.7",
    fields: &[
        local_comm_id("infiniband.cm.rej.localcommid"),
        remote_comm_id("infiniband.cm.rej.remotecommid"),
        Field::new("message rejected", "infiniband.cm.rej.msgrej", mask(8, 0xc0), Decimal)
            .means("Rejected message: 0 REQ, 1 REP, 2 another."),
        Field::reserved("infiniband.cm.rej.reserved0", mask(8, 0x3f)),
        Field::new("reject info length", "infiniband.cm.rej.rejinfolen", mask(9, 0xfe), Decimal)
            .means("Valid bytes of the additional information."),
        Field::reserved("infiniband.cm.rej.reserved1", mask(9, 0x01)),
        Field::new("reason", "infiniband.cm.rej.reason", bytes(10, 2), Decimal)
            .note(reason_note)
            .means("Reason of the rejection."),
        Field::new("additional information", "infiniband.cm.rej.ari", bytes(12, 72), Bytes)
            .means("Depends on the reason, for example an acceptable value."),
        private_data_from(84, "infiniband.cm.rej.private"),
    ],
};

/// The fields of a [`CmMra`].
pub static MRA: Header = Header {
    name: "CM MRA",
    title: "message receipt acknowledgement",
    purpose: "Says that a message arrived and that the answer takes longer.",
    rule: "IBTA 12.6.6",
    fields: &[
        local_comm_id("roce.cm.mra.localcommid"),
        remote_comm_id("roce.cm.mra.remotecommid"),
        Field::new("message", "roce.cm.mra.message", mask(8, 0xc0), Decimal)
            .means("Received message: 0 REQ, 1 REP, 2 LAP."),
        Field::reserved("roce.cm.mra.reserved0", mask(8, 0x3f)),
        Field::new("service timeout", "roce.cm.mra.servicetout", mask(9, 0xf8), Decimal)
            .note(timeout_note)
            .means("Code t for 4.096 us times 2^t: the answer follows within this time."),
        Field::reserved("roce.cm.mra.reserved1", mask(9, 0x07)),
        private_data_from(10, "roce.cm.mra.private"),
    ],
};

fn reason_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(RejReason(value as u16).name().unwrap_or_default())
}
