//! The packets of a capture file in memory.

use std::collections::HashMap;

use roce_capture::{CapturedPacket, Direction, LinkType};

/// The packets of a capture file: their bytes one after the other, and where each begins.
#[derive(Debug, Default)]
pub(super) struct Store {
    bytes: Vec<u8>,
    packets: Vec<Stored>,
    names: Texts,
    comments: Texts,
}

/// A packet without its bytes.
#[derive(Clone, Copy, Debug)]
struct Stored {
    time_ns: Option<u64>,
    start: usize,
    len: u32,
    original_len: u32,
    link_type: LinkType,
    interface: Option<u32>,
    /// Numbers of the name of the interface and of the comment.
    name: Option<u32>,
    comment: Option<u32>,
    direction: Direction,
}

impl Store {
    /// Takes the next packet of the file.
    pub(super) fn add(&mut self, packet: &CapturedPacket<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet.bytes);
        self.packets.push(Stored {
            time_ns: packet.time_ns,
            start,
            // The reader refuses longer packets.
            len: u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX),
            original_len: packet.original_len,
            link_type: packet.link_type,
            interface: packet.interface,
            name: packet.interface_name.map(|name| self.names.number(name)),
            comment: packet.comment.map(|comment| self.comments.number(comment)),
            direction: packet.direction,
        });
    }

    /// Returns the number of packets.
    pub(super) const fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns the packet with this index, from 0.
    pub(super) fn get(&self, index: usize) -> Option<CapturedPacket<'_>> {
        let stored = self.packets.get(index)?;
        let end = stored.start.checked_add(stored.len as usize)?;
        Some(CapturedPacket {
            number: index as u64 + 1,
            time_ns: stored.time_ns,
            link_type: stored.link_type,
            interface: stored.interface,
            interface_name: stored.name.and_then(|number| self.names.get(number)),
            direction: stored.direction,
            comment: stored.comment.and_then(|number| self.comments.get(number)),
            original_len: stored.original_len,
            bytes: self.bytes.get(stored.start..end)?,
        })
    }

    /// Returns the packets in the order of the file.
    pub(super) fn iter(&self) -> impl Iterator<Item = CapturedPacket<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Returns the time of the first packet in nanoseconds.
    pub(super) fn first_ns(&self) -> Option<u64> {
        self.packets.first()?.time_ns
    }
}

/// Texts of which many are equal.
#[derive(Debug, Default)]
struct Texts {
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Texts {
    /// Returns the number of a text.
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    fn get(&self, number: u32) -> Option<&str> {
        self.texts.get(number as usize).map(String::as_str)
    }
}
