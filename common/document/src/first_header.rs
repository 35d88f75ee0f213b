//! The first header of bytes that were given without a file.

use roce_analysis::walk::{Framed, Walk};
use roce_packet::Opcode;

/// The header that a packet starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstHeader {
    /// The Ethernet header.
    Eth,
    /// The IPv4 or IPv6 header, or the GRH of RoCE v1.
    Ip,
    /// The base transport header.
    Bth,
}

impl FirstHeader {
    /// Returns what such bytes are, in words.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Eth => "an Ethernet frame",
            Self::Ip => "a packet that starts with its IP header",
            Self::Bth => "a packet that starts with its BTH",
        }
    }

    /// Returns the frame of bytes that begin with this header, or `None` for a datagram.
    #[must_use]
    pub const fn framed(self, bytes: &[u8]) -> Option<Framed<'_>> {
        match self {
            Self::Eth => Some(Framed::ethernet(bytes)),
            Self::Ip => Some(Framed::ip(bytes)),
            Self::Bth => None,
        }
    }

    /// Decodes the headers of bytes that begin with this header. `port` is the UDP port of RoCE v2.
    #[must_use]
    pub fn walk(self, bytes: &[u8], port: u16) -> Walk<'_> {
        match self.framed(bytes) {
            Some(framed) => Walk::new(framed, port),
            None => Walk::datagram(bytes),
        }
    }

    /// Returns the name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eth => "eth",
            Self::Ip => "ip",
            Self::Bth => "bth",
        }
    }

    /// Guesses the first header. A length field that matches the number of bytes is the strongest evidence,
    /// followed by a known EtherType.
    #[must_use]
    pub fn guess(bytes: &[u8]) -> Self {
        let word = |at: usize| match bytes.get(at..at + 2) {
            Some(&[high, low]) => usize::from(high) << 8 | usize::from(low),
            _ => 0,
        };
        let first = bytes.first().copied().unwrap_or(0);
        let is_ip = match first >> 4 {
            4 => first == 0x45 && word(2) == bytes.len(),
            6 => word(4) + 40 == bytes.len(),
            _ => false,
        };
        if is_ip {
            return Self::Ip;
        }
        if matches!(word(12), 0x0800 | 0x86dd | 0x8915 | 0x8100 | 0x8808 | 0x0806 | 0x88a8 | 0x88cc) {
            return Self::Eth;
        }
        // IPv4 without options, followed by UDP; the length may differ.
        if first == 0x45 && bytes.get(9) == Some(&17) {
            return Self::Ip;
        }
        let is_version_0 = bytes.get(1).is_some_and(|flags| flags & 0x0f == 0);
        let is_whole_words = bytes.len().is_multiple_of(4);
        if Opcode(first).info().is_some() && is_version_0 && is_whole_words { Self::Bth } else { Self::Eth }
    }
}

/// Returns the frame of bytes whose first header is guessed, or `None` if that is a BTH.
#[must_use]
pub fn framed(bytes: &[u8]) -> Option<Framed<'_>> {
    FirstHeader::guess(bytes).framed(bytes)
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    /// An RDMA WRITE of "hello, world!".
    const FRAME: [u8; 90] = hex!(
        "02000000000202000000000108004502004c000040004011269d0a0000010a000002c16912b7003800000a70ff"
        "ff0000001280005eed00007f00deadb000000012340000000d68656c6c6f2c20776f726c6421000000b74f5e4b"
    );

    #[test]
    fn the_start_of_a_packet_is_guessed() {
        let frame = FRAME;
        assert_eq!(FirstHeader::guess(&frame), FirstHeader::Eth);
        assert_eq!(FirstHeader::guess(&frame[14..]), FirstHeader::Ip);
        assert_eq!(FirstHeader::guess(&frame[42..]), FirstHeader::Bth);
        // The length fields of truncated packets do not match.
        assert_eq!(FirstHeader::guess(&frame[14..60]), FirstHeader::Ip);
        assert_eq!(FirstHeader::guess(&frame[..30]), FirstHeader::Eth);
        assert_eq!(FirstHeader::guess(&[]), FirstHeader::Eth);
        assert_eq!(FirstHeader::guess(&[0x45]), FirstHeader::Eth);
    }
}
