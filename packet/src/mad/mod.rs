//! Management datagrams and the messages of connection management (IBTA 12.6 to 12.11, 13.4).
//!
//! A management datagram (MAD) is 256 bytes in one UD packet for queue pair 1: a header of 24 bytes and the
//! message of its class. This module supports only the class of connection management, 0x07 in version 2.
//!
//! The messages can contain every value on the wire, except for reserved bits, because a listener must read
//! the requests that it rejects. The messages therefore have no public views; [`MadView`] is the view of the
//! header.

mod common;
mod disconnect;
mod header;
mod ip_cm;
mod reject;
mod reply;
mod request;
mod sidr;
pub(crate) mod tables;
mod values;

pub use disconnect::{CmDrep, CmDreq};
pub use header::{MAD_LEN, MadHeader, MadView};
pub use ip_cm::{IpCm, IpCmView, PortSpace, ServiceId};
pub use reject::{CmMessageKind, CmMra, CmRej, RejReason};
pub use reply::{CmRep, CmRtu};
pub use request::{CmPath, CmReq, TransportService};
pub use sidr::{CmSidrRep, CmSidrReq, SidrStatus};
pub use values::{CmTimeout, CommId};

use crate::error::{Layer, ParseError, ParseErrorKind};
use header::{CM_LEN, bad_version};

pub use crate::deth::GSI_Q_KEY;

/// The management class of connection management.
pub const CM_CLASS: u8 = 0x07;
/// The version of that class that carries rdma_cm.
pub const CM_CLASS_VERSION: u8 = 2;

/// The only method of connection management.
const METHOD_SEND: u8 = 0x03;

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
