//! Lengths, checksums and the ICRC after a change.

use roce_analysis::walk::Walk;
use roce_packet::fields::{GRH, IPV4, IPV6, UDP};
use roce_packet::{
    Grh, GrhView, Ipv4Header, Ipv4View, Ipv6Header, Ipv6View, NetworkView, UdpHeader, UdpView, icrc,
};

use super::input::{Input, walk};

/// All that must be known of a frame before a change, to repair it afterwards.
#[derive(Clone, Debug, Default)]
pub(super) struct Repair {
    /// The key of the field that was changed. It keeps its value.
    key: String,
    /// Number of bytes behind the packet, such as Ethernet padding.
    trailer_len: usize,
    /// Number of bytes of in-band telemetry behind the ICRC.
    telemetry_len: usize,
}

impl Repair {
    /// Prepares the repair of a frame in which the field with this key will change.
    pub(super) fn of(walk: &Walk<'_>, key: &str) -> Self {
        let telemetry_len = walk.outer.check_icrc().map_or(0, |icrc| icrc.telemetry_len);
        // With contradicting lengths, the end of the packet is the end of the frame.
        let trailer_len = trailer_len(walk).unwrap_or(0);
        Self { key: key.to_owned(), trailer_len, telemetry_len }
    }
}

/// Returns the number of bytes behind the packet, if the lengths of IP and UDP agree.
fn trailer_len(walk: &Walk<'_>) -> Option<usize> {
    let outer = &walk.outer;
    let len = match outer.network? {
        NetworkView::Ipv4(ip) => usize::from(ip.total_length()),
        NetworkView::Ipv6(ip) => Ipv6Header::LEN.saturating_add(ip.payload_length().into()),
        NetworkView::Grh(grh) => Grh::LEN.saturating_add(grh.payload_length().into()),
    };
    let end = outer.network_offset.saturating_add(len);
    let udp_end = outer.udp.map(|udp| outer.udp_offset.saturating_add(udp.length().into()));
    if udp_end.is_some_and(|udp_end| udp_end != end) {
        return None;
    }
    walk.bytes.len().checked_sub(end)
}

/// Writes the lengths of the innermost packet, its ICRC, and all checksums of IPv4 and UDP. A UDP checksum of
/// 0, which means that there is no checksum, stays 0. The field that was changed keeps its value.
pub(super) fn apply(input: &mut Input, repair: &Repair) {
    let edits = lengths(&input.walk(), repair);
    write(&mut input.bytes, &edits, repair);
    let edits = sealed(&input.walk(), repair);
    write(&mut input.bytes, &edits, repair);
    // Each checksum of a tunnel covers those of the packet inside.
    let count = input.walk().parts.len();
    for index in (0..count).rev() {
        let edits = checksum(&walk(&input.bytes, input.start), index);
        write(&mut input.bytes, &edits, repair);
    }
}

/// New bytes for the field with this key.
struct Edit {
    key: &'static str,
    offset: usize,
    bytes: Vec<u8>,
}

impl Edit {
    fn word(key: &'static str, offset: usize, value: usize) -> Self {
        // Longer packets than 65,535 bytes do not exist; the input has a limit.
        let word = u16::try_from(value).unwrap_or(u16::MAX);
        Self { key, offset, bytes: word.to_be_bytes().to_vec() }
    }
}

fn write(bytes: &mut [u8], edits: &[Edit], repair: &Repair) {
    for edit in edits.iter().filter(|edit| edit.key != repair.key) {
        let end = edit.offset.saturating_add(edit.bytes.len());
        if let Some(place) = bytes.get_mut(edit.offset..end) {
            place.copy_from_slice(&edit.bytes);
        }
    }
}

