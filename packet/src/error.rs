//! Errors of parsers: each names the layer, the offset and the numbers.

use core::fmt;

/// The part of a frame that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the names of the headers")]
pub enum Layer {
    Ethernet,
    Vlan,
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
    /// What lies between the headers and the ICRC, its padding included.
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
    /// The name as specifications write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN tag",
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

/// What is wrong. The two numbers of the [`ParseError`] mean what the variant says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Fewer bytes than the layer takes; `need` and `have` count bytes.
    Truncated,
    /// More bytes than the layer may have; `need` and `have` count bytes.
    TrailingBytes,
    /// A version field other than the only one defined; `need` is that one, `have` the one found.
    BadVersion,
    /// A length field, or the length of the whole, contradicts the rest. `need` and `have` count bytes.
    BadLength,
    /// A header checksum does not match; `need` is the computed one, `have` the one found.
    BadChecksum,
    /// No operation has this opcode; `have` is the opcode.
    UnknownOpcode,
    /// Not a RoCE frame, but something else on the same wire; `have` is the field that says so.
    NotRoce,
    /// Legal but not handled here, for example a fragment; `have` is the field that says so.
    Unsupported,
    /// A value that the specification reserves where it matters; `have` is the value.
    ReservedValue,
}

impl ParseErrorKind {
    /// A short description.
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

/// Bytes that do not form what they should: which layer, at which byte, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParseError {
    /// The layer that refused.
    pub layer: Layer,
    /// What it refused.
    pub kind: ParseErrorKind,
    /// Where, in bytes from the start of what the caller handed to the parser.
    pub offset: usize,
    /// What would have been right; see [`ParseErrorKind`].
    pub need: usize,
    /// What was found; see [`ParseErrorKind`].
    pub have: usize,
}

impl ParseError {
    /// The layer begins at `offset` and takes `need` bytes, and only `have` are left there.
    #[inline]
    #[must_use]
    pub const fn truncated(layer: Layer, offset: usize, need: usize, have: usize) -> Self {
        Self { layer, kind: ParseErrorKind::Truncated, offset, need, have }
    }

    /// The same error as seen from `bytes` earlier: for a caller that handed on a part of its input.
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

/// The caller's buffer cannot take what is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferTooSmall {
    /// Bytes needed in all.
    pub need: usize,
    /// Bytes the buffer has.
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
