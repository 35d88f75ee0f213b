//! The invariant CRC: its computation, and recovery of the IPv4 Identification from it (IBTA 7.8.1, A17.3).
//!
//! The ICRC is the CRC-32 of Ethernet over eight bytes of ones, the headers starting with IP or GRH, and
//! everything else up to the padding. Every header field that a router may change counts as ones. The four
//! bytes on the wire are the value with its low byte first: `to_le_bytes`.
//!
//! A CRC is linear: each byte contributes to it only by its value and its position. The headers below the BTH
//! are therefore never assembled as bytes. The masked headers with all other fields zero are a constant, and
//! the contribution of every other byte comes from a table. Only the datagram itself is read by the CRC,
//! without a copy.

use crc32fast::Hasher;

use crate::envelope::{Envelope, Layout};
use crate::fields::{Field, Header, Show, bytes};

/// Length of the ICRC on the wire, in bytes.
pub const LEN: usize = 4;

/// Returns the ICRC of a datagram. `head` and `tail` together are BTH to padding, without the ICRC. `head`
/// must contain the whole BTH; otherwise the value is meaningless.
///
/// The length fields of the headers in `envelope` follow from the two slices. Lengths above the limit of IP,
/// 65,535 bytes in total, wrap around.
#[must_use]
#[inline]
pub fn compute(envelope: &Envelope, head: &[u8], tail: &[u8]) -> u32 {
    Seed::new(envelope).compute(envelope.identification, head, tail)
}

/// The contribution of the headers below the BTH to the ICRC, without their lengths and the Identification.
/// It is constant between two ports.
///
/// A sender or receiver of many datagrams on one path can store a seed. Compared with [`compute`], this saves
/// a few nanoseconds per datagram.
///
/// ```
/// use roce_packet::icrc::{Seed, compute};
/// # use roce_packet::{Encapsulation, Envelope, Path};
/// # let path = Path {
/// #     encapsulation: Encapsulation::RoceV2,
/// #     source: [192, 0, 2, 1].into(),
/// #     destination: [192, 0, 2, 2].into(),
/// #     source_port: 0xc000,
/// #     traffic_class: 0,
/// #     hop_limit: 64,
/// #     flow_label: 0,
/// #     vlan: None,
/// # };
/// # let datagram = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 1, 0x1f, 0, 0, 1];
/// let seed = Seed::new(&Envelope::new(&path, 0));
/// for identification in [0, 1, 0xffff] {
///     let expected = compute(&Envelope::new(&path, identification), &datagram, &[]);
///     assert_eq!(seed.compute(identification, &datagram, &[]), expected);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// CRC over the headers with zeros as lengths and Identification.
    state: u32,
    version: Version,
}

impl Seed {
    /// Creates the seed for `envelope`. Ignores its Identification.
    #[inline]
    #[must_use]
    pub fn new(envelope: &Envelope) -> Self {
        match envelope.layout() {
            Layout::Ipv4 { source, destination } => Self {
                state: STATE_OF_IPV4
                    ^ contribution(source.octets(), UDP_LEN + 4)
                    ^ contribution(destination.octets(), UDP_LEN)
                    ^ if envelope.dont_fragment { CONTRIBUTION_OF_DONT_FRAGMENT } else { 0 }
                    ^ ports(envelope),
                version: Version::Ipv4,
            },
            Layout::Ipv6 { source, destination } => Self {
                state: STATE_OF_IPV6
                    ^ contribution(source.octets(), UDP_LEN + 16)
                    ^ contribution(destination.octets(), UDP_LEN)
                    ^ ports(envelope),
                version: Version::Ipv6,
            },
            Layout::Grh { source, destination } => Self {
                state: STATE_OF_GRH
                    ^ contribution(source.octets(), 16)
                    ^ contribution(destination.octets(), 0),
                version: Version::Grh,
            },
        }
    }

