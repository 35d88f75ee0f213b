//! Fixed computations with one or two mistakes, each of which gives one value.

use std::net::{IpAddr, Ipv6Addr};

use super::crc::{CASTAGNOLI, ETHERNET, update, update_unreflected};
use super::mistake::{Detail, Hints, Mistake, Trials};
use super::subject::{ICRC_LEN, ONES, Subject, UDP_LEN, Version};

/// Constants that a sender writes into the field if it does not compute the ICRC.
const CONSTANTS: [u32; 6] = [0, u32::MAX, 0xdead_beef, 0xefbe_adde, 0x1234_5678, 0x7856_3412];

/// Tries every fixed computation.
pub(super) fn try_forms(subject: &Subject<'_>, hints: &Hints<'_>, trials: &mut Trials) {
    if CONSTANTS.contains(&subject.found) {
        trials.offer(subject.found, &[Mistake::NotComputed], Some(Detail::Constant(subject.found)));
    }
    identifications(subject, trials);
    lengths(subject, trials);
    ends(subject, trials);
    registers(subject, trials);
    covered_headers(subject, trials);
    link_headers(subject, trials);
    addresses(subject, hints, trials);
    other_version(subject, trials);
    other_crcs(subject, trials);
}

/// Offers one computation, with the fields masked and as they are.
fn offer_both(trials: &mut Trials, mistakes: &[Mistake], detail: Option<Detail>, icrc: impl Fn(bool) -> u32) {
    trials.offer(icrc(true), mistakes, detail);
    let with_nothing = [mistakes, &[Mistake::NothingMasked]].concat();
    trials.offer(icrc(false), &with_nothing, detail);
}

/// Tries other values of the Identification and of the DF flag that a sender has before it fills them in.
fn identifications(subject: &Subject<'_>, trials: &mut Trials) {
    const IDENTIFICATION: usize = 4;
    const FLAGS: usize = 6;

    if subject.version != Version::Ipv4 {
        return;
    }
    let (found, flags) = (subject.word(IDENTIFICATION), subject.word(FLAGS));
    let others = [
        (0, Some(Mistake::IdentificationZero)),
        (found.swap_bytes(), Some(Mistake::IdentificationSwapped)),
        (found, None),
    ];
    for other_flags in [flags, flags ^ 0x4000] {
        for (value, mistake) in others {
            if mistake.is_some() && value == found {
                continue;
            }
            let is_other = other_flags != flags;
            let mistakes: Vec<Mistake> =
                mistake.into_iter().chain(is_other.then_some(Mistake::FragmentFieldChanged)).collect();
            let name = if mistake.is_some() { "Identification" } else { "fragment field" };
            let (then, now) = if mistake.is_some() { (value, found) } else { (other_flags, flags) };
            let detail = Detail::Field { name, computed_with: then.into(), in_packet: now.into() };
            if mistakes.is_empty() {
                continue;
            }
            let changes: [(usize, &[u8]); 2] =
                [(IDENTIFICATION, &value.to_be_bytes()), (FLAGS, &other_flags.to_be_bytes())];
            offer_both(trials, &mistakes, Some(detail), |masked| subject.icrc_with(&changes, masked));
        }
    }
}

/// Tries lengths that a sender has before the ICRC is added.
fn lengths(subject: &Subject<'_>, trials: &mut Trials) {
    let ip = subject.version.length_offset();
    let ip_len = subject.word(ip);
    let without = |len: u16| len.wrapping_sub(ICRC_LEN as u16);
    let of_ip = [
        (ip_len, None),
        (without(ip_len), Some(Mistake::IpLengthWithoutIcrc)),
        (0, Some(Mistake::IpLengthNotSet)),
    ];
    let udp = subject.udp().map(|udp| udp + 4);
    let udp_len = udp.map_or(0, |udp| subject.word(udp));
    let of_udp = [
        (udp_len, None),
        (without(udp_len), Some(Mistake::UdpLengthWithoutIcrc)),
        (0, Some(Mistake::UdpLengthNotSet)),
    ];
    let of_udp = if udp.is_some() { &of_udp[..] } else { of_udp.get(..1).unwrap_or_default() };
    for (ip_len, ip_mistake) in of_ip {
        for (udp_len, udp_mistake) in of_udp {
            let mistakes: Vec<Mistake> = ip_mistake.into_iter().chain(*udp_mistake).collect();
            if mistakes.is_empty() {
                continue;
            }
            let (ip_bytes, udp_bytes) = (ip_len.to_be_bytes(), udp_len.to_be_bytes());
            let mut changes: Vec<(usize, &[u8])> = vec![(ip, &ip_bytes)];
            changes.extend(udp.map(|udp| (udp, &udp_bytes[..])));
            offer_both(trials, &mistakes, None, |masked| subject.icrc_with(&changes, masked));
        }
    }
}

