//! A received datagram from BTH to ICRC. All properties that depend only on its own bytes are checked.

use crate::aeth::Aeth;
use crate::atomic::{AtomicAckEth, AtomicEth};
use crate::bth::Bth;
use crate::deth::{Deth, Rdeth, Xrceth};
use crate::envelope::Envelope;
use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Header;
use crate::flush::Feth;
use crate::icrc;
use crate::immediate::{Ieth, ImmDt};
use crate::opcode::{HeaderSet, OpcodeInfo, PayloadRule};
use crate::reth::Reth;

/// A datagram with a known opcode, in which the lengths of headers, payload, padding and ICRC are consistent.
/// The caller checks the value of the ICRC with [`Datagram::compute_icrc`].
///
/// The bytes may be in two slices, because some devices split large frames. The first slice must contain all
/// headers.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    bth: Bth,
    info: &'static OpcodeInfo,
    payload_len: usize,
}

impl<'a> Datagram<'a> {
    /// Parses a datagram. Checks transport version, opcode, length and padding, and the payload length if the
    /// opcode alone determines it. The receiver must check lengths that depend on the path MTU, because RC
    /// answers a violation with a NAK instead of dropping the packet (IBTA 9.7.4.1.6). A First, Middle or
    /// Last packet without payload is therefore accepted.
    ///
    /// ```
    /// use roce_packet::{Datagram, ParseErrorKind};
    ///
    /// let error = Datagram::parse(&[0x11, 0, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 1], &[]).unwrap_err();
    /// assert_eq!(error.kind, ParseErrorKind::Truncated);
    /// assert_eq!(error.to_string(), "AETH at byte 12: too short, 4 bytes needed, 0 found");
    /// ```
    #[inline]
    pub fn parse(head: &'a [u8], tail: &'a [u8]) -> Result<Self, ParseError> {
        let (bth, _) = Bth::parse(head)?;
        let Some(info) = bth.opcode.info() else {
            return Err(ParseError {
                layer: Layer::Bth,
                kind: ParseErrorKind::UnknownOpcode,
                offset: 0,
                need: 0,
                have: bth.opcode.0.into(),
            });
        };
        let len = head.len().saturating_add(tail.len());
        let around = info.header_len.saturating_add(icrc::LEN).saturating_add(bth.pad_count.into());
        let Some(payload_len) = len.checked_sub(around).filter(|_| head.len() >= info.header_len) else {
            return Err(truncated(&bth, info, head.len(), len));
        };
        let fits = match info.payload {
            PayloadRule::ZeroToMtu | PayloadRule::OneToMtu | PayloadRule::FullMtu => true,
            PayloadRule::None => payload_len == 0,
            PayloadRule::Exactly(len) => payload_len == len,
        };
        if !fits || !len.is_multiple_of(4) {
            return Err(bad_payload(info, payload_len, len));
        }
        Ok(Self { head, tail, bth, info, payload_len })
    }

    /// Returns the base transport header.
    #[inline]
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// Returns the row of the opcode in the table.
    #[inline]
    #[must_use]
    pub const fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// Returns the payload without padding, as the parts in the two slices.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> (&'a [u8], &'a [u8]) {
        let first = self.head.get(self.info.header_len..).unwrap_or_default();
        match first.get(..self.payload_len) {
            Some(all) => (all, &[]),
            None => {
                let left = self.payload_len.saturating_sub(first.len());
                (first, self.tail.get(..left).unwrap_or_default())
            }
        }
    }

    /// Returns the length of the payload without padding, in bytes.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Returns the length from BTH to ICRC inclusive, in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is always a BTH")]
    pub const fn len(&self) -> usize {
        self.head.len().saturating_add(self.tail.len())
    }

    /// Returns the bytes from BTH to ICRC, as the parts in the two slices.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> (&'a [u8], &'a [u8]) {
        (self.head, self.tail)
    }

    /// Returns the ICRC in the datagram.
    #[inline]
    #[must_use]
    pub fn icrc(&self) -> u32 {
        if let Some(bytes) = self.tail.last_chunk() {
            return u32::from_le_bytes(*bytes);
        }
        if self.tail.is_empty() {
            return self.head.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        }
        // The ICRC is divided between the two slices. Its last byte is the most significant one.
        let backwards = self.tail.iter().rev().chain(self.head.iter().rev());
        backwards.take(icrc::LEN).fold(0, |value, byte| value << 8 | u32::from(*byte))
    }

    /// Returns the ICRC computed from the datagram.
    #[inline]
    #[must_use]
    pub fn compute_icrc(&self, envelope: &Envelope) -> u32 {
        let (head, tail) = self.covered();
        icrc::compute(envelope, head, tail)
    }

    /// Returns the ICRC computed from the datagram and a precomputed contribution of the headers below the
    /// BTH.
    #[inline]
    #[must_use]
    pub fn compute_icrc_from(&self, seed: &icrc::Seed, identification: u16) -> u32 {
        let (head, tail) = self.covered();
        seed.compute(identification, head, tail)
    }

    /// Returns the IPv4 Identification for which the ICRC is correct; see [`icrc::recover_identification`].
    #[must_use]
    pub fn recover_identification(&self, envelope: &Envelope) -> Option<u16> {
        let (head, tail) = self.covered();
        icrc::recover_identification(envelope, head, tail, self.icrc())
    }

    /// Returns the bytes from BTH to padding, which the ICRC covers, as the parts in the two slices.
    #[inline]
    #[must_use]
    pub fn covered(&self) -> (&'a [u8], &'a [u8]) {
        match self.tail.len().checked_sub(icrc::LEN) {
            Some(len) => (self.head, self.tail.get(..len).unwrap_or_default()),
            None => {
                let in_head = icrc::LEN.saturating_sub(self.tail.len());
                let len = self.head.len().saturating_sub(in_head);
                (self.head.get(..len).unwrap_or_default(), &[])
            }
        }
    }

    #[inline]
    fn header<T>(
        &self,
        which: HeaderSet,
        parse: impl FnOnce(&'a [u8]) -> Result<(T, &'a [u8]), ParseError>,
    ) -> Option<T> {
        let bytes = self.head.get(self.info.offset_of(which)?..)?;
        parse(bytes).ok().map(|(header, _)| header)
    }
}