    /// Returns the ICRC of a datagram, as [`compute`] does. Only IPv4 uses `identification`.
    #[inline]
    #[must_use]
    pub fn compute(&self, identification: u16, head: &[u8], tail: &[u8]) -> u32 {
        let len = head.len().wrapping_add(tail.len()).wrapping_add(LEN) as u16;
        let udp_len = len.wrapping_add(UDP_LEN as u16);
        let word = |value: u16, behind| contribution(value.to_be_bytes(), behind);
        let changing = match self.version {
            Version::Ipv4 => {
                let total_len = udp_len.wrapping_add(IPV4_LEN as u16);
                word(total_len, UDP_LEN + 16) ^ word(identification, UDP_LEN + 14) ^ word(udp_len, 2)
            }
            Version::Ipv6 => word(udp_len, UDP_LEN + 34) ^ word(udp_len, 2),
            Version::Grh => word(len, 34),
        };
        continue_over_datagram(self.state ^ changing, head, tail)
    }
}

/// The kind of headers of a [`Seed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Ipv4,
    Ipv6,
    Grh,
}

#[inline]
fn ports(envelope: &Envelope) -> u32 {
    contribution(envelope.source_port.to_be_bytes(), 6)
        ^ contribution(envelope.destination_port.to_be_bytes(), 4)
}

/// Returns the contribution of a field to the CRC over the headers, if `behind` bytes of headers follow it.
#[inline]
fn contribution<const N: usize>(field: [u8; N], behind: usize) -> u32 {
    let places = CONTRIBUTIONS.iter().skip(behind);
    field.iter().rev().zip(places).fold(0, |sum, (byte, table)| sum ^ look_up(table, *byte))
}

/// Continues the CRC over the datagram from `state`, the CRC over everything below the BTH.
///
/// The BTH byte that routers may change counts as ones. Instead of changing a copy of the header, this
/// function changes `state` so that the original byte has the effect of ones.
#[inline]
fn continue_over_datagram(state: u32, head: &[u8], tail: &[u8]) -> u32 {
    let variant = head.get(4).map_or(0, |byte| !byte);
    let mut hasher = Hasher::new_with_initial(state ^ look_up(&BEFORE_VARIANT_BYTE, variant));
    hasher.update(head);
    if !tail.is_empty() {
        hasher.update(tail);
    }
    hasher.finalize()
}

/// Returns the IPv4 Identification for which `found` is the correct ICRC of this datagram, if there is one.
///
/// The ICRC covers the Identification, but an ordinary UDP socket does not see the IP header. Because a CRC
/// is linear, the difference from the ICRC for Identification 0 can be computed backwards over the bytes
/// after the field. The result must contain only the field. Random damage passes this test once in 65,536
/// cases instead of once in 2^32, so callers should compare with the likely values first.
///
/// Ignores `envelope.identification`. Returns `None` for IPv6 and RoCE v1, which have no such field. The
/// additional cost over [`compute`] is small and does not depend on the length.
#[must_use]
pub fn recover_identification(envelope: &Envelope, head: &[u8], tail: &[u8], found: u32) -> Option<u16> {
    if !matches!(envelope.layout(), Layout::Ipv4 { .. }) {
        return None;
    }
    let with_zero = compute(&envelope.with_identification(0), head, tail);
    identification_from_difference(with_zero ^ found, head.len().wrapping_add(tail.len()))
}

/// Returns the Identification as [`recover_identification`] does, for a caller that has computed the ICRC for
/// Identification 0. `difference` is that value XOR the one found, and `len` is the length from BTH to
/// padding in bytes.
#[must_use]
pub fn identification_from_difference(difference: u32, len: usize) -> Option<u16> {
    // The two bytes of the field itself, then the rest of the IPv4 header, then UDP.
    let covered = len.wrapping_add(2 + 14 + 8) as u16;
    let [high, low] = covered.to_be_bytes();
    let back = multiply(look_up(&BACK_BY_BYTES, low), look_up(&BACK_BY_256_BYTES, high));
    let left = multiply(back, difference);
    // The first byte on the wire entered the low byte of the register.
    u16::try_from(left).ok().map(u16::swap_bytes)
}

