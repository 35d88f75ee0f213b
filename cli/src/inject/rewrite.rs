//! Changes to the addresses of a frame, and its ICRC.

use std::net::IpAddr;

use roce_packet::{
    Dissection, EthernetHeader, Frame, IP_PROTOCOL_UDP, MacAddr, NetworkView, ROCE_UDP_PORT, icrc,
};

/// What to change in every frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewrite {
    pub(super) source_mac: Option<MacAddr>,
    pub(super) destination_mac: Option<MacAddr>,
    /// Applies to packets of its IP version.
    pub(super) source_ip: Option<IpAddr>,
    pub(super) destination_ip: Option<IpAddr>,
    /// Ports of UDP.
    pub(super) source_port: Option<u16>,
    pub(super) destination_port: Option<u16>,
    /// Leave the ICRC as it is.
    pub(super) keep_icrc: bool,
}

/// What became of the ICRC of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcrcChange {
    /// The frame is not RoCE, or the ICRC is to be kept.
    Left,
    /// It was right.
    Right,
    /// It is right now.
    Repaired,
    /// The headers below the BTH are malformed, so what the ICRC covers cannot be told.
    Impossible,
}

/// Where the headers of a frame begin.
#[derive(Clone, Copy, Debug)]
struct Layout {
    network: Network,
    network_offset: usize,
    /// Where TCP, UDP or ICMPv6 begins, and which of them it is.
    transport: Option<(usize, u8)>,
    is_roce: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    /// The GRH of RoCE v1: the addresses are where IPv6 has them, without any checksum over them.
    Grh,
    Other,
}

impl Layout {
    fn of(frame: &[u8]) -> Self {
        let outer = Dissection::new(frame);
        let at = outer.network_offset;
        let (network, transport) = match outer.network {
            Some(NetworkView::Ipv4(ip)) if ip.fragment_offset() == 0 => {
                (Network::Ipv4, Some((at + ip.header_len(), ip.protocol())))
            }
            Some(NetworkView::Ipv4(_)) => (Network::Ipv4, None),
            Some(NetworkView::Ipv6(ip)) => {
                (Network::Ipv6, Some((at + roce_packet::Ipv6Header::LEN, ip.next_header())))
            }
            Some(NetworkView::Grh(_)) => (Network::Grh, None),
            None => (Network::Other, None),
        };
        let is_roce = !outer.is_not_roce() && outer.transport.is_some();
        Self { network, network_offset: at, transport, is_roce }
    }

    /// The checksum that covers addresses and the transport header.
    fn transport_sum(&self) -> Option<Sum> {
        let (base, protocol) = self.transport?;
        let (at, zero_is_none) = match protocol {
            6 => (base + 16, false),
            IP_PROTOCOL_UDP => (base + 6, true),
            // ICMP of IPv4 covers no addresses.
            58 => (base + 2, false),
            _ => return None,
        };
        Some(Sum { base, at, zero_is_none })
    }

    /// The checksum of the IPv4 header.
    fn header_sum(&self) -> Option<Sum> {
        let base = self.network_offset;
        (self.network == Network::Ipv4).then_some(Sum { base, at: base + 10, zero_is_none: false })
    }
}

/// A checksum of 16-bit words.
#[derive(Clone, Copy, Debug)]
struct Sum {
    /// Where the words begin.
    base: usize,
    /// Where the checksum is.
    at: usize,
    /// 0 stands for no checksum (RFC 768).
    zero_is_none: bool,
}

impl Rewrite {
    /// Whether any address changes.
    pub(super) const fn changes_addresses(&self) -> bool {
        self.source_mac.is_some()
            || self.destination_mac.is_some()
            || self.source_ip.is_some()
            || self.destination_ip.is_some()
            || self.source_port.is_some()
            || self.destination_port.is_some()
    }

    /// Changes a frame. Checksums that were right stay right; those that were wrong stay wrong.
    pub(super) fn apply(&self, frame: &mut [u8]) -> IcrcChange {
        let layout = Layout::of(frame);
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
        if self.keep_icrc || !layout.is_roce {
            return IcrcChange::Left;
        }
        repair_icrc(frame, self.destination_port.unwrap_or(ROCE_UDP_PORT), layout.transport_sum())
    }
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
fn repair_icrc(frame: &mut [u8], port: u16, sum: Option<Sum>) -> IcrcChange {
    let (at, computed) = {
        let Ok(parsed) = Frame::parse_on_port(frame, port) else { return IcrcChange::Impossible };
        let Ok(check) = parsed.verify_icrc() else { return IcrcChange::Impossible };
        if check.is_good() {
            return IcrcChange::Right;
        }
        (parsed.headers.len_bytes() + parsed.transport.len() - icrc::LEN, check.computed)
    };
    replace(frame, at, &computed.to_le_bytes(), &[sum]);
    IcrcChange::Repaired
}

/// Replaces bytes that these checksums cover. Bytes beyond the end of the frame are left out.
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

/// A checksum after a change of one word that it covers (RFC 1624).
const fn update(checksum: u16, before: u16, after: u16) -> u16 {
    if before == after {
        return checksum;
    }
    let sum = !checksum as u32 + !before as u32 + after as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}