/// Defines a method for each extended header, which parses it at the offset that the opcode determines.
macro_rules! headers {
    ($($(#[$doc:meta])* $name:ident: $header:ident = $flag:ident;)*) => {
        impl Datagram<'_> {
            $($(#[$doc])* #[inline] #[must_use] pub fn $name(&self) -> Option<$header> {
                self.header(HeaderSet::$flag, $header::parse)
            })*
        }
    };
}

headers! {
    /// Returns the reliable datagram header, if the opcode has one.
    rdeth: Rdeth = RDETH;
    /// Returns the datagram header, if the opcode has one.
    deth: Deth = DETH;
    /// Returns the extended reliable connection header, if the opcode has one.
    xrceth: Xrceth = XRCETH;
    /// Returns the flush header, if the opcode has one.
    feth: Feth = FETH;
    /// Returns the RDMA header, if the opcode has one.
    reth: Reth = RETH;
    /// Returns the atomic header, if the opcode has one.
    atomic_eth: AtomicEth = ATOMIC_ETH;
    /// Returns the acknowledge header, if the opcode has one.
    aeth: Aeth = AETH;
    /// Returns the atomic acknowledge header, if the opcode has one.
    atomic_ack_eth: AtomicAckEth = ATOMIC_ACK_ETH;
    /// Returns the immediate data, if the opcode has any.
    imm_dt: ImmDt = IMMDT;
    /// Returns the invalidate header, if the opcode has one.
    ieth: Ieth = IETH;
}

/// Returns the error for the first part of a datagram that does not fit.
#[cold]
fn truncated(bth: &Bth, info: &OpcodeInfo, head_len: usize, len: usize) -> ParseError {
    let mut offset = Bth::LEN;
    for header in info.headers.iter() {
        let (layer, need) = header_layer(header);
        let have = head_len.saturating_sub(offset);
        if have < need {
            return ParseError::truncated(layer, offset, need, have);
        }
        offset = offset.saturating_add(need);
    }
    let need = usize::from(bth.pad_count).saturating_add(icrc::LEN);
    ParseError::truncated(Layer::Icrc, offset, need, len.saturating_sub(offset))
}

/// Returns the error for an invalid payload length.
#[cold]
fn bad_payload(info: &OpcodeInfo, payload_len: usize, len: usize) -> ParseError {
    let (kind, need, have) = match info.payload {
        _ if !len.is_multiple_of(4) => (ParseErrorKind::BadLength, len.next_multiple_of(4), len),
        PayloadRule::None => (ParseErrorKind::TrailingBytes, 0, payload_len),
        PayloadRule::Exactly(need) => (ParseErrorKind::BadLength, need, payload_len),
        // Only reached for lengths that are not a multiple of four.
        PayloadRule::FullMtu | PayloadRule::OneToMtu | PayloadRule::ZeroToMtu => {
            (ParseErrorKind::BadLength, len.next_multiple_of(4), len)
        }
    };
    ParseError { layer: Layer::Payload, kind, offset: info.header_len, need, have }
}

/// Returns the layer and the length of a header.
fn header_layer(header: HeaderSet) -> (Layer, usize) {
    match header {
        HeaderSet::RDETH => (Layer::Rdeth, Rdeth::LEN),
        HeaderSet::DETH => (Layer::Deth, Deth::LEN),
        HeaderSet::XRCETH => (Layer::Xrceth, Xrceth::LEN),
        HeaderSet::FETH => (Layer::Feth, Feth::LEN),
        HeaderSet::RETH => (Layer::Reth, Reth::LEN),
        HeaderSet::ATOMIC_ETH => (Layer::AtomicEth, AtomicEth::LEN),
        HeaderSet::AETH => (Layer::Aeth, Aeth::LEN),
        HeaderSet::ATOMIC_ACK_ETH => (Layer::AtomicAckEth, AtomicAckEth::LEN),
        HeaderSet::IMMDT => (Layer::ImmDt, ImmDt::LEN),
        _ => (Layer::Ieth, Ieth::LEN),
    }
}

/// The payload of a datagram.
pub static PAYLOAD: Header = Header {
    name: "payload",
    title: "payload",
    purpose: "Carries the bytes of the application.",
    rule: "IBTA 9.2",
    fields: &[],
};

/// The padding after a payload.
pub static PADDING: Header = Header {
    name: "pad",
    title: "padding",
    purpose: "Extends the payload to a multiple of 4 bytes; the ICRC covers it.",
    rule: "IBTA 9.2",
    fields: &[],
};
