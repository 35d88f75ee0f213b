//! Changes to the addresses of a frame, and its ICRC.

use std::net::IpAddr;

use roce_packet::fields::{GRE, GRE_CHECKSUM, GRH, IPV4, IPV6, UDP};
use roce_packet::outer::{Foreign, IcrcForm, Link, Outer, OuterLayer};
use roce_packet::{EthernetHeader, IP_PROTOCOL_UDP, Ipv4View, Ipv6View, MacAddr, ROCE_UDP_PORT, icrc};

/// The changes of every frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewrite {
    pub(super) source_mac: Option<MacAddr>,
    pub(super) destination_mac: Option<MacAddr>,
    /// This address applies to packets of its IP version.
    pub(super) source_ip: Option<IpAddr>,
    pub(super) destination_ip: Option<IpAddr>,
    /// The UDP ports.
    pub(super) source_port: Option<u16>,
    pub(super) destination_port: Option<u16>,
    /// Whether to leave the ICRC unchanged.
    pub(super) keep_icrc: bool,
}

/// The result for the ICRC of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcrcChange {
    /// The frame is not RoCE, or the ICRC must be kept.
    Left,
    /// The frame was sent to the port of RoCE, but may not be RoCE.
    Uncertain,
    /// The ICRC was valid.
    Right,
    /// The ICRC was repaired.
    Repaired,
    /// The headers below the BTH are malformed, so the bytes that the ICRC covers are unknown.
    Impossible,
}

/// The positions of the outermost headers of a frame, whose addresses and ports are replaced.
#[derive(Clone, Copy, Debug)]
struct Layout {
    network: Network,
    network_offset: usize,
    /// The offset of TCP, UDP or ICMPv6, and the protocol number.
    transport: Option<(usize, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    /// The GRH of RoCE v1. Its addresses have the positions of IPv6, and no checksum covers them.
    Grh,
    Other,
}

impl Layout {
    fn of(outer: &Outer<'_>) -> Self {
        let layers = outer.layers();
        let is_network = |layer: &OuterLayer| layer.is(&IPV4) || layer.is(&IPV6) || layer.is(&GRH);
        let Some(index) = layers.iter().position(is_network) else {
            return Self { network: Network::Other, network_offset: 0, transport: None };
        };
        let (ip, behind) = (&layers[index], layers.get(index + 1));
        let end = ip.offset + ip.len;
        let (network, protocol) = match outer.layer_bytes(ip) {
            bytes if ip.is(&IPV4) => {
                (Network::Ipv4, Ipv4View::from_prefix(bytes).map(|(ip, _)| ip.protocol()))
            }
            bytes if ip.is(&IPV6) => {
                (Network::Ipv6, Ipv6View::from_prefix(bytes).map(|(ip, _)| ip.next_header()))
            }
            _ => return Self { network: Network::Grh, network_offset: ip.offset, transport: None },
        };
        let transport = match (behind, outer.foreign) {
            (Some(udp), _) if udp.is(&UDP) => Some((udp.offset, IP_PROTOCOL_UDP)),
            (None, Some(Foreign::Protocol(_))) => protocol.ok().map(|protocol| (end, protocol)),
            // Options and extension headers may stand between IP and UDP.
            _ => layers[index..].iter().find(|layer| layer.is(&UDP)).and_then(|udp| {
                let is_in_it =
                    layers[index + 1..].iter().take_while(|layer| !layer.is(&UDP)).all(is_extension);
                is_in_it.then_some((udp.offset, IP_PROTOCOL_UDP))
            }),
        };
        Self { network, network_offset: ip.offset, transport }
    }

    /// Returns the checksum that covers addresses and the transport header.
    fn transport_sum(&self) -> Option<Sum> {
        let (base, protocol) = self.transport?;
        let (at, zero_is_none) = match protocol {
            6 => (base + 16, false),
            IP_PROTOCOL_UDP => (base + 6, true),
            // ICMP of IPv4 does not cover addresses.
            58 => (base + 2, false),
            _ => return None,
        };
        Some(Sum { base, at, zero_is_none })
    }

    /// Returns the checksum of the IPv4 header.
    fn header_sum(&self) -> Option<Sum> {
        let base = self.network_offset;
        (self.network == Network::Ipv4).then_some(Sum { base, at: base + 10, zero_is_none: false })
    }
}

/// A checksum of 16-bit words.
#[derive(Clone, Copy, Debug)]
struct Sum {
    /// The offset of the words.
    base: usize,
    /// The offset of the checksum.
    at: usize,
    /// Whether 0 means that there is no checksum (RFC 768).
    zero_is_none: bool,
}

impl Rewrite {
    /// Returns whether any address changes.
    pub(super) const fn changes_addresses(&self) -> bool {
        self.source_mac.is_some()
            || self.destination_mac.is_some()
            || self.source_ip.is_some()
            || self.destination_ip.is_some()
            || self.source_port.is_some()
            || self.destination_port.is_some()
    }