#[inline]
#[allow(clippy::indexing_slicing, reason = "every u8 is an index of an array of 256")]
const fn look_up(table: &[u32; 256], byte: u8) -> u32 {
    table[byte as usize]
}

/// Returns the product of two polynomials modulo that of the CRC. Bit 31 is the coefficient of x^0.
#[inline]
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// Returns the products of `factor` and every byte. The byte represents the eight highest powers.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn products(factor: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = multiply(factor, byte as u32);
        byte += 1;
    }
    table
}

/// Returns the powers 0 to 255 of `base`.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut index = 1;
    while index < table.len() {
        table[index] = multiply(table[index - 1], base);
        index += 1;
    }
    table
}

/// Returns `base` to the power of 2^`doublings`.
const fn squared(mut base: u32, doublings: u32) -> u32 {
    let mut done = 0;
    while done < doublings {
        base = multiply(base, base);
        done += 1;
    }
    base
}

/// Returns the contribution of a byte for each position, counted from the end, and each value.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn contributions() -> [[u32; 256]; PLACES] {
    let forward_by_byte = products(ONE >> 8);
    let mut tables = [forward_by_byte; PLACES];
    let mut place = 1;
    while place < PLACES {
        let mut byte = 0;
        while byte < 256 {
            // One more zero byte follows it.
            let state = tables[place - 1][byte];
            tables[place][byte] = state >> 8 ^ forward_by_byte[(state & 0xff) as usize];
            byte += 1;
        }
        place += 1;
    }
    tables
}

/// Returns the running CRC after eight bytes of ones, which represent a link header, and `headers`.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn state_of<const N: usize>(headers: [u8; N]) -> u32 {
    let forward_by_byte = products(ONE >> 8);
    let mut register = u32::MAX;
    let mut at = 0;
    while at < 8 + N {
        let byte = if at < 8 { 0xff } else { headers[at - 8] };
        register = register >> 8 ^ forward_by_byte[(register as u8 ^ byte) as usize];
        at += 1;
    }
    !register
}

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;

/// CRC of IPv4 and UDP: type of service, time to live and both checksums are ones. Fields that differ between
/// datagrams are zeros.
const STATE_OF_IPV4: u32 = state_of::<{ IPV4_LEN + UDP_LEN }>([
    0x45, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 17, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, // IPv4
    0, 0, 0, 0, 0, 0, 0xff, 0xff, // UDP
]);

/// CRC of IPv6 and UDP: traffic class, flow label, hop limit and the checksum are ones.
const STATE_OF_IPV6: u32 = state_of::<{ IPV6_LEN + UDP_LEN }>([
    0x6f, 0xff, 0xff, 0xff, 0, 0, 17, 0xff, // IPv6
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // source
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // destination
    0, 0, 0, 0, 0, 0, 0xff, 0xff, // UDP
]);

/// CRC of the GRH: traffic class, flow label and hop limit are ones.
const STATE_OF_GRH: u32 = state_of::<IPV6_LEN>([
    0x6f, 0xff, 0xff, 0xff, 0, 0, 0x1b, 0xff, // GRH
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // source
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // destination
]);

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const CONTRIBUTION_OF_DONT_FRAGMENT: u32 = contributions()[UDP_LEN + 13][0x40];

/// Largest number of bytes from a variable field, inclusive, to the end of the headers: from the length of
/// IPv6 on.
const PLACES: usize = UDP_LEN + 36;

/// The table of [`contributions`]. Packets of one path always use the same few cache lines of it.
static CONTRIBUTIONS: [[u32; 256]; PLACES] = contributions();

