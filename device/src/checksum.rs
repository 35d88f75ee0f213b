//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

/// Returns the one's complement sum of `bytes` as 16-bit words, not inverted. An odd last byte is the upper
/// half of a word. `start` is the sum of the preceding bytes.
pub(crate) fn sum(start: u16, bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks_exact(2);
    let last = pairs.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    let words = pairs.map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = u64::from(start) + words.sum::<u64>() + last;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the pseudo-header sum of UDP and TCP, not inverted (RFC 768, RFC 9293, RFC 8200 section 8.1).
pub(crate) fn pseudo_header_sum(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let start = sum(u16::from(protocol), &len.to_be_bytes());
    [source, destination].into_iter().fold(start, |start, address| match address {
        IpAddr::V4(address) => sum(start, &address.octets()),
        IpAddr::V6(address) => sum(start, &address.octets()),
    })
}
