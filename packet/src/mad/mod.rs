//! Management datagrams and the messages of connection management (IBTA 12.6 to 12.11, 13.4).
//!
//! A management datagram (MAD) is 256 bytes in one UD packet for queue pair 1: a header of 24 bytes and the
//! message of its class. This module supports only the class of connection management, 0x07 in version 2.
//!
//! The messages can contain every value on the wire, except for reserved bits, because a listener must read
//! the requests that it rejects. The messages therefore have no public views; [`MadView`] is the view of the
//! header.

mod disconnect;
mod ip_cm;
mod reject;
mod reply;
mod request;
mod sidr;
pub(crate) mod tables;

use core::fmt;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use disconnect::{CmDrep, CmDreq};
pub use ip_cm::{IpCm, IpCmView, PortSpace, ServiceId};
pub use reject::{CmMessageKind, CmMra, CmRej, RejReason};
pub use reply::{CmRep, CmRtu};
pub use request::{CmPath, CmReq, TransportService};
pub use sidr::{CmSidrRep, CmSidrReq, SidrStatus};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Hex};
use crate::fields::{Field, Header, bytes};
use crate::view::view;

/// Length of every management datagram, in bytes.
pub const MAD_LEN: usize = 256;

/// The Q_Key of queue pair 1 (IBTA 10.2.5).
pub const GSI_Q_KEY: u32 = 0x8001_0000;

/// The management class of connection management.
pub const CM_CLASS: u8 = 0x07;
/// The version of that class that carries rdma_cm.
pub const CM_CLASS_VERSION: u8 = 2;

/// Length of the data after the header, in bytes.
const CM_LEN: usize = MAD_LEN - MadHeader::LEN;
/// The only method of connection management.
const METHOD_SEND: u8 = 0x03;
const BASE_VERSION: u8 = 1;

/// The header of a management datagram as laid out in a packet.
///
/// ```text
///  0      1       2         3        4        6          8                16          18         20         24
/// +------+-------+---------+--------+--------+----------+----------------+-----------+----------+----------+
/// | base | class | class   | method | status | class    | transaction ID | attribute | reserved | modifier |
/// | vers.|       | version |        |        | specific |                | ID        |          |          |
/// +------+-------+---------+--------+--------+----------+----------------+-----------+----------+----------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MadView {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction_id: U64,
    attribute_id: U16,
    reserved: U16,
    attribute_modifier: U32,
}

view! {
    MadView(self) of MadHeader in Layer::Mad;

    /// Returns the version of this header; 1.
    base_version -> u8 = self.base_version;

    /// Returns the management class.
    class -> u8 = self.class;

    /// Returns the version of the class.
    class_version -> u8 = self.class_version;

    /// Returns the method. The top bit marks a response.
    method -> u8 = self.method;

    /// Returns the status of a response, in some classes.
    status -> u16 = self.status.get();

    /// Returns two class-specific bytes.
    class_specific -> u16 = self.class_specific.get();

    /// Returns the number that a request and its response share.
    transaction_id -> u64 = self.transaction_id.get();

    /// Returns the attribute ID, which identifies the message.
    attribute_id -> u16 = self.attribute_id.get();

    /// Returns the reserved bytes.
    reserved -> u16 = self.reserved.get();

    /// Returns further data of the attribute.
    attribute_modifier -> u32 = self.attribute_modifier.get();
}

/// The header of a management datagram of any class. IBTA 13.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// Management class; [`CM_CLASS`] for connection management.
    pub class: u8,
    /// The version of the class.
    pub class_version: u8,
    /// Method. The top bit marks a response.
    pub method: u8,
    /// Status of a response, in some classes; otherwise 0.
    pub status: u16,
    /// Two class-specific bytes; 0 in connection management.
    pub class_specific: u16,
    /// The number that a request and its response share.
    pub transaction_id: u64,
    /// Attribute ID, which identifies the message.
    pub attribute_id: u16,
    /// Further data of the attribute; 0, except in kernels that store their own options here.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 24;

    /// Parses the header. Returns it and the remaining bytes. Rejects base versions other than 1.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = MadView::from_prefix(bytes)?;
        if view.base_version != BASE_VERSION {
            return Err(bad_version(0, BASE_VERSION, view.base_version));
        }
        let header = Self {
            class: view.class,
            class_version: view.class_version,
            method: view.method,
            status: view.status(),
            class_specific: view.class_specific(),
            transaction_id: view.transaction_id(),
            attribute_id: view.attribute_id(),
            attribute_modifier: view.attribute_modifier(),
        };
        Ok((header, rest))
    }

    /// Writes the header with reserved bits set to 0.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(MadView {
            base_version: BASE_VERSION,
            class: self.class,
            class_version: self.class_version,
            method: self.method,
            status: U16::new(self.status),
            class_specific: U16::new(self.class_specific),
            transaction_id: U64::new(self.transaction_id),
            attribute_id: U16::new(self.attribute_id),
            reserved: U16::ZERO,
            attribute_modifier: U32::new(self.attribute_modifier),
        });
    }
}