/// The CRC-32 polynomial, low bit last.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 0x8000_0000;
/// The polynomial whose product with x is 1: one bit backwards.
const BACK_BY_BIT: u32 = (ONE ^ POLYNOMIAL) << 1 | 1;
/// Value to add to the state before a message, by the value to add to the fifth byte of that message.
static BEFORE_VARIANT_BYTE: [u32; 256] = products(squared(BACK_BY_BIT, 5));
/// Factors for 0 to 255 bytes backwards.
static BACK_BY_BYTES: [u32; 256] = powers(squared(BACK_BY_BIT, 3));
/// Factors for 0 to 255 times 256 bytes backwards.
static BACK_BY_256_BYTES: [u32; 256] = powers(squared(BACK_BY_BIT, 11));

/// The field of the ICRC.
pub static ICRC: Header = Header {
    name: "ICRC",
    title: "invariant CRC",
    purpose: "Protects every field that does not change between the two ends.",
    rule: "IBTA 7.8.1, A17.3",
    fields: &[Field::new("ICRC", "infiniband.invariant.crc", bytes(0, 4), Show::Hex)
        .means("CRC-32 of the masked packet, here in the byte order of the wire: lowest byte first.")],
};

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::bth::Bth;
    use crate::path::Encapsulation;

    /// Complete Ethernet frames without a VLAN tag, and their origin.
    const FRAMES: [(&str, &str); 6] = [
        (
            "congestion notification of a ConnectX-4 Lx, from the test data of scapy",
            "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b700280000\
             8100ffff40000118000000000000000000000000000000000000000082fd002a",
        ),
        (
            "READ request of a ConnectX-5, from a trace in wantonsolutions/warm",
            "ec0d9a6821ccec0d9a6821a008004502003c76cb400040114075c0a80111c0a8010dc39a12b700280000\
             0c40ffff00004fae80000c75000055d405f7d50000052b0a00000400d68a67ee",
        ),
        (
            "COMPARE SWAP of a ConnectX-5, from a trace in wantonsolutions/warm",
            "ec0d9a6821ccec0d9a6821a008004502004876ca40004011406ac0a80111c0a8010dc39a12b700340000\
             1340ffff00004fae80000c74000055d405f7b50000052b0a00008f4950080800000000000000080002675495",
        ),
        (
            "RoCE v1 ACK of a Mellanox NIC, from the test data of scapy",
            "7cfe90753cd87cfe90753cd889156020000000141b4000000000000000000000ffff0f00000200000000\
             000000000000ffff0f0000021140ffff0000010900a788c00000000525f0c038",
        ),
        (
            "UC SEND Only with two bytes of padding and a real UDP checksum, written by scapy",
            "248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007c00012b7002caca2\
             2460ffff000000d300cf17104630818be28935d90e9a95505401be885e50000078f353f3",
        ),
        (
            "ACK of a ConnectX, its VLAN tag taken out, from the test data of scapy",
            "0000000000000000000000000800450200309d4e4000401119e4c0aa0102c0aa0132fa4f12b7001c0000\
             1140ffff00deaded00cf7bf70000000259caeaf7",
        ),
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().map(|byte| (byte as char).to_digit(16).unwrap() as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// Parses the few fields by hand, so that this test depends only on the code above.
    fn split(frame: &[u8]) -> (Envelope, &[u8], u32) {
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let v1 = word(12) == 0x8915;
        let address = |at: usize| -> IpAddr {
            if v1 {
                let octets: [u8; 16] = frame[at..at + 16].try_into().unwrap();
                IpAddr::V6(Ipv6Addr::from(octets))
            } else {
                let octets: [u8; 4] = frame[at..at + 4].try_into().unwrap();
                IpAddr::V4(Ipv4Addr::from(octets))
            }
        };
        let envelope = Envelope {
            encapsulation: if v1 { Encapsulation::RoceV1 } else { Encapsulation::RoceV2 },
            source: address(if v1 { 22 } else { 26 }),
            destination: address(if v1 { 38 } else { 30 }),
            source_port: word(34),
            destination_port: word(36),
            identification: word(18),
            dont_fragment: word(20) == 0x4000,
        };
        let (covered, found) = frame[if v1 { 54 } else { 42 }..].split_last_chunk().unwrap();
        (envelope, covered, u32::from_le_bytes(*found))
    }

    #[test]
    fn frames_of_hardware_and_of_others_agree() {
        for (origin, hex) in FRAMES {
            let frame = bytes(hex);
            let (envelope, covered, found) = split(&frame);
            assert_eq!(compute(&envelope, covered, &[]), found, "{origin}");
            for cut in Bth::LEN..=covered.len() {
                let (head, tail) = covered.split_at(cut);
                assert_eq!(compute(&envelope, head, tail), found, "{origin}, cut at {cut}");
            }
        }
    }

    #[test]
    fn identification_of_real_frames_is_recovered() {
        for (origin, hex) in FRAMES {
            let frame = bytes(hex);
            let (envelope, covered, found) = split(&frame);
            let expected =
                (envelope.encapsulation == Encapsulation::RoceV2).then_some(envelope.identification);
            assert_eq!(recover_identification(&envelope, covered, &[], found), expected, "{origin}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_for_every_length_and_identification() {
        for (origin, hex) in FRAMES {
            let frame = bytes(hex);
            let (envelope, covered, found) = split(&frame);
            let seed = Seed::new(&envelope);
            assert_eq!(seed.compute(envelope.identification, covered, &[]), found, "{origin}");
        }
    }

    #[test]
    fn corrupted_bytes_are_no_identification() {
        // The effect of a single wrong byte on the ICRC looks like another Identification about once in
        // 65,536 cases.
        let (envelope, covered, found) = split_owned(FRAMES[1].1);
        let mut taken = 0;
        for offset in 0..covered.len() {
            for change in 1..=u8::MAX {
                let mut damaged = covered.clone();
                damaged[offset] ^= change;
                let recovered = recover_identification(&envelope, &damaged, &[], found);
                taken += u32::from(offset != 4 && recovered.is_some());
            }
        }
        assert!(taken < 3, "{taken} of {} damaged datagrams", covered.len() * 255);
    }

    fn split_owned(hex: &str) -> (Envelope, Vec<u8>, u32) {
        let frame = bytes(hex);
        let (envelope, covered, found) = split(&frame);
        (envelope, covered.to_vec(), found)
    }

    /// Computes the ICRC one bit at a time over a masked copy, as in the specification.
    fn by_the_book(envelope: &Envelope, datagram: &[u8]) -> u32 {
        let mut input = std::vec![0xff; 8];
        let len = datagram.len() + LEN;
        let word = |value: usize| (value as u16).to_be_bytes();
        let v2 = envelope.encapsulation == Encapsulation::RoceV2;
        match (envelope.source, envelope.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) if v2 => {
                input.extend([0x45, 0xff]);
                input.extend(word(len + 28));
                input.extend(envelope.identification.to_be_bytes());
                input.extend([if envelope.dont_fragment { 0x40 } else { 0 }, 0, 0xff, 17, 0xff, 0xff]);
                input.extend(source.octets());
                input.extend(destination.octets());
            }
            (source, destination) => {
                input.extend([0x6f, 0xff, 0xff, 0xff]);
                input.extend(word(if v2 { len + 8 } else { len }));
                input.extend([if v2 { 17 } else { 0x1b }, 0xff]);
                for address in [source, destination] {
                    match address {
                        IpAddr::V4(address) => input.extend(address.to_ipv6_mapped().octets()),
                        IpAddr::V6(address) => input.extend(address.octets()),
                    }
                }
            }
        }
        if v2 {
            input.extend(envelope.source_port.to_be_bytes());
            input.extend(envelope.destination_port.to_be_bytes());
            input.extend(word(len + 8));
            input.extend([0xff, 0xff]);
        }
        let bth = input.len();
        input.extend(datagram);
        input[bth + 4] = 0xff;
        !input.iter().fold(u32::MAX, |register, byte| {
            (0..8).fold(register ^ u32::from(*byte), |register, _| {
                register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 }
            })
        })
    }

    fn any_envelope() -> impl Strategy<Value = Envelope> {
        let v1 = any::<bool>().prop_map(|v1| if v1 { Encapsulation::RoceV1 } else { Encapsulation::RoceV2 });
        let v4 = any::<(Ipv4Addr, Ipv4Addr)>().prop_map(|(a, b)| (IpAddr::V4(a), IpAddr::V4(b)));
        let v6 = any::<(Ipv6Addr, Ipv6Addr)>().prop_map(|(a, b)| (IpAddr::V6(a), IpAddr::V6(b)));
        let addresses = prop_oneof![v4, v6, any::<(IpAddr, IpAddr)>()];
        (v1, addresses, any::<(u16, u16, u16, bool)>()).prop_map(
            |(
                encapsulation,
                (source, destination),
                (source_port, destination_port, identification, dont_fragment),
            )| {
                Envelope {
                    encapsulation,
                    source,
                    destination,
                    source_port,
                    destination_port,
                    identification,
                    dont_fragment,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn is_what_the_book_says(
            envelope in any_envelope(),
            datagram in proptest::collection::vec(any::<u8>(), Bth::LEN..600),
            cut in any::<proptest::sample::Index>(),
        ) {
            let expected = by_the_book(&envelope, &datagram);
            prop_assert_eq!(compute(&envelope, &datagram, &[]), expected);
            let (head, tail) = datagram.split_at(Bth::LEN + cut.index(datagram.len() - Bth::LEN + 1));
            prop_assert_eq!(compute(&envelope, head, tail), expected);
            let seed = Seed::new(&envelope);
            prop_assert_eq!(seed.compute(envelope.identification, &datagram, &[]), expected);
            prop_assert_eq!(seed.compute(envelope.identification, head, tail), expected);
        }

        #[test]
        fn ignores_what_routers_change(
            envelope in any_envelope(),
            datagram in proptest::collection::vec(any::<u8>(), Bth::LEN..100),
            changed: u8,
        ) {
            let mut other = datagram.clone();
            other[4] = changed;
            prop_assert_eq!(compute(&envelope, &datagram, &[]), compute(&envelope, &other, &[]));
        }

        #[test]
        fn identification_is_recovered_at_every_length(
            envelope in any_envelope(),
            datagram in proptest::collection::vec(any::<u8>(), Bth::LEN..4200),
            start: u16,
        ) {
            let found = compute(&envelope, &datagram, &[]);
            let asked = envelope.with_identification(start);
            let ipv4 = matches!(envelope.layout(), Layout::Ipv4 { .. });
            let expected = ipv4.then_some(envelope.identification);
            prop_assert_eq!(recover_identification(&asked, &datagram, &[], found), expected);
            let (head, tail) = datagram.split_at(Bth::LEN);
            prop_assert_eq!(recover_identification(&asked, head, tail, found), expected);
        }
    }

    #[test]
    fn lengths_up_to_the_limit() {
        let envelope = split_owned(FRAMES[1].1).0;
        let seed = Seed::new(&envelope);
        let bytes = std::vec![0x5a; 65_535];
        for len in (Bth::LEN..bytes.len() - 28 - LEN).step_by(4_001).chain([65_503]) {
            let found = compute(&envelope, &bytes[..len], &[]);
            assert_eq!(found, by_the_book(&envelope, &bytes[..len]), "{len}");
            assert_eq!(found, seed.compute(envelope.identification, &bytes[..len], &[]), "{len}");
            let recovered = recover_identification(&envelope, &bytes[..len], &[], found);
            assert_eq!(recovered, Some(envelope.identification), "{len}");
        }
    }

    #[test]
    fn less_than_a_header_does_not_panic() {
        let envelope = split_owned(FRAMES[1].1).0;
        for len in 0..Bth::LEN {
            let head = &[0x5a; Bth::LEN][..len];
            assert_eq!(compute(&envelope, head, &[1]), Seed::new(&envelope).compute(0x76cb, head, &[1]));
            let _ = recover_identification(&envelope, head, &[1], 0);
        }
    }
}
