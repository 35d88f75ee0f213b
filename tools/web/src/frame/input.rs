//! The bytes of a frame, and the header that they begin with.

use roce_analysis::walk::{Framed, Part, Walk};
use roce_capture::LinkType;
use roce_document::bytes;
use roce_document::first_header::FirstHeader;
use roce_packet::fields::UDP;
use roce_packet::{ROCE_UDP_PORT, UdpHeader};

/// Largest number of bytes: the longest IP packet behind an Ethernet header and a VLAN tag.
const LONGEST: usize = 65_535 + 18;
/// Largest number of characters of the text, enough for a dump of the longest frame.
const LONGEST_TEXT: usize = 1 << 20;

/// The header at the start of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Ethernet,
    Ip,
    Udp,
    Bth,
}

impl Start {
    /// Returns the name of the header as an input of the page, with "eth" as the command calls Ethernet.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "eth",
            Self::Ip => "ip",
            Self::Udp => "udp",
            Self::Bth => "bth",
        }
    }

    /// Returns the header in the words of the command. The command does not know packets that begin with UDP,
    /// and takes them without this header.
    pub(super) const fn first_header(self) -> FirstHeader {
        match self {
            Self::Ethernet => FirstHeader::Eth,
            Self::Ip => FirstHeader::Ip,
            Self::Udp | Self::Bth => FirstHeader::Bth,
        }
    }

    /// Returns the link type of a capture with such packets, if one exists.
    pub(super) const fn link_type(self) -> Option<LinkType> {
        match self {
            Self::Ethernet => Some(LinkType::ETHERNET),
            Self::Ip => Some(LinkType::RAW_IP),
            Self::Udp | Self::Bth => None,
        }
    }
}

/// The bytes of a frame.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) bytes: Vec<u8>,
    pub(super) start: Start,
}

impl Input {
    /// Reads hexadecimal digits, as `roce explain` does. `from` names the first header.
    pub(super) fn parse(hex: &str, from: &str) -> Result<Self, String> {
        if hex.len() > LONGEST_TEXT {
            return Err(format!("the text has {} characters; paste one frame only", hex.len()));
        }
        let bytes = bytes::parse(hex).map_err(|error| error.to_string())?;
        if bytes.len() > LONGEST {
            return Err(format!(
                "the frame has {} bytes, and the longest one has {LONGEST}; paste one frame only",
                bytes.len()
            ));
        }
        let start = match from {
            "auto" | "" => match FirstHeader::guess(&bytes) {
                FirstHeader::Ip => Start::Ip,
                FirstHeader::Bth => Start::Bth,
                FirstHeader::Eth => Start::Ethernet,
            },
            "eth" | "ethernet" => Start::Ethernet,
            "ip" => Start::Ip,
            "udp" => Start::Udp,
            "bth" => Start::Bth,
            other => {
                return Err(format!("`{other}` is not a first header; write auto, ethernet, ip, udp or bth"));
            }
        };
        Ok(Self { bytes, start })
    }

    /// Decodes the headers.
    pub(super) fn walk(&self) -> Walk<'_> {
        walk(&self.bytes, self.start)
    }
}

/// Decodes the headers of bytes that begin with this header.
pub(super) fn walk(bytes: &[u8], start: Start) -> Walk<'_> {
    match start {
        Start::Ethernet => Walk::new(Framed::ethernet(bytes), ROCE_UDP_PORT),
        Start::Ip => Walk::new(Framed::ip(bytes), ROCE_UDP_PORT),
        Start::Bth => Walk::datagram(bytes),
        Start::Udp => behind_udp(bytes),
    }
}

/// Decodes a datagram that a UDP header precedes. Without addresses, the ICRC cannot be checked.
fn behind_udp(bytes: &[u8]) -> Walk<'_> {
    let mut walk = Walk::datagram(bytes.get(UdpHeader::LEN..).unwrap_or_default());
    walk.bytes = bytes;
    walk.error = walk.error.map(|error| error.moved_by(UdpHeader::LEN));
    for part in &mut walk.parts {
        part.start += UdpHeader::LEN;
    }
    let len = bytes.len().min(UdpHeader::LEN);
    walk.parts.insert(0, Part { header: &UDP, start: 0, len, is_outer: false });
    walk
}

/// Returns bytes as hexadecimal digits without separators.
pub(super) fn hex(bytes: &[u8]) -> String {
    roce_document::fields::hex(bytes)
}