fn bad_version(offset: usize, need: u8, have: u8) -> ParseError {
    let kind = ParseErrorKind::BadVersion;
    ParseError { layer: Layer::Mad, kind, offset, need: need.into(), have: have.into() }
}

/// The ID of a connection at one end, 32 bits. Each end has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// A time as a five-bit code `t`: 4.096 µs × 2^t, from 4 µs to 2.4 hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The longest time, code 31.
    pub const MAX: Self = Self(31);

    /// Returns the time with this code. Uses only the low five bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        4096 << (self.0 & 0x1f)
    }
}

impl fmt::Display for CmTimeout {
    /// Writes the time rounded, with a suitable unit: `4.1 us`, `67.1 ms`, `2.20 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nanos() as f64 {
            ns if ns < 1e6 => write!(f, "{:.1} us", ns / 1e3),
            ns if ns < 1e9 => write!(f, "{:.1} ms", ns / 1e6),
            ns => write!(f, "{:.2} s", ns / 1e9),
        }
    }
}

/// A message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "all are parts of one 232-byte message; nothing keeps many of them"
)]
pub enum CmMessage {
    /// Asks for a connection.
    Req(CmReq),
    /// Announces that the answer takes longer.
    Mra(CmMra),
    /// Rejects a connection.
    Rej(CmRej),
    /// Accepts a connection.
    Rep(CmRep),
    /// Completes the handshake.
    Rtu(CmRtu),
    /// Asks to end a connection.
    Dreq(CmDreq),
    /// Confirms the end of a connection.
    Drep(CmDrep),
    /// Asks which queue pair receives the datagrams of a service.
    SidrReq(CmSidrReq),
    /// Tells which queue pair receives the datagrams of a service.
    SidrRep(CmSidrRep),
}

impl CmMessage {
    /// Returns the attribute ID, 0x10 to 0x18.
    #[must_use]
    pub const fn attribute_id(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
            Self::SidrReq(_) => 0x17,
            Self::SidrRep(_) => 0x18,
        }
    }

    /// Returns the name in the specification.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Rej(_) => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu(_) => "RTU",
            Self::Dreq(_) => "DREQ",
            Self::Drep(_) => "DREP",
            Self::SidrReq(_) => "SIDR_REQ",
            Self::SidrRep(_) => "SIDR_REP",
        }
    }

    fn parse(attribute_id: u16, content: &[u8; CM_LEN]) -> Option<Self> {
        Some(match attribute_id {
            0x10 => Self::Req(CmReq::read(content)),
            0x11 => Self::Mra(CmMra::read(content)),
            0x12 => Self::Rej(CmRej::read(content)),
            0x13 => Self::Rep(CmRep::read(content)),
            0x14 => Self::Rtu(CmRtu::read(content)),
            0x15 => Self::Dreq(CmDreq::read(content)),
            0x16 => Self::Drep(CmDrep::read(content)),
            0x17 => Self::SidrReq(CmSidrReq::read(content)),
            0x18 => Self::SidrRep(CmSidrRep::read(content)),
            _ => return None,
        })
    }

    fn content(&self) -> [u8; CM_LEN] {
        match self {
            Self::Req(message) => message.write(),
            Self::Mra(message) => message.write(),
            Self::Rej(message) => message.write(),
            Self::Rep(message) => message.write(),
            Self::Rtu(message) => message.write(),
            Self::Dreq(message) => message.write(),
            Self::Drep(message) => message.write(),
            Self::SidrReq(message) => message.write(),
            Self::SidrRep(message) => message.write(),
        }
    }
}

