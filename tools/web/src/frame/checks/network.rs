//! The checks of the headers before the BTH.

use roce_analysis::walk::Walk;
use roce_packet::fields::{GRH, IPV4, IPV6, UDP};
use roce_packet::outer::Cut;
use roce_packet::{
    Grh, GrhView, Ipv4Header, Ipv4View, Ipv6Header, Ipv6View, NetworkView, ROCE_UDP_PORT, UdpHeader, UdpView,
};

use super::check::{Check, State};

pub(super) fn check(walk: &Walk<'_>, checks: &mut Vec<Check>) {
    match walk.outer.network {
        Some(NetworkView::Ipv4(ip)) => {
            checks.push(ipv4_length(walk, ip));
            checks.push(ipv4_checksum(walk, ip));
            checks.push(ipv4_options(ip));
            checks.push(ipv4_fragment(ip));
        }
        Some(NetworkView::Ipv6(ip)) => checks.push(ipv6_length(walk, ip)),
        Some(NetworkView::Grh(grh)) => checks.push(grh_length(walk, grh)),
        None => {}
    }
    match walk.outer.udp {
        Some(udp) => {
            checks.push(port(udp));
            checks.push(udp_length(udp, ip_payload(walk)));
            checks.push(udp_checksum(walk, udp));
        }
        None => {
            let first = walk.parts.first().filter(|part| std::ptr::eq(part.header, &UDP));
            let udp = first.and_then(|part| UdpView::from_prefix(walk.part_bytes(part)).ok());
            if let Some((udp, _)) = udp {
                checks.push(port(udp));
                checks.push(udp_length(udp, Some(walk.bytes.len())));
            }
        }
    }
}

/// Compares the length in the header of layer 3, which itself has `least` bytes, with the bytes that are
/// present.
fn length(walk: &Walk<'_>, rule: &'static str, announced: usize, least: usize) -> Check {
    let subject = ("ip_length", "IP length", rule);
    if announced < least {
        let text = format!("The header announces {announced} bytes, fewer than its own {least}.");
        return Check::new(subject, State::Bad, text);
    }
    let present = walk.bytes.len().saturating_sub(walk.outer.network_offset);
    match present.checked_sub(announced) {
        // Only a capture file says that it keeps the beginning of a packet.
        None if walk.outer.cut == Some(Cut::Capture) => {
            let text = format!("The header announces {announced} bytes, and the capture kept {present}.");
            Check::new(subject, State::Unknown, text)
        }
        None => {
            let text = format!("The header announces {announced} bytes, but {present} are here.");
            Check::new(subject, State::Bad, text)
        }
        Some(0) => {
            let text = format!("The header announces {announced} bytes, and all are here.");
            Check::new(subject, State::Good, text)
        }
        Some(more) => {
            let text = format!(
                "The header announces {announced} bytes. After the packet, {more} bytes follow that do not \
                 belong to it, such as Ethernet padding."
            );
            Check::new(subject, State::Good, text)
        }
    }
}

fn ipv4_length(walk: &Walk<'_>, ip: &Ipv4View) -> Check {
    length(walk, IPV4.rule, ip.total_length().into(), ip.header_len().max(Ipv4Header::LEN))
}

fn ipv6_length(walk: &Walk<'_>, ip: &Ipv6View) -> Check {
    length(walk, IPV6.rule, Ipv6Header::LEN.saturating_add(ip.payload_length().into()), Ipv6Header::LEN)
}

fn grh_length(walk: &Walk<'_>, grh: &GrhView) -> Check {
    length(walk, GRH.rule, Grh::LEN.saturating_add(grh.payload_length().into()), Grh::LEN)
}

fn ipv4_checksum(walk: &Walk<'_>, ip: &Ipv4View) -> Check {
    let subject = ("ip_checksum", "IPv4 header checksum", "RFC 791 section 3.1");
    let base = walk.outer.network_offset;
    let (start, end) = (base.saturating_add(Ipv4Header::LEN), base.saturating_add(ip.header_len()));
    let options = match walk.bytes.get(start..end) {
        Some(options) => options,
        None if end > start => {
            return Check::new(subject, State::Unknown, "The options of the header are not all here.");
        }
        // The header length is below 20 bytes, which another check reports.
        None => &[],
    };
    let (found, computed) = (ip.checksum(), ip.computed_checksum(options));
    match ip.checksum_is_valid(options) {
        true => {
            let text = format!("The checksum is 0x{found:04x}, as computed from the header.");
            Check::new(subject, State::Good, text)
        }
        false => {
            let text = format!("The checksum is 0x{found:04x}, but the header gives 0x{computed:04x}.");
            Check::new(subject, State::Bad, text)
        }
    }
}

