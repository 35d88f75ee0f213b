//! Packets with one mistake in their ICRC each, computed one bit at a time, and the mistakes that are named.

use std::collections::BTreeSet;
use std::net::IpAddr;

use roce_analysis::icrc::{Certainty, Detail, Hints, Mistake, Tally, Unchecked, Verdict, Wrong, examine};
use roce_packet::outer::{Cut, Link, Outer};

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Ipv4,
    Ipv6,
    Grh,
}

/// The bytes of a packet without its ICRC.
#[derive(Clone, Debug)]
struct Parts {
    version: Version,
    ethernet: Vec<u8>,
    ip: Vec<u8>,
    udp: Vec<u8>,
    /// BTH to padding.
    bth: Vec<u8>,
    pad_len: usize,
    trailer: Vec<u8>,
}

const ONES: [u8; 8] = [0xff; 8];
const ETHERNET: u32 = 0xedb8_8320;
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// The register of a CRC after `bytes`, one bit at a time.
fn register(polynomial: u32, initial: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(initial, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            register >> 1 ^ if register & 1 == 1 { polynomial } else { 0 }
        })
    })
}

fn crc(bytes: &[u8]) -> u32 {
    !register(ETHERNET, u32::MAX, bytes)
}

/// A CRC that takes the highest bit of each byte first.
fn crc_high_bit_first(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte) << 24, |register, _| {
            register << 1 ^ if register >> 31 == 1 { 0x04c1_1db7 } else { 0 }
        })
    })
}

impl Parts {
    /// Builds a SEND; `payload_len` decides the padding.
    fn new(version: Version, payload_len: usize, has_tag: bool) -> Self {
        let pad_len = payload_len.wrapping_neg() % 4;
        let mut bth =
            vec![0x04, 0x40 | (pad_len as u8) << 4, 0xff, 0xff, 0x40, 0, 0x12, 0x34, 0x80, 0, 0x5e, 0xed];
        bth.extend((0..payload_len).map(|index| (index * 7 + 3) as u8));
        bth.extend((0..pad_len).map(|index| 0xa1 + index as u8));
        let len = bth.len() + 4;
        let word = |value: usize| (value as u16).to_be_bytes();
        let mut ethernet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if has_tag {
            ethernet.extend([0x81, 0, 0x60, 7]);
        }
        ethernet.extend(match version {
            Version::Ipv4 => [0x08, 0x00],
            Version::Ipv6 => [0x86, 0xdd],
            Version::Grh => [0x89, 0x15],
        });
        let mut udp = Vec::new();
        if version != Version::Grh {
            udp.extend([0xc1, 0x69, 0x12, 0xb7]);
            udp.extend(word(len + 8));
            udp.extend([0x3c, 0x7a]);
        }
        let mut ip = Vec::new();
        if version == Version::Ipv4 {
            ip.extend([0x45, 0x6a]);
            ip.extend(word(len + 28));
            ip.extend([0x12, 0x34, 0x40, 0, 63, 17, 0, 0, 10, 1, 2, 3, 10, 4, 5, 6]);
            let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip.extend([0x66, 0xa5, 0x43, 0x21]);
            ip.extend(word(len + udp.len()));
            ip.extend([if version == Version::Grh { 0x1b } else { 17 }, 63]);
            for last in [1, 2] {
                ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 7, last]);
            }
        }
        Self { version, ethernet, ip, udp, bth, pad_len, trailer: vec![0; 7] }
    }

    /// The masked fields: mistake, part (IP, UDP, BTH), offset and bits of a byte.
    fn masks(&self) -> Vec<(Mistake, usize, usize, u8)> {
        let mut masks = match self.version {
            Version::Ipv4 => vec![
                (Mistake::TrafficClassNotMasked, 0, 1, 0xff),
                (Mistake::TtlNotMasked, 0, 8, 0xff),
                (Mistake::HeaderChecksumNotMasked, 0, 10, 0xff),
                (Mistake::HeaderChecksumNotMasked, 0, 11, 0xff),
            ],
            _ => vec![
                (Mistake::TrafficClassNotMasked, 0, 0, 0x0f),
                (Mistake::TrafficClassNotMasked, 0, 1, 0xf0),
                (Mistake::FlowLabelNotMasked, 0, 1, 0x0f),
                (Mistake::FlowLabelNotMasked, 0, 2, 0xff),
                (Mistake::FlowLabelNotMasked, 0, 3, 0xff),
                (Mistake::HopLimitNotMasked, 0, 7, 0xff),
            ],
        };
        if self.version != Version::Grh {
            masks.extend([6, 7].map(|at| (Mistake::UdpChecksumNotMasked, 1, at, 0xff)));
        }
        masks.push((Mistake::CongestionByteNotMasked, 2, 4, 0xff));
        masks
    }

    fn maskable(&self) -> BTreeSet<Mistake> {
        self.masks().into_iter().map(|(mistake, ..)| mistake).collect()
    }

    /// The parts with all masked fields as ones, except these.
    fn masked_except(&self, except: &[Mistake]) -> Self {
        let mut parts = self.clone();
        for (mistake, part, at, bits) in self.masks() {
            if !except.contains(&mistake) {
                [&mut parts.ip, &mut parts.udp, &mut parts.bth][part][at] |= bits;
            }
        }
        parts
    }

    fn masked(&self) -> Self {
        self.masked_except(&[])
    }

    fn headers(&self) -> Vec<u8> {
        [&self.ip[..], &self.udp, &self.bth].concat()
    }

    /// The bytes that the ICRC covers.
    fn input(&self) -> Vec<u8> {
        [&ONES[..], &self.headers()].concat()
    }

    fn frame(&self, icrc: u32) -> Vec<u8> {
        let mut frame = [&self.ethernet[..], &self.headers()].concat();
        frame.extend(icrc.to_le_bytes());
        frame.extend(&self.trailer);
        frame
    }

    /// The masked parts after a change of the others.
    fn changed(&self, change: impl Fn(&mut Self)) -> u32 {
        let mut parts = self.clone();
        change(&mut parts);
        crc(&parts.masked().input())
    }
}

fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn examine_frame(frame: &[u8]) -> Verdict {
    examine(&Outer::decode(frame, Link::Ethernet, frame.len(), 4791), &Hints::default())
}

#[track_caller]
fn wrong(frame: &[u8]) -> Wrong {
    match examine_frame(frame) {
        Verdict::Wrong(wrong) => wrong,
        other => panic!("{other:?}"),
    }
}

type Case = (Vec<Mistake>, u32);

/// Combinations of fields that are not masked.
fn mask_cases(parts: &Parts) -> Vec<Case> {
    let fields: Vec<Mistake> = parts.maskable().into_iter().collect();
    let mut cases = Vec::new();
    for (index, first) in fields.iter().enumerate() {
        cases.push((vec![*first], crc(&parts.masked_except(&[*first]).input())));
        for second in &fields[index + 1..] {
            let both = vec![*first, *second];
            let value = crc(&parts.masked_except(&both).input());
            cases.push((both, value));
        }
    }
    cases.push((vec![Mistake::NothingMasked], crc(&parts.input())));
    let mut zeros = parts.clone();
    for (_, part, at, bits) in parts.masks() {
        [&mut zeros.ip, &mut zeros.udp, &mut zeros.bth][part][at] &= !bits;
    }
    cases.push((vec![Mistake::MaskedWithZeros], crc(&zeros.input())));
    cases
}