/// A complete management datagram of connection management.
///
/// ```
/// use roce_packet::mad::{CmDreq, CmMad, CmMessage, CommId, MAD_LEN};
/// use roce_packet::Qpn;
///
/// let dreq = CmDreq {
///     local_comm_id: CommId(7),
///     remote_comm_id: CommId(9),
///     remote_qpn: Qpn::new(0x123456),
///     private_data: [0; CmDreq::PRIVATE_DATA],
/// };
/// let mut bytes = [0; MAD_LEN];
/// CmMad::new(42, CmMessage::Dreq(dreq)).emit(&mut bytes);
/// let mad = CmMad::parse(&bytes)?;
/// assert_eq!((mad.transaction_id, mad.message), (42, CmMessage::Dreq(dreq)));
/// # Ok::<(), roce_packet::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Number chosen by the sender of a REQ, a DREQ or a SIDR_REQ. The answers repeat it.
    pub transaction_id: u64,
    /// Unused header field, 0 in connection management.
    pub status: u16,
    /// Unused header field, 0 in connection management.
    pub class_specific: u16,
    /// Unused header field, 0 in connection management. Some kernels store their own options in it.
    pub attribute_modifier: u32,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// Creates a datagram whose unused header fields are 0.
    #[must_use]
    pub const fn new(transaction_id: u64, message: CmMessage) -> Self {
        Self { transaction_id, status: 0, class_specific: 0, attribute_modifier: 0, message }
    }

    /// Parses a complete datagram, which must have exactly [`MAD_LEN`] bytes. Rejects other classes, versions
    /// and methods, and the attributes of alternate paths (LAP, APR).
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let (header, rest) = MadHeader::parse(bytes)?;
        let unsupported = |offset, have: u16| ParseError {
            layer: Layer::Mad,
            kind: ParseErrorKind::Unsupported,
            offset,
            need: 0,
            have: have.into(),
        };
        if header.class != CM_CLASS {
            return Err(unsupported(1, header.class.into()));
        }
        if header.class_version != CM_CLASS_VERSION {
            return Err(bad_version(2, CM_CLASS_VERSION, header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(unsupported(3, header.method.into()));
        }
        let Some((content, behind)) = rest.split_first_chunk() else {
            return Err(ParseError::truncated(Layer::Cm, MadHeader::LEN, CM_LEN, rest.len()));
        };
        if !behind.is_empty() {
            let (kind, have) = (ParseErrorKind::TrailingBytes, bytes.len());
            return Err(ParseError { layer: Layer::Mad, kind, offset: MAD_LEN, need: MAD_LEN, have });
        }
        let Some(message) = CmMessage::parse(header.attribute_id, content) else {
            return Err(unsupported(16, header.attribute_id));
        };
        Ok(Self {
            transaction_id: header.transaction_id,
            status: header.status,
            class_specific: header.class_specific,
            attribute_modifier: header.attribute_modifier,
            message,
        })
    }

    /// Writes the datagram with reserved bits set to 0.
    pub fn emit(&self, out: &mut [u8; MAD_LEN]) {
        let header = MadHeader {
            class: CM_CLASS,
            class_version: CM_CLASS_VERSION,
            method: METHOD_SEND,
            status: self.status,
            class_specific: self.class_specific,
            transaction_id: self.transaction_id,
            attribute_id: self.message.attribute_id(),
            attribute_modifier: self.attribute_modifier,
        };
        if let Some((head, content)) = out.split_first_chunk_mut() {
            header.emit(head);
            content.copy_from_slice(&self.message.content());
        }
    }
}

/// Returns private data of `N` bytes that begins with `data`. Excess bytes are dropped; the rest is zero.
#[must_use]
pub fn private_data<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(data) {
        *to = *from;
    }
    out
}

/// The fields of a [`MadView`].
pub static MAD: Header = Header {
    name: "MAD",
    title: "management datagram header",
    purpose: "Begins every management message; RoCE uses them to open and close connections.",
    rule: "IBTA 13.4.3",
    fields: &[
        Field::new("BaseVersion", "infiniband.mad.baseversion", bytes(0, 1), Decimal)
            .means("Version of this header; 1."),
        Field::new("MgmtClass", "infiniband.mad.mgmtclass", bytes(1, 1), Hex)
            .note(class_note)
            .means("Kind of management; 7 is connection management."),
        Field::new("ClassVersion", "infiniband.mad.classversion", bytes(2, 1), Decimal)
            .means("Version of the class; 2 for connection management."),
        Field::new("Method", "infiniband.mad.method", bytes(3, 1), Hex)
            .means("Method; connection management uses Send (3) only."),
        Field::new("Status", "infiniband.mad.status", bytes(4, 2), Hex)
            .means("Status of a response; 0 in connection management."),
        Field::new("ClassSpecific", "infiniband.mad.classspecific", bytes(6, 2), Hex)
            .means("Depends on the class; 0 in connection management."),
        Field::new("TransactionID", "infiniband.mad.transactionid", bytes(8, 8), Hex)
            .means("Chosen by the sender of a request; the response repeats it."),
        Field::new("AttributeID", "infiniband.mad.attributeid", bytes(16, 2), Hex)
            .note(|id, out| out.write_str(tables::cm_message(id as u16).map_or("", |message| message.name)))
            .means("Type of the message."),
        Field::reserved("roce.mad.reserved", bytes(18, 2)),
        Field::new("AttributeModifier", "infiniband.mad.attributemodifier", bytes(20, 4), Hex)
            .means("0 in connection management; some kernels carry options here."),
    ],
};

/// The content of a management datagram of a class other than connection management.
pub static MAD_DATA: Header = Header {
    name: "data",
    title: "content of the management datagram",
    purpose: "Depends on the class and the attribute.",
    rule: "IBTA 13.4",
    fields: &[],
};

fn class_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value {
        0x01 => "subnet management, by LID",
        0x03 => "subnet administration",
        0x04 => "performance management",
        0x06 => "device management",
        0x07 => "connection management",
        0x81 => "subnet management, by direct route",
        _ => "",
    })
}
