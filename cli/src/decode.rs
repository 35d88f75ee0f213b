//! Decodes packets and formats their parts, for `roce dissect`, `roce explain` and `roce inject`.

pub(super) use roce_analysis::walk;
use roce_capture::CapturedPacket;

pub(super) mod fields;
pub(super) mod json;
pub(super) mod text;

/// Takes a packet of a capture file. Returns `None` if its link cannot carry RoCE.
pub(super) fn captured<'a>(packet: &CapturedPacket<'a>) -> Option<walk::Framed<'a>> {
    let link = packet.link_type.link()?;
    Some(walk::Framed::new(packet.bytes, link, packet.original_len as usize))
}