/// Mistakes in the CRC, and bytes that it should not cover, or does not.
fn crc_cases(parts: &Parts) -> Vec<Case> {
    let masked = parts.masked();
    let (input, headers) = (masked.input(), masked.headers());
    let good = crc(&input);
    let cover = |pieces: &[&[u8]]| crc(&pieces.concat());
    let mut cases = vec![
        (vec![Mistake::LeadingOnesMissing], crc(&headers)),
        (vec![Mistake::LeadingZeros], cover(&[&[0; 8], &headers])),
        (vec![Mistake::InitialZero], !register(ETHERNET, 0, &input)),
        (vec![Mistake::NotInverted], !good),
        (vec![Mistake::InitialZero, Mistake::NotInverted], register(ETHERNET, 0, &input)),
        (vec![Mistake::ByteOrder], good.swap_bytes()),
        (vec![Mistake::BitOrder], good.reverse_bits()),
        (vec![Mistake::NotReflected], crc_high_bit_first(&input)),
        (vec![Mistake::NotReflected], crc_high_bit_first(&input).swap_bytes()),
        (vec![Mistake::Crc32c], !register(CASTAGNOLI, u32::MAX, &input)),
        (vec![Mistake::ZeroIcrcIncluded], cover(&[&input, &[0; 4]])),
        (vec![Mistake::EthernetPaddingIncluded], cover(&[&input, &parts.trailer])),
        (vec![Mistake::EthernetIncluded], cover(&[&ONES, &parts.ethernet, &headers])),
        (vec![Mistake::EthernetIncluded], cover(&[&parts.ethernet, &headers])),
        (
            vec![Mistake::EthernetIncluded, Mistake::NothingMasked],
            cover(&[&parts.ethernet, &parts.headers()]),
        ),
        (vec![Mistake::BthOnly], cover(&[&ONES, &masked.bth])),
        (vec![Mistake::BthOnly, Mistake::LeadingOnesMissing], crc(&masked.bth)),
        (
            vec![Mistake::BthOnly, Mistake::LeadingOnesMissing, Mistake::CongestionByteNotMasked],
            crc(&parts.bth),
        ),
        (vec![Mistake::NotComputed], 0),
        (vec![Mistake::NotComputed], 0xdead_beef),
    ];
    if parts.ethernet.len() > 14 {
        cases.push((vec![Mistake::VlanIncluded], cover(&[&ONES, &parts.ethernet[12..16], &headers])));
        cases.push((vec![Mistake::VlanIncluded], cover(&[&ONES, &parts.ethernet[14..18], &headers])));
    }
    if parts.version != Version::Grh {
        cases.push((vec![Mistake::IpHeaderLeftOut], cover(&[&ONES, &masked.udp, &masked.bth])));
        cases.push((vec![Mistake::UdpHeaderLeftOut], cover(&[&ONES, &masked.ip, &masked.bth])));
        cases.push((vec![Mistake::RoceV1Form], crc(&grh_form(parts))));
    }
    if parts.pad_len > 0 {
        let unpadded = &input[..input.len() - parts.pad_len];
        cases.push((vec![Mistake::PaddingExcluded], crc(unpadded)));
        let zeros = vec![0; parts.pad_len];
        cases.push((vec![Mistake::PaddingZero], cover(&[unpadded, &zeros])));
        cases.push((vec![Mistake::PadCountNotSet], parts.changed(|parts| parts.bth[1] &= !0x30)));
    }
    cases
}

/// The bytes that the ICRC of RoCE v1 covers for this packet.
fn grh_form(parts: &Parts) -> Vec<u8> {
    let mut bytes = ONES.to_vec();
    bytes.extend([0x6f, 0xff, 0xff, 0xff]);
    bytes.extend((parts.bth.len() as u16 + 4).to_be_bytes());
    bytes.extend([0x1b, 0xff]);
    if parts.version == Version::Ipv4 {
        for address in parts.ip[12..20].chunks(4) {
            bytes.extend([0; 10]);
            bytes.extend([0xff, 0xff]);
            bytes.extend(address);
        }
    } else {
        bytes.extend(&parts.ip[8..40]);
    }
    bytes.extend(&parts.masked().bth);
    bytes
}

/// Header fields that had another value when the ICRC was computed.
fn value_cases(parts: &Parts) -> Vec<Case> {
    let length = if parts.version == Version::Ipv4 { 2 } else { 4 };
    let ip_length = |change: fn(u16) -> u16| {
        move |parts: &mut Parts| {
            let value = change(word(&parts.ip, length));
            set_word(&mut parts.ip, length, value);
        }
    };
    let udp_length = |change: fn(u16) -> u16| {
        move |parts: &mut Parts| {
            let value = change(word(&parts.udp, 4));
            set_word(&mut parts.udp, 4, value);
        }
    };
    let mut cases = vec![
        (vec![Mistake::IpLengthWithoutIcrc], parts.changed(ip_length(|len| len - 4))),
        (vec![Mistake::IpLengthNotSet], parts.changed(ip_length(|_| 0))),
    ];
    if parts.version != Version::Grh {
        cases.push((vec![Mistake::UdpLengthWithoutIcrc], parts.changed(udp_length(|len| len - 4))));
        cases.push((vec![Mistake::UdpLengthNotSet], parts.changed(udp_length(|_| 0))));
        let both = parts.changed(|parts| {
            ip_length(|len| len - 4)(parts);
            udp_length(|len| len - 4)(parts);
        });
        cases.push((vec![Mistake::IpLengthWithoutIcrc, Mistake::UdpLengthWithoutIcrc], both));
    }
    let (at, len) = if parts.version == Version::Ipv4 { (12, 4) } else { (8, 16) };
    cases.push((
        vec![Mistake::AddressesSwapped],
        parts.changed(|parts| parts.ip[at..at + 2 * len].rotate_left(len)),
    ));
    if parts.version == Version::Ipv4 {
        let identification = |value| parts.changed(move |parts| set_word(&mut parts.ip, 4, value));
        cases.push((vec![Mistake::IdentificationZero], identification(0)));
        cases.push((vec![Mistake::IdentificationSwapped], identification(0x3412)));
        let flags = parts.changed(|parts| parts.ip[6] = 0);
        cases.push((vec![Mistake::FragmentFieldChanged], flags));
        let both = parts.changed(|parts| parts.ip[4..8].fill(0));
        cases.push((vec![Mistake::IdentificationZero, Mistake::FragmentFieldChanged], both));
    }
    cases
}