/// Tries other ends of the covered bytes: padding, the field of the ICRC, Ethernet padding.
fn ends(subject: &Subject<'_>, trials: &mut Trials) {
    let head = |masked| subject.head(masked);
    let whole = |masked, tail| subject.icrc(&ONES, head(masked), tail);
    let zeros = [0; ICRC_LEN];
    let with_icrc = |masked| subject.tail(masked).then(&zeros);
    offer_both(trials, &[Mistake::ZeroIcrcIncluded], None, |masked| whole(masked, with_icrc(masked)));
    if !subject.trailer.is_empty() {
        let mistakes = [Mistake::EthernetPaddingIncluded];
        offer_both(trials, &mistakes, None, |masked| {
            whole(masked, subject.tail(masked).then(subject.trailer))
        });
        let mistakes = [Mistake::EthernetPaddingIncluded, Mistake::ZeroIcrcIncluded];
        offer_both(trials, &mistakes, None, |masked| whole(masked, with_icrc(masked).then(subject.trailer)));
    }
    if subject.pad_len == 0 {
        return;
    }
    let unpadded_len = subject.covered.len().saturating_sub(subject.pad_len);
    let (unpadded, padding) = subject.covered.split_at_checked(unpadded_len).unwrap_or_default();
    let short = |masked| subject.tail_of(unpadded, masked);
    offer_both(trials, &[Mistake::PaddingExcluded], None, |masked| whole(masked, short(masked)));
    if padding.iter().any(|byte| *byte != 0) {
        let zeros = vec![0; padding.len()];
        let mistakes = [Mistake::PaddingZero];
        offer_both(trials, &mistakes, None, |masked| whole(masked, short(masked).then(&zeros)));
    }
    let mut changed = subject.covered.to_vec();
    if let Some(flags) = changed.get_mut(1) {
        *flags &= !0x30;
    }
    let mistakes = [Mistake::PadCountNotSet];
    offer_both(trials, &mistakes, None, |masked| whole(masked, subject.tail_of(&changed, masked)));
    shorter_lengths(subject, unpadded, trials);
}

/// Tries lengths without the padding, which is not covered either.
fn shorter_lengths(subject: &Subject<'_>, unpadded: &[u8], trials: &mut Trials) {
    let pad_len = subject.pad_len as u16;
    let ip = subject.version.length_offset();
    let udp = subject.udp().map(|udp| udp + 4);
    for icrc_len in [0, ICRC_LEN as u16] {
        let shorter = |offset| subject.word(offset).wrapping_sub(pad_len + icrc_len).to_be_bytes();
        let mut mistakes = vec![Mistake::PaddingExcluded];
        if icrc_len > 0 {
            mistakes.push(Mistake::IpLengthWithoutIcrc);
        } else {
            mistakes.push(Mistake::IpLengthChanged);
        }
        for is_masked in [true, false] {
            let mut head = subject.head(is_masked).to_vec();
            for offset in [Some(ip), udp].into_iter().flatten() {
                let bytes = shorter(offset);
                if let Some(place) = head.get_mut(offset..offset + bytes.len()) {
                    place.copy_from_slice(&bytes);
                }
            }
            if !is_masked {
                mistakes.push(Mistake::NothingMasked);
            }
            let value = subject.icrc(&ONES, &head, subject.tail_of(unpadded, is_masked));
            trials.offer(value, &mistakes, None);
        }
    }
}

/// Tries other beginnings and ends of the register: initial value, leading bytes, inversion, order.
fn registers(subject: &Subject<'_>, trials: &mut Trials) {
    let leading: [(&[u8], Option<Mistake>); 3] = [
        (&ONES, None),
        (&[], Some(Mistake::LeadingOnesMissing)),
        (&[0; ONES.len()], Some(Mistake::LeadingZeros)),
    ];
    let mut found: Vec<(u32, Vec<Mistake>)> = Vec::new();
    for is_masked in [true, false] {
        for (initial, initial_mistake) in [(u32::MAX, None), (0, Some(Mistake::InitialZero))] {
            for (prefix, prefix_mistake) in leading {
                // Zeros leave a register of zero as it is, so they equal missing bytes.
                if initial == 0 && prefix_mistake == Some(Mistake::LeadingZeros) {
                    continue;
                }
                let begin = update(&ETHERNET, update(&ETHERNET, initial, prefix), subject.head(is_masked));
                let register = subject.tail(is_masked).after(begin);
                let mistakes = initial_mistake.into_iter().chain(prefix_mistake);
                let masks = (!is_masked).then_some(Mistake::NothingMasked);
                found.push((register, mistakes.chain(masks).collect()));
            }
        }
    }
    // Fewer mistakes first.
    found.sort_by_key(|(_, mistakes)| mistakes.len());
    for (inverted, invert_mistake) in [(true, None), (false, Some(Mistake::NotInverted))] {
        for (register, mistakes) in &found {
            let value = if inverted { !register } else { *register };
            let orders = [
                (value, None),
                (value.swap_bytes(), Some(Mistake::ByteOrder)),
                (value.reverse_bits(), Some(Mistake::BitOrder)),
                (value.reverse_bits().swap_bytes(), Some(Mistake::BitOrder)),
            ];
            for (value, order) in orders {
                let all: Vec<Mistake> = mistakes.iter().copied().chain(invert_mistake).chain(order).collect();
                if !all.is_empty() && all != [Mistake::NothingMasked] {
                    trials.offer(value, &all, None);
                }
            }
        }
    }
}

