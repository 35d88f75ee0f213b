//! The streams of a capture: packets from one host to one queue pair of another.

use std::collections::HashMap;

use roce_packet::Transport;

use crate::record::{Record, StreamId, StreamKey};

/// A stream of packets.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Sender, receiver and receiving queue pair.
    pub key: StreamKey,
    /// Transport of its packets; `None` until a packet has a known opcode other than that of a CNP.
    pub transport: Option<Transport>,
    /// Number of packets.
    pub packets: u64,
}

/// All streams, with numbers in the order of their first packets.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    all: Vec<Stream>,
    numbers: HashMap<StreamKey, StreamId>,
}

impl Streams {
    /// Counts a packet, and returns the stream that it belongs to.
    pub(crate) fn add(&mut self, key: StreamKey, record: &Record) -> StreamId {
        let next = StreamId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        let id = *self.numbers.entry(key).or_insert_with(|| {
            self.all.push(Stream { key, transport: None, packets: 0 });
            next
        });
        if let Some(stream) = self.all.get_mut(id.0 as usize) {
            stream.packets += 1;
            let known = record.info().map(|info| info.transport).filter(|kind| *kind != Transport::Cnp);
            stream.transport = stream.transport.or(known);
        }
        id
    }

    /// Counts a packet of one stream in another.
    pub(crate) fn hand_over(&mut self, from: StreamId, to: StreamId) {
        if let Some(stream) = self.all.get_mut(from.0 as usize) {
            stream.packets = stream.packets.saturating_sub(1);
        }
        if let Some(stream) = self.all.get_mut(to.0 as usize) {
            stream.packets += 1;
        }
    }

    /// Returns a stream.
    #[must_use]
    pub fn get(&self, id: StreamId) -> Option<&Stream> {
        self.all.get(id.0 as usize)
    }

    /// Returns the number of a stream.
    #[must_use]
    pub fn find(&self, key: &StreamKey) -> Option<StreamId> {
        self.numbers.get(key).copied()
    }

    /// Returns all streams with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        (0_u32..).map(StreamId).zip(&self.all)
    }

    /// Returns the number of streams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is no stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