/// Values that only a search finds.
fn search_cases(parts: &Parts) -> Vec<Case> {
    let length = if parts.version == Version::Ipv4 { 2 } else { 4 };
    let in_bth = |at: usize, value: u16| parts.changed(move |parts| set_word(&mut parts.bth, at, value));
    let mut cases = vec![
        (vec![Mistake::PsnChanged], in_bth(10, 0x1111)),
        (vec![Mistake::QueuePairChanged], in_bth(6, 0x9876)),
        (vec![Mistake::PKeyChanged], in_bth(2, 0x8001)),
        (vec![Mistake::IpLengthChanged], parts.changed(|parts| set_word(&mut parts.ip, length, 0x7a5c))),
        (vec![Mistake::BitFlipped], parts.changed(|parts| parts.bth[13] ^= 0x10)),
        (vec![Mistake::ByteDamaged], parts.changed(|parts| parts.bth[14] ^= 0x5a)),
    ];
    if parts.version == Version::Grh {
        let udp_len = (parts.bth.len() + 12) as u16;
        let mut udp = vec![0xc1, 0x23, 0x12, 0xb7];
        udp.extend(udp_len.to_be_bytes());
        udp.extend([0xff, 0xff]);
        let mut ip = parts.masked().ip;
        set_word(&mut ip, 4, udp_len);
        ip[6] = 17;
        let input = [&ONES[..], &ip, &udp, &parts.masked().bth].concat();
        cases.push((vec![Mistake::RoceV2Form], crc(&input)));
        return cases;
    }
    let in_udp = |at: usize, value: u16| parts.changed(move |parts| set_word(&mut parts.udp, at, value));
    cases.push((vec![Mistake::SourcePortChanged], in_udp(0, 0xd00d)));
    cases.push((vec![Mistake::DestinationPortChanged], in_udp(2, 1021)));
    cases.push((vec![Mistake::UdpLengthChanged], in_udp(4, 0x4321)));
    if parts.version == Version::Ipv4 {
        let identification = parts.changed(|parts| set_word(&mut parts.ip, 4, 0x7777));
        cases.push((vec![Mistake::IdentificationChanged], identification));
    }
    cases
}

fn every_packet() -> impl Iterator<Item = Parts> {
    [Version::Ipv4, Version::Ipv6, Version::Grh].into_iter().flat_map(|version| {
        [(16, false), (13, false), (31, true), (1024, false), (4094, true)]
            .map(|(payload_len, has_tag)| Parts::new(version, payload_len, has_tag))
    })
}

fn sorted(mistakes: &[Mistake]) -> BTreeSet<Mistake> {
    mistakes.iter().copied().collect()
}

#[test]
fn correct_packets_are_correct() {
    for parts in every_packet() {
        assert_eq!(examine_frame(&parts.frame(crc(&parts.masked().input()))), Verdict::Correct, "{parts:?}");
    }
}

