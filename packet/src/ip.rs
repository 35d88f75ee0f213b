//! Parts that the headers of both versions of IP share.

use core::fmt;

use crate::path::Ecn;

pub(crate) const DSCP: &str =
    "Traffic class, 0 to 63, by which switches choose a queue; routers may change it.";
pub(crate) const ECN: &str = "Congestion mark: RoCE sends 10 or 01, a congested switch sets 11.";
pub(crate) const TTL: &str = "Number of routers that may still forward the packet; each subtracts one.";
pub(crate) const FLOW_LABEL: &str = "20 bits by which switches may keep the packets of a flow on one path.";

pub(crate) fn dscp_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    match (value / 8, value % 8) {
        (0, 0) => out.write_str("best effort"),
        (5, 6) => out.write_str("EF"),
        (class, 0) => write!(out, "CS{class}"),
        (class @ 1..=4, drop @ (2 | 4 | 6)) => write!(out, "AF{class}{}", drop / 2),
        _ => Ok(()),
    }
}

pub(crate) fn ecn_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match Ecn::from_bits(value as u8) {
        Ecn::NotCapable => "00, not ECN-capable",
        Ecn::Capable0 => "10, ECN-capable: ECT(0)",
        Ecn::Capable1 => "01, ECN-capable: ECT(1)",
        Ecn::CongestionExperienced => "11, congestion experienced: CE",
    })
}

/// Returns the first word of IPv6 and GRH: version 6, traffic class and flow label.
pub(crate) const fn first_word(traffic_class: u8, flow_label: u32) -> u32 {
    6 << 28 | (traffic_class as u32) << 20 | flow_label & 0x000f_ffff
}

/// Adds `bytes` to a sum of 16-bit words (RFC 1071). A last odd byte counts as the upper half of a word.
///
/// The sum of the longest packet, 32 Ki words, does not use the upper bit of the accumulator. Sums of longer
/// inputs, which are not packets, wrap around.
pub(crate) fn ones_complement_sum(sum: u32, bytes: &[u8]) -> u32 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u16::from_be_bytes(*word).into()));
    odd.iter().fold(sum, |sum, byte| sum.wrapping_add(u32::from(*byte) << 8))
}

/// Folds the carries of a sum back into 16 bits.
pub(crate) const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}
