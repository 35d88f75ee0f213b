//! One JSON object per packet.

use roce_analysis::walk::{Part, Protocol};
use roce_capture::Direction;
use roce_packet::outer::Cut;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::flows::Mark;
use super::shown::Shown;
use crate::document::escaped;
use crate::parts::{JsonError, JsonValue, icrc_entries};

/// The format of each line; see docs/reference/json.md.
const SCHEMA: &str = "roce/dissect/1";

/// Returns the object of a packet on one line, without a line break at its end.
///
/// # Errors
///
/// Returns an error if the object cannot be serialized, which does not happen with any packet.
pub fn text(shown: &Shown<'_>) -> serde_json::Result<String> {
    Ok(escaped(serde_json::to_string(shown)?))
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schema", SCHEMA)?;
        self.capture_entries(&mut map)?;
        for part in self.walk.parts.iter().filter(|part| !self.is_outer(part)) {
            self.part_entries(part, &mut map)?;
        }
        self.own_entries(&mut map)?;
        map.end()
    }
}

impl Shown<'_> {
    /// Adds the entries from the capture file.
    fn capture_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let packet = self.packet;
        map.serialize_entry("frame.number", &packet.number)?;
        if let Some(time) = packet.time_ns {
            // A string, as in tshark, because a JSON number does not keep all of these digits.
            let text = format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
            map.serialize_entry("frame.time_epoch", &text)?;
        }
        map.serialize_entry("frame.len", &packet.original_len)?;
        map.serialize_entry("frame.cap_len", &packet.bytes.len())?;
        if let Some(interface) = packet.interface {
            map.serialize_entry("frame.interface_id", &interface)?;
        }
        if let Some(name) = packet.interface_name {
            map.serialize_entry("frame.interface_name", name)?;
        }
        if let Some(comment) = packet.comment {
            map.serialize_entry("frame.comment", comment)?;
        }
        match packet.direction {
            Direction::Unknown => Ok(()),
            Direction::Inbound => map.serialize_entry("roce.direction", "in"),
            Direction::Outbound => map.serialize_entry("roce.direction", "out"),
        }
    }

    /// Returns whether a part is listed in `roce.outer`: it belongs to a tunnel, or another part of its kind
    /// follows.
    fn is_outer(&self, part: &Part) -> bool {
        let is_repeated = |later: &Part| later.start > part.start && std::ptr::eq(later.header, part.header);
        part.is_outer || self.walk.parts.iter().any(is_repeated)
    }

    /// Adds the fields of a part.
    fn part_entries<M: SerializeMap>(&self, part: &Part, map: &mut M) -> Result<(), M::Error> {
        let bytes = self.walk.part_bytes(part);
        for field in part.header.fields {
            if let Some(value) = field.value(bytes) {
                map.serialize_entry(field.key, &JsonValue { field, value })?;
            }
        }
        Ok(())
    }

    /// Adds the entries that only this program has.
    fn own_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let walk = self.walk;
        match &walk.protocol {
            Protocol::Roce(_) => map.serialize_entry("roce.protocol", walk.roce_name())?,
            Protocol::Pause => map.serialize_entry("roce.protocol", "pause")?,
            Protocol::Other(name, _) => map.serialize_entry("roce.protocol", name)?,
        }
        let outer = walk.parts.iter().filter(|part| self.is_outer(part));
        let outer: Vec<_> = outer.map(|part| OuterPart { shown: self, part }).collect();
        if !outer.is_empty() {
            map.serialize_entry("roce.outer", &outer)?;
        }
        if let Some(packet) = walk.packet() {
            if let Some(info) = packet.info {
                map.serialize_entry("roce.opcode", info.name)?;
            }
            if let Some(message) = walk.cm {
                map.serialize_entry("roce.cm", message.name)?;
            }
            if let Some(len) = packet.payload_len {
                map.serialize_entry("roce.payload_len", &len)?;
            }
            icrc_entries(packet.icrc, map)?;
            if let Some(cut) = walk.outer.cut {
                let by = match cut {
                    Cut::Capture => "capture",
                    Cut::Mirror => "mirror",
                    Cut::Fragment => "fragment",
                };
                map.serialize_entry("roce.cut", by)?;
            }
        }
        if let Some(mark) = self.mark {
            map.serialize_entry("roce.mark", mark.name())?;
        }
        if let Some(Mark::Gap { first, count }) = self.mark {
            map.serialize_entry("roce.missing", &count)?;
            map.serialize_entry("roce.missing_psn", &first.get())?;
        }
        match (walk.error, &walk.protocol) {
            (Some(error), Protocol::Roce(_) | Protocol::Pause) => {
                map.serialize_entry("roce.error", &JsonError(error))
            }
            _ => Ok(()),
        }
    }
}

/// A header of a tunnel.
struct OuterPart<'a> {
    shown: &'a Shown<'a>,
    part: &'a Part,
}

impl Serialize for OuterPart<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.part.header.name)?;
        map.serialize_entry("offset", &self.part.start)?;
        self.shown.part_entries(self.part, &mut map)?;
        map.end()
    }
}