#[test]
fn each_fixed_mistake_is_the_only_one_named() {
    let mut named = BTreeSet::new();
    for parts in every_packet() {
        let cases = [mask_cases(&parts), crc_cases(&parts), value_cases(&parts)].concat();
        for (mistakes, icrc) in cases {
            let wrong = wrong(&parts.frame(icrc));
            let context = format!("{:?}, {} bytes: {mistakes:?}", parts.version, parts.bth.len());
            assert_eq!(wrong.found, icrc, "{context}");
            assert_eq!(wrong.computed, crc(&parts.masked().input()), "{context}");
            assert_eq!(wrong.findings.len(), 1, "{context}: {:?}", wrong.findings);
            assert_eq!(sorted(&wrong.findings[0].mistakes), sorted(&mistakes), "{context}");
            assert!(wrong.findings[0].is_definite(), "{context}");
            named.extend(mistakes);
        }
        for (mistakes, icrc) in search_cases(&parts) {
            let wrong = wrong(&parts.frame(icrc));
            let context = format!("{:?}, {} bytes: {mistakes:?}", parts.version, parts.bth.len());
            assert_eq!(wrong.findings.len(), 1, "{context}: {:?}", wrong.findings);
            assert_eq!(wrong.findings[0].mistakes, mistakes, "{context}");
            assert!(matches!(wrong.findings[0].certainty, Certainty::Probable { tried } if tried > 100));
            assert!(wrong.findings[0].explanation().starts_with("Probably"), "{context}");
            named.extend(mistakes);
        }
    }
    // Addresses need a hint; see below.
    named.insert(Mistake::AddressesChanged);
    assert_eq!(named, sorted(Mistake::ALL), "every mistake has a case");
    assert!(Mistake::ALL.len() > 40);
}

#[test]
fn random_values_have_no_definite_explanation() {
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let packets: Vec<Parts> = every_packet().filter(|parts| parts.bth.len() < 2000).collect();
    let (mut probable, mut total) = (0, 0);
    while total < 10_000 {
        for parts in &packets {
            let wrong = wrong(&parts.frame(next()));
            total += 1;
            probable += usize::from(!wrong.findings.is_empty());
            assert!(wrong.findings.iter().all(|finding| !finding.is_definite()), "{wrong:?}");
        }
    }
    // About seven searches of 65,536 values each: one accident is expected in 9,000 packets.
    assert!(probable <= 8, "{probable} of {total} random values are explained");
}

#[test]
fn the_values_of_routers_and_of_senders_are_found() {
    let parts = Parts::new(Version::Ipv4, 32, false);
    // The sender computed the ICRC for TTL 64 and ECT(1); a router decremented the TTL and marked the packet.
    let mut sent = parts.clone();
    (sent.ip[8], sent.ip[1]) = (64, 0x69);
    let icrc = crc(&sent.masked_except(&[Mistake::TtlNotMasked, Mistake::TrafficClassNotMasked]).input());
    let wrong = wrong(&parts.frame(icrc));
    let both = sorted(&[Mistake::TtlNotMasked, Mistake::TrafficClassNotMasked]);
    assert_eq!(sorted(&wrong.findings[0].mistakes), both);
    let detail = Detail::Field { name: "TOS", computed_with: 0x69, in_packet: 0x6a };
    assert_eq!(wrong.findings[0].detail, Some(detail));
}

#[test]
fn another_value_is_named_with_both_values() {
    let parts = Parts::new(Version::Ipv4, 32, false);
    let icrc = parts.changed(|parts| set_word(&mut parts.ip, 4, 0x7777));
    let finding = wrong(&parts.frame(icrc)).findings[0].clone();
    let detail = Detail::Field { name: "Identification", computed_with: 0x7777, in_packet: 0x1234 };
    assert_eq!(finding.detail, Some(detail));
    assert!(finding.explanation().contains("0x7777"), "{}", finding.explanation());
    assert_eq!(finding.certainty, Certainty::Probable { tried: 65_536 });
}

#[test]
fn damaged_bits_are_found_where_they_are() {
    for parts in [Parts::new(Version::Ipv4, 33, true), Parts::new(Version::Ipv6, 1000, false)] {
        let good = parts.frame(crc(&parts.masked().input()));
        let bth = good.len() - parts.trailer.len() - 4 - parts.bth.len();
        let end = good.len() - parts.trailer.len();
        // P_Key, PSN, payload, padding and ICRC: these bytes do not decide how the packet is decoded.
        let places = (bth + 2..bth + 4).chain(bth + 9..end);
        for place in places.step_by(3) {
            for bit in 0..8 {
                let mut frame = good.clone();
                frame[place] ^= 1 << bit;
                let finding = wrong(&frame).findings[0].clone();
                assert_eq!(finding.mistakes, [Mistake::BitFlipped], "{place}.{bit}");
                let Some(Detail::Damage { offset, bits, place: name }) = finding.detail else { panic!() };
                assert_eq!((offset, bits), (place, 1 << bit), "{name}");
                let is_icrc = place >= end - 4;
                assert_eq!(name == "ICRC", is_icrc, "{place}: {name}");
            }
        }
    }
}