/// Tries computations without some of the headers.
fn covered_headers(subject: &Subject<'_>, trials: &mut Trials) {
    let prefixes: [(&[u8], &[Mistake]); 2] = [(&ONES, &[]), (&[], &[Mistake::LeadingOnesMissing])];
    let network_len = subject.version.network_len();
    for (prefix, missing) in prefixes {
        let bth = [&[Mistake::BthOnly][..], missing].concat();
        for is_masked in [true, false] {
            let mut mistakes = bth.clone();
            mistakes.extend((!is_masked).then_some(Mistake::CongestionByteNotMasked));
            trials.offer(subject.icrc(prefix, &[], subject.tail(is_masked)), &mistakes, None);
        }
        if subject.udp().is_none() {
            continue;
        }
        let ip = |masked| subject.head(masked).get(..network_len).unwrap_or_default();
        let udp = |masked| subject.head(masked).get(network_len..).unwrap_or_default();
        let mistakes = [&[Mistake::IpHeaderLeftOut][..], missing].concat();
        offer_both(trials, &mistakes, None, |masked| subject.icrc(prefix, udp(masked), subject.tail(masked)));
        let mistakes = [&[Mistake::UdpHeaderLeftOut][..], missing].concat();
        offer_both(trials, &mistakes, None, |masked| subject.icrc(prefix, ip(masked), subject.tail(masked)));
    }
}

/// Tries computations over the Ethernet header and VLAN tags.
fn link_headers(subject: &Subject<'_>, trials: &mut Trials) {
    const ADDRESSES_LEN: usize = 12;
    const TYPE_LEN: usize = 2;

    let Some((addresses, tags)) = subject.ethernet.split_at_checked(ADDRESSES_LEN) else { return };
    let Some((tags, ether_type)) = tags.split_at_checked(tags.len().saturating_sub(TYPE_LEN)) else { return };
    let mut tried: Vec<(Vec<u8>, Mistake)> = Vec::new();
    for ones in [&ONES[..], &[]] {
        tried.push(([ones, subject.ethernet].concat(), Mistake::EthernetIncluded));
        if !tags.is_empty() {
            tried.push(([ones, addresses, ether_type].concat(), Mistake::EthernetIncluded));
            tried.push(([ones, tags].concat(), Mistake::VlanIncluded));
            let from_tci = subject.ethernet.get(ADDRESSES_LEN + TYPE_LEN..).unwrap_or_default();
            tried.push(([ones, from_tci].concat(), Mistake::VlanIncluded));
        }
    }
    for (prefix, mistake) in tried {
        offer_both(trials, &[mistake], None, |masked| {
            subject.icrc(&prefix, subject.head(masked), subject.tail(masked))
        });
    }
}

/// Tries the addresses that the caller suggests, and those of the packet in the other order.
fn addresses(subject: &Subject<'_>, hints: &Hints<'_>, trials: &mut Trials) {
    let (offset, len) = subject.version.addresses();
    let head = subject.head(false);
    let source = head.get(offset..offset + len).unwrap_or_default();
    let destination = head.get(offset + len..offset + 2 * len).unwrap_or_default();
    if source != destination {
        let swapped: [(usize, &[u8]); 2] = [(offset, destination), (offset + len, source)];
        offer_both(trials, &[Mistake::AddressesSwapped], None, |masked| subject.icrc_with(&swapped, masked));
    }
    let (Some(own_source), Some(own_destination)) = (address(source), address(destination)) else { return };
    for (source, destination) in hints.addresses {
        let pairs = [(*source, *destination), (*source, own_destination), (own_source, *destination)];
        for (source, destination) in pairs {
            let (Some(a), Some(b)) = (octets(source, len), octets(destination, len)) else { continue };
            if (source, destination) == (own_source, own_destination) {
                continue;
            }
            let changes: [(usize, &[u8]); 2] = [(offset, &a), (offset + len, &b)];
            let detail = Detail::Addresses { source, destination };
            offer_both(trials, &[Mistake::AddressesChanged], Some(detail), |masked| {
                subject.icrc_with(&changes, masked)
            });
        }
    }
}