fn ipv4_options(ip: &Ipv4View) -> Check {
    let subject = ("ip_options", "IPv4 options", "IBTA A17.3");
    match ip.header_len() {
        Ipv4Header::LEN => Check::new(subject, State::Good, "The header has 20 bytes, so it has no options."),
        other => {
            let text = format!("The header says that it has {other} bytes. RoCE has no options, so 20.");
            Check::new(subject, State::Bad, text)
        }
    }
}

fn ipv4_fragment(ip: &Ipv4View) -> Check {
    let subject = ("ip_fragment", "Not a fragment", "IBTA A17.3");
    match (ip.more_fragments(), ip.fragment_offset()) {
        (false, 0) => Check::new(subject, State::Good, "The packet is not a fragment."),
        (is_followed, offset) => {
            let place = if is_followed { "more fragments follow" } else { "it is the last one" };
            let text = format!(
                "This is the fragment that begins at byte {offset} of a packet, and {place}. RoCE packets are \
                 never fragmented."
            );
            Check::new(subject, State::Bad, text)
        }
    }
}

/// Returns the number of bytes that the IP header leaves for UDP.
fn ip_payload(walk: &Walk<'_>) -> Option<usize> {
    let outer = &walk.outer;
    let announced = match outer.network? {
        NetworkView::Ipv4(ip) => usize::from(ip.total_length()),
        NetworkView::Ipv6(ip) => Ipv6Header::LEN.saturating_add(ip.payload_length().into()),
        NetworkView::Grh(_) => return None,
    };
    announced.checked_sub(outer.udp_offset.checked_sub(outer.network_offset)?)
}

fn port(udp: &UdpView) -> Check {
    let port = udp.destination_port();
    let text = match port {
        ROCE_UDP_PORT => "The destination port is 4791, that of RoCE v2.".to_owned(),
        _ => format!("The destination port is {port}. Only packets to port 4791 are RoCE v2."),
    };
    Check::new(("udp_port", "UDP destination port", "IBTA A17.3"), State::of(port == ROCE_UDP_PORT), text)
}

/// Compares the length with `room`, the number of bytes that the header before UDP leaves.
fn udp_length(udp: &UdpView, room: Option<usize>) -> Check {
    let subject = ("udp_length", "UDP length", UDP.rule);
    let len = usize::from(udp.length());
    match room {
        Some(room) if room == len && len >= UdpHeader::LEN => {
            let text = format!("The UDP header announces {len} bytes, and the packet has {room} for it.");
            Check::new(subject, State::Good, text)
        }
        Some(room) => {
            let text = format!("The UDP header announces {len} bytes, but the packet has {room} for it.");
            Check::new(subject, State::Bad, text)
        }
        None => {
            let text = format!("The UDP header announces {len} bytes, more than the IP header leaves.");
            Check::new(subject, State::Bad, text)
        }
    }
}

fn udp_checksum(walk: &Walk<'_>, udp: &UdpView) -> Check {
    let subject = ("udp_checksum", "UDP checksum", UDP.rule);
    let found = udp.checksum();
    if found == 0 {
        let text = "The checksum is 0: the sender computed none, as RoCE NICs do.";
        return Check::new(subject, State::Good, text);
    }
    match computed_checksum(walk, udp) {
        None => Check::new(subject, State::Unknown, "Not all bytes that the checksum covers are here."),
        Some(computed) if computed == found => {
            let text = format!("The checksum is 0x{found:04x}, as computed from the packet.");
            Check::new(subject, State::Good, text)
        }
        Some(computed) => {
            let text = format!(
                "The checksum is 0x{found:04x}, but the packet gives 0x{computed:04x}. Receivers of RoCE \
                 accept any value, and most senders write 0."
            );
            Check::new(subject, State::Bad, text)
        }
    }
}

fn computed_checksum(walk: &Walk<'_>, udp: &UdpView) -> Option<u16> {
    let (source, destination) = walk.outer.addresses()?;
    let base = walk.outer.udp_offset;
    let payload =
        walk.bytes.get(base.checked_add(UdpHeader::LEN)?..base.checked_add(udp.length().into())?)?;
    let header = UdpHeader {
        source_port: udp.source_port(),
        destination_port: udp.destination_port(),
        length: udp.length(),
        checksum: 0,
    };
    header.compute_checksum(source, destination, payload)
}