#[test]
fn one_wrong_bit_of_a_psn_is_damage_or_another_psn() {
    let parts = Parts::new(Version::Ipv6, 32, false);
    let icrc = parts.changed(|parts| parts.bth[11] ^= 1);
    let findings = wrong(&parts.frame(icrc)).findings;
    let mistakes: Vec<_> = findings.iter().map(|finding| finding.mistakes[0]).collect();
    assert_eq!(mistakes, [Mistake::BitFlipped, Mistake::PsnChanged]);
}

#[test]
fn translated_addresses_are_found_with_a_hint() {
    for (version, inside, outside) in [
        (Version::Ipv4, "192.168.7.9", "10.4.5.6"),
        (Version::Ipv6, "fd00:1::9", "fd00:0:0:9::702"),
        (Version::Grh, "fd00:1::9", "fd00:0:0:9::702"),
    ] {
        let parts = Parts::new(version, 32, false);
        let [inside, outside]: [IpAddr; 2] = [inside, outside].map(|text| text.parse().unwrap());
        let icrc = parts.changed(|parts| match inside {
            IpAddr::V4(address) => parts.ip[12..16].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => parts.ip[8..24].copy_from_slice(&address.octets()),
        });
        let frame = parts.frame(icrc);
        let outer = Outer::decode(&frame, Link::Ethernet, frame.len(), 4791);
        let pairs = [(inside, outside)];
        let Verdict::Wrong(wrong) = examine(&outer, &Hints { addresses: &pairs }) else { panic!() };
        assert_eq!(wrong.findings[0].mistakes, [Mistake::AddressesChanged], "{version:?}");
        let detail = Detail::Addresses { source: inside, destination: outside };
        assert_eq!(wrong.findings[0].detail, Some(detail));
        assert!(wrong.findings[0].is_definite());
    }
}

/// The GIDs of a RoCE v1 packet may be IPv4 addresses.
#[test]
fn the_ipv4_form_of_a_v1_packet_is_found() {
    let mut parts = Parts::new(Version::Grh, 32, false);
    for (place, last) in parts.ip[8..].chunks_mut(16).zip([1, 2]) {
        place.copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]);
    }
    let len = parts.bth.len() as u16 + 12;
    let mut input = [&ONES[..], &[0x45, 0xff]].concat();
    input.extend((len + 20).to_be_bytes());
    input.extend([0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff, 192, 0, 2, 1, 192, 0, 2, 2, 0xc5, 0x67, 0x12, 0xb7]);
    input.extend(len.to_be_bytes());
    input.extend([0xff, 0xff]);
    input.extend(&parts.masked().bth);
    let finding = wrong(&parts.frame(crc(&input))).findings[0].clone();
    assert_eq!(finding.mistakes, [Mistake::RoceV2Form]);
    let Some(Detail::Field { computed_with, .. }) = finding.detail else { panic!() };
    assert_eq!(computed_with, 0xc567);
}