/// Returns the address in these bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        _ => bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
    }
}

/// Returns the bytes of an address of this length.
fn octets(address: IpAddr, len: usize) -> Option<Vec<u8>> {
    match (address, len) {
        (IpAddr::V4(address), 4) => Some(address.octets().to_vec()),
        (IpAddr::V4(address), 16) => Some(address.to_ipv6_mapped().octets().to_vec()),
        (IpAddr::V6(address), 16) => Some(address.octets().to_vec()),
        _ => None,
    }
}

/// Tries the headers of the other version of RoCE. Those of RoCE v2 have a source port that is unknown, so
/// the search tries them again.
fn other_version(subject: &Subject<'_>, trials: &mut Trials) {
    if subject.version == Version::Grh {
        return;
    }
    let len = (subject.covered.len() + ICRC_LEN) as u16;
    let mut head = vec![0x6f, 0xff, 0xff, 0xff];
    head.extend(len.to_be_bytes());
    head.extend([0x1b, 0xff]);
    head.extend(long_addresses(subject));
    trials.offer(subject.icrc(&ONES, &head, subject.tail(true)), &[Mistake::RoceV1Form], None);
}

/// Returns source and destination address as 32 bytes.
fn long_addresses(subject: &Subject<'_>) -> Vec<u8> {
    let (offset, len) = subject.version.addresses();
    let bytes = subject.head(false).get(offset..offset + 2 * len).unwrap_or_default();
    let addresses = bytes.chunks_exact(len).filter_map(address);
    addresses.filter_map(|address| octets(address, 16)).flatten().collect()
}

/// Returns the masked headers of RoCE v2 for a packet of RoCE v1, with source port 0. Packets of RoCE v2 have
/// none.
pub(super) fn headers_of_v2(subject: &Subject<'_>) -> Vec<Vec<u8>> {
    if subject.version != Version::Grh {
        return Vec::new();
    }
    let udp_len = (subject.covered.len() + ICRC_LEN + UDP_LEN) as u16;
    let mut udp = vec![0, 0];
    udp.extend(roce_packet::ROCE_UDP_PORT.to_be_bytes());
    udp.extend(udp_len.to_be_bytes());
    udp.extend([0xff, 0xff]);
    let addresses = long_addresses(subject);
    let mut long = vec![0x6f, 0xff, 0xff, 0xff];
    long.extend(udp_len.to_be_bytes());
    long.extend([17, 0xff]);
    long.extend(&addresses);
    long.extend(&udp);
    let mut heads = vec![long];
    let short: Vec<u8> = addresses.chunks_exact(16).filter_map(mapped).flatten().collect();
    if short.len() == 8 {
        let mut head = vec![0x45, 0xff];
        head.extend(udp_len.wrapping_add(20).to_be_bytes());
        head.extend([0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
        head.extend(short);
        head.extend(&udp);
        heads.push(head);
    }
    heads
}

/// Returns the IPv4 address in a mapped IPv6 address.
fn mapped(bytes: &[u8]) -> Option<[u8; 4]> {
    let address: [u8; 16] = *bytes.first_chunk()?;
    Some(Ipv6Addr::from(address).to_ipv4_mapped()?.octets())
}

/// Tries other CRCs over the right bytes.
fn other_crcs(subject: &Subject<'_>, trials: &mut Trials) {
    for is_masked in [true, false] {
        let mut covered = subject.covered.to_vec();
        if is_masked && let Some(byte) = covered.get_mut(4) {
            *byte = 0xff;
        }
        let pieces = [&ONES[..], subject.head(is_masked), &covered[..]];
        let castagnoli =
            !pieces.iter().fold(u32::MAX, |register, bytes| update(&CASTAGNOLI, register, bytes));
        let unreflected =
            !pieces.iter().fold(u32::MAX, |register, bytes| update_unreflected(register, bytes));
        let values = [
            (castagnoli, vec![Mistake::Crc32c]),
            (castagnoli.swap_bytes(), vec![Mistake::Crc32c, Mistake::ByteOrder]),
            (unreflected, vec![Mistake::NotReflected]),
            (unreflected.swap_bytes(), vec![Mistake::NotReflected]),
        ];
        for (value, mut mistakes) in values {
            mistakes.extend((!is_masked).then_some(Mistake::NothingMasked));
            trials.offer(value, &mistakes, None);
        }
    }
}
