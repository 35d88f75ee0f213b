//! The messages of a host on the link: ARP, neighbour discovery, and membership of multicast groups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce_packet::{EtherType, EthernetHeader, MacAddr};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet,
    Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, checksum,
};

/// Room for the longest message.
pub(super) const LONGEST: usize = 128;
/// The group of all IPv6 hosts of the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Destination of MLDv2 reports (RFC 3810 5.2.14).
const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Destination of IGMP leaves (RFC 2236 section 3).
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// IGMP message types (RFC 2236 2.1).
const IGMP_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
/// Type of an MLDv2 report (RFC 3810 5.2). Record types (5.2.12): "all sources" in answer to a query, and the
/// changes to "no sources" (leave) and to "all sources" (join).
const MLDV2_REPORT: u8 = 143;
const MODE_IS_EXCLUDE: u8 = 2;
const CHANGE_TO_INCLUDE: u8 = 3;
const CHANGE_TO_EXCLUDE: u8 = 4;
/// Neighbour discovery crosses no router (RFC 4861 7.1).
pub(super) const NDP_HOP_LIMIT: u8 = 255;

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Asks for the Ethernet address of `target`. It is a probe if the source is 0.0.0.0 (RFC 5227 2.1.1),
    /// and an announcement if the source is the target.
    ArpRequest { source: Ipv4Addr, target: Ipv4Addr, to: MacAddr },
    /// Answers that this host has `source`.
    ArpReply { source: Ipv4Addr, target: Ipv4Addr, to: MacAddr },
    /// Asks for the Ethernet address of `target`. It is a probe if the source is `::` (RFC 4862 5.4.2).
    Solicitation { source: Ipv6Addr, target: Ipv6Addr, to: Option<MacAddr> },
    /// Sends this host's Ethernet address for `source`. `None` sends it to all hosts.
    Advertisement { source: Ipv6Addr, to: Option<(Ipv6Addr, MacAddr)> },
    /// Reports that this host is a member of a group, or has left it.
    Membership { source: IpAddr, group: IpAddr, change: Change },
}

/// The kind of a report about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Joined,
    Left,
    /// Unchanged: the answer to a query.
    Member,
}

impl Message {
    /// Writes the frame and returns its length; `None` if it does not fit or is invalid.
    pub(super) fn emit(&self, mac: MacAddr, buffer: &mut [u8]) -> Option<usize> {
        let (header, body) = buffer.get_mut(..LONGEST)?.split_first_chunk_mut()?;
        let (destination, ether_type, len) = match *self {
            Self::ArpRequest { source, target, to } => {
                let len = emit_arp(ArpOperation::Request, mac, source, MacAddr::ZERO, target, body);
                (to, EtherType::ARP, len)
            }
            Self::ArpReply { source, target, to } => {
                (to, EtherType::ARP, emit_arp(ArpOperation::Reply, mac, source, to, target, body))
            }
            Self::Solicitation { source, target, to } => {
                // A probe has no address to answer to (RFC 4861 4.3).
                let lladdr = (!source.is_unspecified()).then(|| raw(mac));
                let group = solicited_node(target);
                let destination = if to.is_some() { target } else { group };
                let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr };
                let to = to.or_else(|| MacAddr::for_multicast(group.into()))?;
                (to, EtherType::IPV6, emit_ndp(source, destination, repr, body))
            }
            Self::Advertisement { source, to } => {
                let solicited = match to {
                    Some(_) => NdiscNeighborFlags::SOLICITED,
                    None => NdiscNeighborFlags::empty(),
                };
                let (destination, to) =
                    to.or_else(|| Some((ALL_NODES, MacAddr::for_multicast(ALL_NODES.into())?)))?;
                let flags = solicited | NdiscNeighborFlags::OVERRIDE;
                let lladdr = Some(raw(mac));
                let repr = NdiscRepr::NeighborAdvert { flags, target_addr: source, lladdr };
                (to, EtherType::IPV6, emit_ndp(source, destination, repr, body))
            }
            Self::Membership { source: IpAddr::V4(source), group: IpAddr::V4(group), change } => {
                let (destination, kind) = match change {
                    Change::Left => (ALL_ROUTERS, IGMP_LEAVE),
                    Change::Joined | Change::Member => (group, IGMP_REPORT),
                };
                let len = emit_igmp(source, destination, kind, group, body);
                (MacAddr::for_multicast(destination.into())?, EtherType::IPV4, len)
            }
            Self::Membership { source: IpAddr::V6(source), group: IpAddr::V6(group), change } => {
                let to = MacAddr::for_multicast(ALL_MLDV2_ROUTERS.into())?;
                (to, EtherType::IPV6, emit_mld(source, group, change, body))
            }
            Self::Membership { .. } => return None,
        };
        EthernetHeader { destination, source: mac, ether_type }.emit(header);
        Some(EthernetHeader::LEN + len)
    }
}

