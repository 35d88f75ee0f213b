//! Errors of parsers. Each contains the layer, the offset and the numbers concerned.

use core::fmt;

/// The part of a frame that an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the names of the headers")]
pub enum Layer {
    Ethernet,
    Vlan,
    Lrh,
    Ipv4,
    Ipv6,
    Grh,
    Udp,
    Bth,
    Rdeth,
    Deth,
    Xrceth,
    Reth,
    AtomicEth,
    Aeth,
    Feth,
    ImmDt,
    Ieth,
    AtomicAckEth,
    /// The bytes between the headers and the ICRC, padding included.
    Payload,
    Icrc,
    /// The fixed content of a congestion notification packet.
    Cnp,
    /// An IEEE 802.3x or priority flow control frame.
    Pause,
    /// The header of a management datagram.
    Mad,
    /// A message of connection management.
    Cm,
    /// The header of rdma_cm in private data.
    IpCm,
}

impl Layer {
    /// Returns the name in the specifications.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN tag",
            Self::Lrh => "LRH",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Grh => "GRH",
            Self::Udp => "UDP",
            Self::Bth => "BTH",
            Self::Rdeth => "RDETH",
            Self::Deth => "DETH",
            Self::Xrceth => "XRCETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::Feth => "FETH",
            Self::ImmDt => "ImmDt",
            Self::Ieth => "IETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::Payload => "payload",
            Self::Icrc => "ICRC",
            Self::Cnp => "CNP",
            Self::Pause => "pause",
            Self::Mad => "MAD",
            Self::Cm => "CM message",
            Self::IpCm => "IP CM header",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of error. Each variant defines the meaning of the two numbers in the [`ParseError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Fewer bytes than the layer needs; `need` and `have` count bytes.
    Truncated,
    /// More bytes than the layer may have; `need` and `have` count bytes.
    TrailingBytes,
    /// A version field with an undefined version; `need` is the defined version, `have` the one found.
    BadVersion,
    /// A length field, or the total length, contradicts other lengths. `need` and `have` count bytes.
    BadLength,
    /// A wrong header checksum; `need` is the computed one, `have` the one found.
    BadChecksum,
    /// An opcode without an operation; `have` is the opcode.
    UnknownOpcode,
    /// A frame of another protocol; `have` is the field that identifies it.
    NotRoce,
    /// A legal frame that this crate does not support, for example a fragment; `have` is the field that
    /// identifies it.
    Unsupported,
    /// A reserved value in a field that matters; `have` is the value.
    ReservedValue,
}

impl ParseErrorKind {
    /// Returns a short description.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Truncated => "too short",
            Self::TrailingBytes => "too long",
            Self::BadVersion => "wrong version",
            Self::BadLength => "inconsistent length",
            Self::BadChecksum => "wrong checksum",
            Self::UnknownOpcode => "unknown opcode",
            Self::NotRoce => "not RoCE",
            Self::Unsupported => "not supported",
            Self::ReservedValue => "reserved value",
        }
    }
}

/// The error for bytes that a parser rejects: the layer, the offset and the numbers concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParseError {
    /// Layer with the error.
    pub layer: Layer,
    /// Kind of error.
    pub kind: ParseErrorKind,
    /// Offset of the error, in bytes from the start of the parser's input.
    pub offset: usize,
    /// The expected number; see [`ParseErrorKind`].
    pub need: usize,
    /// The number found; see [`ParseErrorKind`].
    pub have: usize,
}

impl ParseError {
    /// Creates the error for a layer that begins at `offset` and needs `need` bytes, of which only `have` are
    /// present.
    #[inline]
    #[must_use]
    pub const fn truncated(layer: Layer, offset: usize, need: usize, have: usize) -> Self {
        Self { layer, kind: ParseErrorKind::Truncated, offset, need, have }
    }

    /// Moves the offset by `bytes`, for a caller that passed only the part of its input after that many
    /// bytes.
    #[inline]
    #[must_use]
    pub const fn moved_by(mut self, bytes: usize) -> Self {
        self.offset = self.offset.saturating_add(bytes);
        self
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.layer, self.offset, self.kind.description())?;
        let Self { need, have, .. } = *self;
        match self.kind {
            ParseErrorKind::Truncated | ParseErrorKind::BadLength => {
                write!(f, ", {need} bytes needed, {have} found")
            }
            ParseErrorKind::TrailingBytes => write!(f, ", {need} bytes allowed, {have} found"),
            ParseErrorKind::BadVersion => write!(f, ", {need} expected, {have} found"),
            ParseErrorKind::BadChecksum => write!(f, ", 0x{need:x} computed, 0x{have:x} found"),
            ParseErrorKind::UnknownOpcode
            | ParseErrorKind::NotRoce
            | ParseErrorKind::Unsupported
            | ParseErrorKind::ReservedValue => write!(f, " 0x{have:x}"),
        }
    }
}

impl core::error::Error for ParseError {}

/// The error for a buffer that is too small for the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferTooSmall {
    /// Number of bytes needed in total.
    pub need: usize,
    /// Number of bytes in the buffer.
    pub have: usize,
}

impl fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the buffer has {} bytes, {} are needed", self.have, self.need)
    }
}

impl core::error::Error for BufferTooSmall {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn messages_name_layer_place_and_numbers() {
        let error =
            |layer, kind, offset, need, have| ParseError { layer, kind, offset, need, have }.to_string();
        use ParseErrorKind::{BadChecksum, BadLength, BadVersion, NotRoce, TrailingBytes, UnknownOpcode};
        for (found, expected) in [
            (
                ParseError::truncated(Layer::Reth, 12, 16, 3).moved_by(42).to_string(),
                "RETH at byte 54: too short, 16 bytes needed, 3 found",
            ),
            (
                error(Layer::Payload, TrailingBytes, 16, 0, 4),
                "payload at byte 16: too long, 0 bytes allowed, 4 found",
            ),
            (error(Layer::Bth, BadVersion, 1, 0, 3), "BTH at byte 1: wrong version, 0 expected, 3 found"),
            (
                error(Layer::Udp, BadLength, 38, 8, 7),
                "UDP at byte 38: inconsistent length, 8 bytes needed, 7 found",
            ),
            (
                error(Layer::Ipv4, BadChecksum, 24, 0xabcd, 0),
                "IPv4 at byte 24: wrong checksum, 0xabcd computed, 0x0 found",
            ),
            (error(Layer::Bth, UnknownOpcode, 0, 0, 0xc0), "BTH at byte 0: unknown opcode 0xc0"),
            (error(Layer::Ethernet, NotRoce, 12, 0, 0x0806), "Ethernet at byte 12: not RoCE 0x806"),
        ] {
            assert_eq!(found, expected);
        }
        let error = BufferTooSmall { need: 20, have: 19 };
        assert_eq!(error.to_string(), "the buffer has 19 bytes, 20 are needed");
    }
}
