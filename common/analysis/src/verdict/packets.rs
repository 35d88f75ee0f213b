//! The packets that the checks of headers look at.

use std::collections::BTreeMap;
use std::net::IpAddr;

use roce_packet::Qpn;
use roce_packet::mad::CmMessage;

use super::judgement::Scene;
use crate::analysis::Analysis;
use crate::record::{Bits, Place, Record, StreamId};

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
    !record.is_damaged()
}

/// Tells where another connection of the same queue pairs begins.
pub(super) struct Restarts {
    /// The messages of connection management that name one of the queue pairs, in order.
    messages: Vec<Place>,
}

impl Restarts {
    pub(super) fn new(scene: &Scene<'_>) -> Self {
        let is_end = |source: IpAddr, qpn: Qpn| {
            let ends = &scene.connection.ends;
            ends.iter().any(|end| end.address == source && end.qpn == Some(qpn))
        };
        let own = scene.analysis.cm.iter().filter(|record| match &*record.message {
            CmMessage::Req(req) => is_end(record.source, req.local_qpn),
            CmMessage::Rep(rep) => is_end(record.source, rep.local_qpn),
            _ => false,
        });
        let mut messages: Vec<Place> = own.map(|record| record.place).collect();
        messages.sort_unstable();
        Self { messages }
    }

    /// Returns whether the second packet belongs to another connection than the one before: connection
    /// management set it up in between, or its PSN is far away.
    pub(super) fn is_between(&self, before: &Record, now: &Record) -> bool {
        let next = self.messages.partition_point(|message| *message <= before.place);
        let is_set_up = self.messages.get(next).is_some_and(|message| *message < now.place);
        let (there, back) = (before.psn.distance_to(now.psn), now.psn.distance_to(before.psn));
        is_set_up || there > FAR && back > FAR
    }
}
