//! The headers of captured packets.

use roce_analysis::Packet;
use roce_analysis::walk::{Framed, Walk};
use roce_capture::CapturedPacket;

/// Takes a packet of a capture file. Returns `None` if its link cannot carry RoCE.
#[must_use]
pub fn captured<'a>(packet: &CapturedPacket<'a>) -> Option<Framed<'a>> {
    let link = packet.link_type.link()?;
    Some(Framed::new(packet.bytes, link, packet.original_len as usize))
}

/// Decodes the headers of a packet of a capture file. `port` is the UDP port of RoCE v2. A packet of an
/// unknown link type has no headers, and its protocol says so.
#[must_use]
pub fn walk<'a>(packet: &CapturedPacket<'a>, port: u16) -> Walk<'a> {
    match captured(packet) {
        Some(framed) => Walk::new(framed, port),
        None => Walk::unread_link(&packet.link_type),
    }
}

/// Returns a packet of a capture file as an analysis takes it, or `None` if its link cannot carry RoCE.
/// `capture` is the index of the file.
#[must_use]
pub fn analysable<'a>(packet: &CapturedPacket<'a>, capture: u16) -> Option<Packet<'a>> {
    let framed = captured(packet)?;
    Some(Packet {
        capture,
        interface: u16::try_from(packet.interface.unwrap_or(0)).unwrap_or(u16::MAX),
        number: packet.number,
        time_ns: packet.time_ns,
        link: framed.link(),
        wire_len: packet.original_len as usize,
        is_dropped: packet.is_dropped(),
        bytes: packet.bytes,
    })
}