/// Returns the lengths of the innermost packet, which ends before the trailer.
fn lengths(walk: &Walk<'_>, repair: &Repair) -> Vec<Edit> {
    let outer = &walk.outer;
    let end = walk.bytes.len().saturating_sub(repair.trailer_len);
    let from = |offset: usize| end.saturating_sub(offset);
    let base = outer.network_offset;
    let mut edits = Vec::new();
    match outer.network {
        Some(NetworkView::Ipv4(_)) => edits.push(Edit::word("ip.len", base + 2, from(base))),
        Some(NetworkView::Ipv6(_)) => {
            edits.push(Edit::word("ipv6.plen", base + 4, from(base + Ipv6Header::LEN)));
        }
        Some(NetworkView::Grh(_)) => {
            edits.push(Edit::word("infiniband.grh.paylen", base + 4, from(base + Grh::LEN)));
        }
        None => {}
    }
    let udp = walk.parts.iter().rfind(|part| std::ptr::eq(part.header, &UDP));
    if let Some(udp) = udp.filter(|udp| !udp.is_outer) {
        edits.push(Edit::word("udp.length", udp.start + 4, from(udp.start)));
    }
    edits
}

/// Returns the ICRC, if the headers before it fit together.
fn sealed(walk: &Walk<'_>, repair: &Repair) -> Vec<Edit> {
    let computed = || {
        let outer = &walk.outer;
        let checked = outer.check_icrc()?;
        let transport = outer.transport?;
        let end = transport.len().checked_sub(repair.telemetry_len)?;
        let offset = end.checked_sub(icrc::LEN)?;
        let value = match repair.telemetry_len {
            0 => checked.check.computed,
            _ => icrc::compute(&outer.envelope()?, transport.get(..offset)?, &[]),
        };
        let offset = outer.transport_offset.checked_add(offset)?;
        Some(Edit { key: "infiniband.invariant.crc", offset, bytes: value.to_le_bytes().to_vec() })
    };
    computed().into_iter().collect()
}

/// Returns the checksum of one header, if it has one.
fn checksum(walk: &Walk<'_>, index: usize) -> Vec<Edit> {
    let computed = || {
        let part = walk.parts.get(index)?;
        if std::ptr::eq(part.header, &IPV4) {
            let (ip, _) = Ipv4View::from_prefix(walk.part_bytes(part)).ok()?;
            let options_end = part.start.checked_add(ip.header_len())?;
            let options = walk.bytes.get(part.start.checked_add(Ipv4Header::LEN)?..options_end)?;
            let value = ip.computed_checksum(options);
            return Some(Edit::word("ip.checksum", part.start + 10, value.into()));
        }
        if std::ptr::eq(part.header, &UDP) {
            let (udp, _) = UdpView::from_prefix(walk.part_bytes(part)).ok()?;
            let value = udp_checksum(walk, index, udp)?;
            return Some(Edit::word("udp.checksum", part.start + 6, value.into()));
        }
        None
    };
    computed().into_iter().collect()
}

/// Computes the checksum of a UDP header, unless it is 0.
fn udp_checksum(walk: &Walk<'_>, index: usize, udp: &UdpView) -> Option<u16> {
    if udp.checksum() == 0 {
        return None;
    }
    let part = walk.parts.get(index)?;
    let before = walk.parts.get(..index)?.iter().rev();
    let mut networks = before
        .filter(|part| [&IPV4, &IPV6, &GRH].into_iter().any(|header| std::ptr::eq(part.header, header)));
    let network = networks.next()?;
    let bytes = walk.part_bytes(network);
    let (source, destination) = if std::ptr::eq(network.header, &IPV4) {
        let (ip, _) = Ipv4View::from_prefix(bytes).ok()?;
        (ip.source().into(), ip.destination().into())
    } else if std::ptr::eq(network.header, &IPV6) {
        let (ip, _) = Ipv6View::from_prefix(bytes).ok()?;
        (ip.source().into(), ip.destination().into())
    } else {
        let (grh, _) = GrhView::from_prefix(bytes).ok()?;
        (grh.source().to_ip(), grh.destination().to_ip())
    };
    let end = part.start.checked_add(udp.length().into())?;
    let payload = walk.bytes.get(part.start.checked_add(UdpHeader::LEN)?..end)?;
    let header = UdpHeader {
        source_port: udp.source_port(),
        destination_port: udp.destination_port(),
        length: udp.length(),
        checksum: 0,
    };
    header.compute_checksum(source, destination, payload)
}
