//! The protocol of datagram rsockets: the header in front of each datagram, and the UDP messages with which
//! an end learns the queue pair of another end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The tag of a message over UDP.
const TAG: [u8; 4] = [0x55; 4];
/// A datagram over UDP, because its sender does not know the queue pair of the receiver yet.
const DATA: u8 = 0;
/// An answer that contains the queue pair of its sender.
const CONTROL: u8 = 7;

/// Maximum length of the header of a datagram.
pub(super) const LONGEST_HEADER: usize = 24;

/// Returns the header in front of a datagram, which contains the sender's address.
pub(super) fn header(from: SocketAddr) -> ([u8; LONGEST_HEADER], usize) {
    let mut bytes = [0; LONGEST_HEADER];
    bytes[2..4].copy_from_slice(&from.port().to_be_bytes());
    let len = match from.ip() {
        IpAddr::V4(address) => {
            bytes[4..8].copy_from_slice(&address.octets());
            8
        }
        IpAddr::V6(address) => {
            // The four bytes of the flow are zero.
            bytes[8..24].copy_from_slice(&address.octets());
            24
        }
    };
    (bytes[0], bytes[1]) = (version(from), len);
    (bytes, len.into())
}

fn version(address: SocketAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

/// Returns the sender of a datagram and the length of its header; `None` if the header is invalid.
pub(super) fn parse_header(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let (version, len, port) = (*bytes.first()?, *bytes.get(1)?, bytes.get(2..4)?);
    let address = match (version, len) {
        (4, 8) => ipv4(bytes.get(4..8)?)?,
        (6, 24) => ipv6(bytes.get(8..24)?)?,
        _ => return None,
    };
    Some((SocketAddr::new(address, u16::from_be_bytes([port[0], port[1]])), len.into()))
}

fn ipv4(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).ok().map(|octets| Ipv4Addr::from(octets).into())
}

fn ipv6(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// A message over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// The queue pair of the sender.
    pub(super) qpn: u32,
    /// A datagram, which the receiver answers; `None` in an answer.
    pub(super) data: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// Returns the bytes of a message from this address.
    pub(super) fn emit(&self, from: SocketAddr) -> Vec<u8> {
        let len = if from.is_ipv4() { 16 } else { 28 };
        let mut bytes = Vec::with_capacity(len + self.data.map_or(0, <[u8]>::len));
        bytes.extend(TAG);
        let op = if self.data.is_some() { DATA } else { CONTROL };
        bytes.extend([version(from), op, len as u8, 0]);
        bytes.extend(self.qpn.to_be_bytes());
        match from.ip() {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
        bytes.extend(self.data.unwrap_or_default());
        bytes
    }

    /// Parses a message from an address of this family; returns `None` for anything else.
    pub(super) fn parse(bytes: &'a [u8], from: SocketAddr) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let len = if from.is_ipv4() { 16 } else { 28 };
        let is_message = head[..4] == TAG && head[4] == version(from) && usize::from(head[6]) == len;
        let data = rest.get(len - head.len()..).filter(|_| is_message)?;
        let qpn = u32::from_be_bytes([0, head[9], head[10], head[11]]);
        let data = match head[5] {
            DATA => Some(data),
            CONTROL => None,
            _ => return None,
        };
        Some(Self { qpn, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_the_sender() {
        for (text, len) in [("198.18.0.1:7174", 8), ("[2001:db8::1]:7174", 24)] {
            let from: SocketAddr = text.parse().unwrap();
            let (bytes, found) = header(from);
            assert_eq!((found, parse_header(&bytes[..len])), (len, Some((from, len))));
            assert_eq!(parse_header(&bytes[..len - 1]), None);
        }
        assert_eq!(header("198.18.0.1:7174".parse().unwrap()).0[..8], [4, 8, 0x1c, 6, 198, 18, 0, 1]);
        assert_eq!(parse_header(&[4, 24, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_message_tells_the_queue_pair() {
        let from: SocketAddr = "198.18.0.1:7174".parse().unwrap();
        let message = Message { qpn: 0x0012_3456, data: Some(b"abc") };
        let bytes = message.emit(from);
        let expected =
            [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 198, 18, 0, 1, b'a', b'b', b'c'];
        assert_eq!(bytes, expected);
        assert_eq!(Message::parse(&bytes, from), Some(message));
        assert_eq!(Message::parse(&bytes[..15], from), None);
        let six: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
        assert_eq!(Message::parse(&bytes, six), None);
        let answer = Message { qpn: 7, data: None };
        assert_eq!(Message::parse(&answer.emit(six), six), Some(answer));
    }
}