    /// Changes a frame. Valid checksums stay valid, and wrong checksums stay wrong. Addresses and ports
    /// belong to the outermost headers, and the ICRC belongs to the innermost packet.
    pub(super) fn apply(&self, frame: &mut [u8]) -> IcrcChange {
        let outer = Outer::decode(frame, Link::Ethernet, frame.len(), ROCE_UDP_PORT);
        let layout = Layout::of(&outer);
        let is_roce = outer.transport.is_some() && outer.foreign.is_none();
        let is_certain = outer.is_certainly_roce();
        let is_in_tunnel = !outer.tunnel_layers().is_empty();
        if frame.len() >= EthernetHeader::LEN {
            for (mac, at) in [(self.destination_mac, 0), (self.source_mac, 6)] {
                if let Some(mac) = mac {
                    frame[at..at + 6].copy_from_slice(&mac.0);
                }
            }
        }
        for (address, ipv4_at, ipv6_at) in [(self.source_ip, 12, 8), (self.destination_ip, 16, 24)] {
            let Some(address) = address else { continue };
            set_address(frame, &layout, address, [ipv4_at, ipv6_at]);
        }
        if let Some((base, IP_PROTOCOL_UDP)) = layout.transport {
            for (port, at) in [(self.source_port, base), (self.destination_port, base + 2)] {
                if let Some(port) = port {
                    replace(frame, at, &port.to_be_bytes(), &[layout.transport_sum()]);
                }
            }
        }
        match (is_roce, is_certain) {
            _ if self.keep_icrc => IcrcChange::Left,
            (false, _) => IcrcChange::Left,
            (true, false) => IcrcChange::Uncertain,
            (true, true) => {
                let new_port = self.destination_port.filter(|_| !is_in_tunnel);
                repair_icrc(frame, new_port.unwrap_or(ROCE_UDP_PORT))
            }
        }
    }
}

/// Returns whether a layer may stand between IP and UDP of one packet.
fn is_extension(layer: &OuterLayer) -> bool {
    !(layer.is(&IPV4) || layer.is(&IPV6) || layer.is(&GRE))
}

fn set_address(frame: &mut [u8], layout: &Layout, address: IpAddr, [ipv4_at, ipv6_at]: [usize; 2]) {
    let at = layout.network_offset;
    let sums = [layout.header_sum(), layout.transport_sum()];
    match (layout.network, address) {
        (Network::Ipv4, IpAddr::V4(address)) => replace(frame, at + ipv4_at, &address.octets(), &sums),
        (Network::Ipv6, IpAddr::V6(address)) => replace(frame, at + ipv6_at, &address.octets(), &sums),
        (Network::Grh, address) => {
            replace(frame, at + ipv6_at, &roce_packet::Gid::from_ip(address).0, &[]);
        }
        _ => {}
    }
}

/// Computes the ICRC of a RoCE frame and writes it if it differs.
fn repair_icrc(frame: &mut [u8], port: u16) -> IcrcChange {
    let (at, computed, sums) = {
        let outer = Outer::decode(frame, Link::Ethernet, frame.len(), port);
        let Some(found) = outer.check_icrc() else { return IcrcChange::Impossible };
        if found.check.is_good() {
            return IcrcChange::Right;
        }
        // It is unspecified whether the ICRC covers the options of a packet, and the ICRC of the sender
        // matched neither way.
        debug_assert!(found.form == IcrcForm::AsFound || outer.extensions_len == 0);
        let at = outer.transport_offset + outer.transport_len - icrc::LEN;
        (at, found.check.computed, covering_sums(&outer))
    };
    replace(frame, at, &computed.to_le_bytes(), &sums);
    IcrcChange::Repaired
}

/// Returns the checksums that cover the datagram: those of UDP and GRE, of the packet itself and of its
/// tunnels.
fn covering_sums(outer: &Outer<'_>) -> Vec<Option<Sum>> {
    let layers = outer.layers();
    let sum = |(index, layer): (usize, &OuterLayer)| {
        if layer.is(&UDP) {
            return Some(Sum { base: layer.offset, at: layer.offset + 6, zero_is_none: true });
        }
        let gre = layers.get(index.checked_sub(1)?)?;
        let checksum = Sum { base: gre.offset, at: layer.offset, zero_is_none: false };
        layer.is(&GRE_CHECKSUM).then_some(checksum)
    };
    layers.iter().enumerate().map(sum).filter(Option::is_some).collect()
}

/// Replaces bytes and updates the checksums that cover them. Bytes beyond the end of the frame are left out.
fn replace(frame: &mut [u8], at: usize, bytes: &[u8], sums: &[Option<Sum>]) {
    for (at, byte) in (at..).zip(bytes) {
        let word = |frame: &[u8], sum: &Sum| {
            let begin = sum.base + (at - sum.base.min(at)) / 2 * 2;
            let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
            u16::from_be_bytes([byte(begin), byte(begin + 1)])
        };
        let before: Vec<u16> = sums.iter().flatten().map(|sum| word(frame, sum)).collect();
        let Some(place) = frame.get_mut(at) else { return };
        *place = *byte;
        for (sum, before) in sums.iter().flatten().zip(before) {
            let after = word(frame, sum);
            let Some(field) = frame.get_mut(sum.at..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
                continue;
            };
            if sum.zero_is_none && *field == [0, 0] {
                continue;
            }
            let updated = match update(u16::from_be_bytes(*field), before, after) {
                0 if sum.zero_is_none => 0xffff,
                updated => updated,
            };
            *field = updated.to_be_bytes();
        }
    }
}

/// Returns a checksum after a change of one word that it covers (RFC 1624).
const fn update(checksum: u16, before: u16, after: u16) -> u16 {
    if before == after {
        return checksum;
    }
    let sum = !checksum as u32 + !before as u32 + after as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}
