//! A frame as text for other programs.

use std::fmt::Write as _;

use roce_analysis::walk::Walk;
use roce_packet::fields::{ETHERNET, ETHERNET_TRAILER, Header, IPV4, IPV6, UDP, VLAN};
use roce_packet::{EthernetView, Ipv4View, Ipv6View, UdpView, VlanView};

use super::input::{Input, Start, hex};

/// Writes a frame in one of the four formats.
pub(super) fn export(input: &Input, format: &str) -> Result<String, String> {
    match format {
        "hex" => Ok(dump(&input.bytes)),
        "rust" => Ok(rust(input)),
        "scapy" => Ok(scapy(input)),
        "command" => Ok(command(input)),
        other => Err(format!("`{other}` is not a format; write hex, rust, scapy or command")),
    }
}

/// Writes bytes like xxd.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, line) in bytes.chunks(16).enumerate() {
        let pairs: Vec<_> = line.chunks(2).map(hex).collect();
        let signs: String = line
            .iter()
            .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' })
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:08x}: {:<39}  {signs}", index * 16, pairs.join(" "));
    }
    text
}

/// Writes bytes as a constant.
fn rust(input: &Input) -> String {
    let bytes = &input.bytes;
    let walk = input.walk();
    let mut text = String::new();
    if let Some(info) = walk.packet().and_then(|packet| packet.info) {
        let _ = writeln!(text, "/// {}.", info.name);
    }
    let _ = writeln!(text, "const FRAME: [u8; {}] = [", bytes.len());
    for line in bytes.chunks(16) {
        let numbers: Vec<_> = line.iter().map(|byte| format!("0x{byte:02x}")).collect();
        let _ = writeln!(text, "    {},", numbers.join(", "));
    }
    text + "];\n"
}

/// Writes the command that explains the frame.
fn command(input: &Input) -> String {
    let (bytes, start) = match input.start {
        // The command takes such a packet without its UDP header.
        Start::Udp => (input.bytes.get(roce_packet::UdpHeader::LEN..).unwrap_or_default(), Start::Bth),
        start => (input.bytes.as_slice(), start),
    };
    format!("roce explain --from {} {}", start.name(), hex(bytes))
}

/// Writes a script for scapy, with the layers that scapy itself has and the rest as bytes.
fn scapy(input: &Input) -> String {
    let walk = input.walk();
    let (mut layers, end) = layers(&walk);
    let trailer = walk.parts.last().filter(|part| is(part.header, &ETHERNET_TRAILER) && !layers.is_empty());
    let trailer_start = trailer.map_or(input.bytes.len(), |part| part.start);
    let load = input.bytes.get(end..trailer_start).unwrap_or_default();
    layers.push(Layer { class: "Raw", arguments: format!("bytes.fromhex(\"{}\")", hex(load)) });
    if let Some(part) = trailer {
        let bytes = hex(walk.part_bytes(part));
        layers.push(Layer { class: "Padding", arguments: format!("bytes.fromhex(\"{bytes}\")") });
    }
    let classes: Vec<_> = layers.iter().map(|layer| layer.class).collect();
    let calls: Vec<_> = layers.iter().map(|layer| format!("{}({})", layer.class, layer.arguments)).collect();
    format!(
        "from scapy.all import {}\n\nframe = (\n    {}\n)\nassert bytes(frame).hex() == \"{}\"\n",
        classes.join(", "),
        calls.join("\n    / "),
        hex(&input.bytes)
    )
}

/// A layer of scapy.
struct Layer {
    class: &'static str,
    arguments: String,
}

fn is(one: &Header, other: &'static Header) -> bool {
    std::ptr::eq(one, other)
}

/// Returns the layers up to UDP, and the offset at which they end. A packet with an unusual header keeps the
/// rest as bytes.
fn layers(walk: &Walk<'_>) -> (Vec<Layer>, usize) {
    let mut layers: Vec<Layer> = Vec::new();
    let mut end = 0;
    for part in &walk.parts {
        // Classes are imported once, so a second header of a kind stays in the bytes.
        let layer = layer(part.header, walk.part_bytes(part));
        let Some(layer) =
            layer.filter(|layer| part.start == end && layers.iter().all(|it| it.class != layer.class))
        else {
            break;
        };
        layers.push(layer);
        end = part.start.saturating_add(part.len);
    }
    (layers, end)
}

/// Returns the layer of a header, with every field given, so that scapy computes none.
fn layer(header: &Header, bytes: &[u8]) -> Option<Layer> {
    let (class, arguments) = if is(header, &ETHERNET) {
        let (view, _) = EthernetView::from_prefix(bytes).ok()?;
        let (destination, source) = (view.destination(), view.source());
        ("Ether", format!("dst=\"{destination}\", src=\"{source}\", type={}", view.ether_type()))
    } else if is(header, &VLAN) {
        let (view, _) = VlanView::from_prefix(bytes).ok()?;
        let tag = view.tag();
        // The names of the fields for DEI differ between versions of scapy.
        if tag.dei {
            return None;
        }
        ("Dot1Q", format!("prio={}, vlan={}, type={}", tag.pcp, tag.vid, view.ether_type()))
    } else if is(header, &IPV4) {
        ("IP", ipv4(Ipv4View::from_prefix(bytes).ok()?.0)?)
    } else if is(header, &IPV6) {
        let (view, _) = Ipv6View::from_prefix(bytes).ok()?;
        let arguments = format!(
            "version={}, tc=0x{:02x}, fl=0x{:05x}, plen={}, nh={}, hlim={}, src=\"{}\", dst=\"{}\"",
            view.version(),
            view.traffic_class(),
            view.flow_label(),
            view.payload_length(),
            view.next_header(),
            view.hop_limit(),
            view.source(),
            view.destination()
        );
        ("IPv6", arguments)
    } else if is(header, &UDP) {
        let (view, _) = UdpView::from_prefix(bytes).ok()?;
        let arguments = format!(
            "sport={}, dport={}, len={}, chksum=0x{:04x}",
            view.source_port(),
            view.destination_port(),
            view.length(),
            view.checksum()
        );
        ("UDP", arguments)
    } else {
        return None;
    };
    Some(Layer { class, arguments })
}

/// Returns the fields of an IPv4 header, unless it has options.
fn ipv4(view: &Ipv4View) -> Option<String> {
    let header_len = view.header_len();
    if header_len != roce_packet::Ipv4Header::LEN {
        return None;
    }
    let flags = u8::from(view.reserved_flag()) << 2
        | u8::from(view.dont_fragment()) << 1
        | u8::from(view.more_fragments());
    Some(format!(
        "version={}, ihl={}, tos=0x{:02x}, len={}, id=0x{:04x}, flags={flags}, frag={}, ttl={}, proto={}, \
         chksum=0x{:04x}, src=\"{}\", dst=\"{}\"",
        view.version(),
        header_len / 4,
        view.traffic_class(),
        view.total_length(),
        view.identification(),
        view.fragment_offset() / 8,
        view.ttl(),
        view.protocol(),
        view.checksum(),
        view.source(),
        view.destination()
    ))
}
