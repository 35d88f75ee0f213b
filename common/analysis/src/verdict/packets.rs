//! The packets that the checks of headers look at.

use std::collections::BTreeMap;

use roce_packet::Psn;

use super::judgement::Scene;
use crate::analysis::Analysis;
use crate::record::{Bits, Record, StreamId};

/// A PSN that differs by more than this from the one before belongs to another connection of the same queue
/// pairs.
const FAR: u32 = 1 << 20;

/// Returns the packets that an end sent, as the tap near it shows them, without copies of a mirror.
pub(super) fn sent_by<'a>(scene: &Scene<'a>, end: usize) -> Vec<&'a Record> {
    let stream = scene.connection.streams.get(end).copied().flatten();
    let view = scene.connection.view_of(end);
    let indices = view.map(|view| view.indices.as_slice()).unwrap_or_default();
    let records = indices.iter().filter_map(|index| scene.analysis.records.get(*index));
    records.filter(|record| Some(record.stream) == stream && is_original(record)).collect()
}

/// Returns the packets of the streams that are not those of a connection, such as datagrams, by stream.
pub(super) fn outside_connections(analysis: &Analysis) -> BTreeMap<StreamId, Vec<&Record>> {
    let mut is_connected = vec![false; analysis.streams.len()];
    for stream in analysis.connections.iter().flat_map(|connection| connection.streams).flatten() {
        if let Some(is_connected) = is_connected.get_mut(stream.0 as usize) {
            *is_connected = true;
        }
    }
    let mut streams: BTreeMap<StreamId, Vec<&Record>> = BTreeMap::new();
    for record in analysis.records.iter().filter(|record| is_original(record)) {
        if is_connected.get(record.stream.0 as usize) == Some(&false) {
            streams.entry(record.stream).or_default().push(record);
        }
    }
    streams
}

const fn is_original(record: &Record) -> bool {
    !record.bits.contains(Bits::COPY)
}

/// Returns whether the headers of a packet are those that its sender wrote, as far as one can see.
pub(super) const fn is_intact(record: &Record) -> bool {
    !record.bits.contains(Bits::BAD_ICRC)
}

/// Returns whether the second packet belongs to another connection of the same queue pairs: its PSN is far
/// from that of the packet before.
pub(super) const fn begins_again(before: Psn, psn: Psn) -> bool {
    before.distance_to(psn) > FAR && psn.distance_to(before) > FAR
}