/// Returns the group for solicitations of an address (RFC 4291 2.7.1).
pub(super) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, (b as u16) << 8 | c as u16)
}

fn raw(mac: MacAddr) -> RawHardwareAddress {
    RawHardwareAddress::from_bytes(&mac.0)
}

fn emit_arp(
    operation: ArpOperation,
    mac: MacAddr,
    source: Ipv4Addr,
    target_mac: MacAddr,
    target: Ipv4Addr,
    body: &mut [u8],
) -> usize {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac.0),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(target_mac.0),
        target_protocol_addr: target,
    };
    repr.emit(&mut ArpPacket::new_unchecked(body));
    repr.buffer_len()
}

fn emit_ndp(source: Ipv6Addr, destination: Ipv6Addr, repr: NdiscRepr<'_>, body: &mut [u8]) -> usize {
    let icmp = Icmpv6Repr::Ndisc(repr);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit: NDP_HOP_LIMIT,
    };
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut *body));
    let payload = &mut body[ip.buffer_len()..][..icmp.buffer_len()];
    let mut packet = Icmpv6Packet::new_unchecked(payload);
    icmp.emit(&source, &destination, &mut packet, &ChecksumCapabilities::default());
    ip.buffer_len() + icmp.buffer_len()
}

/// Writes an IGMPv2 message, which IGMPv3 routers accept as well. smoltcp writes no IP options, but routers
/// only process messages with the router alert option (RFC 2236 section 2).
fn emit_igmp(source: Ipv4Addr, destination: Ipv4Addr, kind: u8, group: Ipv4Addr, body: &mut [u8]) -> usize {
    const HEADER: usize = 24;
    const LEN: usize = HEADER + 8;
    let packet = &mut body[..LEN];
    // Version and header length, traffic class of network control; DF; TTL 1, protocol 2; router alert.
    packet[..12].copy_from_slice(&[0x46, 0xc0, 0, LEN as u8, 0, 0, 0x40, 0, 1, 2, 0, 0]);
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    packet[20..24].copy_from_slice(&[0x94, 4, 0, 0]);
    packet[24..28].copy_from_slice(&[kind, 0, 0, 0]);
    packet[28..].copy_from_slice(&group.octets());
    let sum = !checksum::data(&packet[..HEADER]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let sum = !checksum::data(&packet[HEADER..]);
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
    LEN
}

/// Writes an MLDv2 report of one group (RFC 3810 5.2). smoltcp joins with the record for leaving.
fn emit_mld(source: Ipv6Addr, group: Ipv6Addr, change: Change, body: &mut [u8]) -> usize {
    const HEADER: usize = 40;
    const OPTIONS: usize = 8;
    const REPORT: usize = 8 + 20;
    let record = match change {
        Change::Joined => CHANGE_TO_EXCLUDE,
        Change::Left => CHANGE_TO_INCLUDE,
        Change::Member => MODE_IS_EXCLUDE,
    };
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: ALL_MLDV2_ROUTERS,
        next_header: IpProtocol::HopByHop,
        payload_len: OPTIONS + REPORT,
        hop_limit: 1,
    };
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut *body));
    // Next header ICMPv6; 8 bytes; router alert for MLD (RFC 2711 2.1); padding.
    body[HEADER..][..OPTIONS].copy_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
    let report = &mut body[HEADER + OPTIONS..][..REPORT];
    report[..8].copy_from_slice(&[MLDV2_REPORT, 0, 0, 0, 0, 0, 0, 1]);
    report[8..12].copy_from_slice(&[record, 0, 0, 0]);
    report[12..].copy_from_slice(&group.octets());
    let pseudo = checksum::pseudo_header_v6(&source, &ALL_MLDV2_ROUTERS, IpProtocol::Icmpv6, REPORT as u32);
    let sum = !checksum::combine(&[pseudo, checksum::data(report)]);
    report[2..4].copy_from_slice(&sum.to_be_bytes());
    HEADER + OPTIONS + REPORT
}

/// Returns the destination of an IP packet.
pub(super) fn destination_of(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Packet::new_checked(packet).ok()?.dst_addr().into()),
        6 => Some(Ipv6Packet::new_checked(packet).ok()?.dst_addr().into()),
        _ => None,
    }
}