#[test]
fn packets_without_an_end_are_not_judged() {
    let parts = Parts::new(Version::Ipv4, 64, false);
    let frame = parts.frame(7);
    let cut = Outer::decode(&frame[..80], Link::Ethernet, frame.len(), 4791);
    let verdict = examine(&cut, &Hints::default());
    assert_eq!(verdict, Verdict::Unchecked(Unchecked::Cut(Cut::Capture)));
    let mut foreign = frame.clone();
    foreign[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(examine_frame(&foreign), Verdict::Unchecked(Unchecked::NotRoce));
    let mut malformed = frame;
    malformed[38] ^= 1;
    assert_eq!(examine_frame(&malformed), Verdict::Unchecked(Unchecked::Malformed));
}

#[test]
fn prefixes_and_noise_do_not_panic() {
    for parts in every_packet().filter(|parts| parts.bth.len() < 60) {
        let frame = parts.frame(0x5555_5555);
        for len in 0..frame.len() {
            let outer = Outer::decode(&frame[..len], Link::Ethernet, len, 4791);
            let _ = examine(&outer, &Hints::default());
        }
        for at in 0..frame.len() {
            for value in [0, 1, 0x45, 0x7f, 0xff] {
                let mut noisy = frame.clone();
                noisy[at] = value;
                let _ = examine_frame(&noisy);
            }
        }
    }
}

fn tally(frames: impl IntoIterator<Item = Vec<u8>>) -> Tally {
    let mut tally = Tally::default();
    frames.into_iter().for_each(|frame| tally.add(&examine_frame(&frame)));
    tally
}

#[test]
fn several_packets_confirm_a_search() {
    let frame = |payload_len| {
        let parts = Parts::new(Version::Ipv4, payload_len, false);
        parts.frame(parts.changed(|parts| set_word(&mut parts.udp, 0, 0xd00d)))
    };
    let one = tally([frame(20)]).conclusion();
    assert_eq!((one.mistakes, one.is_certain), (vec![Mistake::SourcePortChanged], false));
    assert!(one.text.contains("probably"), "{}", one.text);
    let two = tally([20, 24].map(frame)).conclusion();
    assert!(two.is_certain, "{two:?}");
    for part in ["2 of 2 ICRCs are wrong", "another UDP source port", "each of them", "0xd00d"] {
        assert!(two.text.contains(part), "{part}: {}", two.text);
    }
    assert!(two.remedy.is_some_and(|remedy| remedy.contains("NAT")));
}

#[test]
fn a_definite_mistake_needs_one_packet() {
    let frame = |payload_len| {
        let parts = Parts::new(Version::Ipv6, payload_len, false);
        parts.frame(crc(&parts.masked_except(&[Mistake::HopLimitNotMasked]).input()))
    };
    let good = |payload_len| {
        let parts = Parts::new(Version::Ipv6, payload_len, false);
        parts.frame(crc(&parts.masked().input()))
    };
    let tally = tally([frame(20), good(20), good(21)]);
    assert_eq!((tally.correct(), tally.wrong(), tally.unchecked()), (2, 1, 0));
    assert_eq!(tally.counts(), [(&[Mistake::HopLimitNotMasked][..], 1)]);
    let conclusion = tally.conclusion();
    assert!(conclusion.is_certain && conclusion.text.starts_with("1 of 3 ICRCs are wrong"), "{conclusion:?}");
}

#[test]
fn constants_and_unknown_mistakes_are_told_apart() {
    let packets = || every_packet().filter(|parts| parts.bth.len() < 100);
    let constant = tally(packets().map(|parts| parts.frame(0x0bad_cafe))).conclusion();
    assert_eq!((constant.mistakes, constant.is_certain), (vec![Mistake::NotComputed], true));
    assert!(constant.text.contains("0x0badcafe"), "{}", constant.text);
    let unknown = tally(
        packets()
            .zip([7_u32, 11, 13].into_iter().cycle())
            .map(|(parts, odd)| parts.frame(crc(&parts.input()).wrapping_mul(odd).wrapping_add(odd))),
    )
    .conclusion();
    assert_eq!((unknown.mistakes, unknown.is_certain), (vec![], false));
    assert!(unknown.text.contains("no known mistake"), "{}", unknown.text);
    // Equal packets with equal wrong ICRCs are no constant.
    let parts = Parts::new(Version::Ipv4, 20, false);
    let equal = tally([(); 5].map(|()| parts.frame(0x0bad_cafe))).conclusion();
    assert!(equal.mistakes.is_empty(), "{equal:?}");
    let nothing = Tally::default().conclusion();
    assert_eq!((nothing.text.as_str(), nothing.is_certain), ("no packet has an ICRC", false));
}

#[test]
fn names_and_fixes_are_words_and_on_the_page() {
    let page = include_str!("../../../docs/how-to/wrong-icrc.md");
    let mut names = BTreeSet::new();
    for mistake in Mistake::ALL {
        assert!(names.insert(mistake.name()), "{mistake:?} has the name of another one");
        assert_eq!(Mistake::from_name(mistake.name()), Some(*mistake));
        let row = format!("| {} | {} | {} |", mistake.name(), mistake.explanation(), mistake.fix());
        assert!(page.contains(&row), "docs/how-to/wrong-icrc.md has no row {row}");
        assert!(mistake.explanation().ends_with('.') && !mistake.fix().ends_with('.'), "{mistake:?}");
        assert!(mistake.fix().len() > 20 && !mistake.explanation().contains("  "), "{mistake:?}");
    }
}
