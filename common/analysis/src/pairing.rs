//! Which two streams belong to one connection.
//!
//! A packet names only the queue pair that receives it. Two streams in opposite directions belong together if
//!
//! 1. connection management says so: REQ and REP name the queue pairs of both ends;
//! 2. answers in one stream have the PSNs of requests in the other. PSNs start at random numbers, so a few
//!    matches are proof unless several streams match;
//! 3. there is only one stream in each direction between the two hosts.

use std::collections::HashMap;
use std::net::IpAddr;

use roce_packet::mad::{CmMessage, CommId};
use roce_packet::{Direction, Psn, Qpn, Transport};

use crate::record::{CmRecord, Record, StreamId, is_connected};
use crate::stream::Streams;

/// Two streams of one connection; one of them may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The stream whose packet was captured first.
    pub forward: StreamId,
    /// The stream in the opposite direction.
    pub backward: Option<StreamId>,
}

/// Maximum number of streams with one PSN that an answer is compared with. More say nothing.
const MOST_CANDIDATES: usize = 4;

/// Pairs the streams of connected transports.
#[must_use]
pub fn pairs(records: &[Record], cm: &[CmRecord], streams: &Streams) -> Vec<Pair> {
    let mut partner = Partners::new(streams);
    partner.join_by_management(cm);
    partner.join_by_answers(records);
    partner.join_by_addresses();
    partner.into_pairs()
}

struct Partners<'a> {
    streams: &'a Streams,
    found: HashMap<StreamId, StreamId>,
}

impl<'a> Partners<'a> {
    fn new(streams: &'a Streams) -> Self {
        Self { streams, found: HashMap::new() }
    }

    /// Returns the streams that may belong to a connection.
    fn connected(&self) -> impl Iterator<Item = StreamId> + use<'_> {
        self.streams.iter().filter(|(_, stream)| stream.transport.is_none_or(is_connected)).map(|(id, _)| id)
    }

    fn join(&mut self, one: StreamId, other: StreamId) {
        if !self.found.contains_key(&one) && !self.found.contains_key(&other) {
            self.found.insert(one, other);
            self.found.insert(other, one);
        }
    }

    fn join_by_management(&mut self, cm: &[CmRecord]) {
        let mut ends: HashMap<(IpAddr, IpAddr, CommId), Qpn> = HashMap::new();
        let mut by_receiver: HashMap<(IpAddr, IpAddr, Qpn), StreamId> = HashMap::new();
        for (id, stream) in self.streams.iter() {
            by_receiver.insert((stream.key.source, stream.key.destination, stream.key.qpn), id);
        }
        for record in cm {
            match &*record.message {
                CmMessage::Req(req) => {
                    ends.insert((record.source, record.destination, req.local_comm_id), req.local_qpn);
                }
                CmMessage::Rep(rep) => {
                    let key = (record.destination, record.source, rep.remote_comm_id);
                    let Some(active) = ends.get(&key).copied() else { continue };
                    let to_passive = (record.destination, record.source, rep.local_qpn);
                    let to_active = (record.source, record.destination, active);
                    let (one, other) = (by_receiver.get(&to_passive), by_receiver.get(&to_active));
                    if let (Some(&one), Some(&other)) = (one, other) {
                        self.join(one, other);
                    }
                }
                _ => {}
            }
        }
    }

    fn join_by_answers(&mut self, records: &[Record]) {
        let mut requests: HashMap<(IpAddr, IpAddr, Psn), Vec<StreamId>> = HashMap::new();
        let mut votes: HashMap<(StreamId, StreamId), u32> = HashMap::new();
        for record in records {
            let Some((info, stream)) = record.info().zip(self.streams.get(record.stream)) else { continue };
            if !is_connected(info.transport) || !record.is_sound() {
                continue;
            }
            let key = stream.key;
            match info.direction {
                Direction::Request => {
                    let seen = requests.entry((key.source, key.destination, record.psn)).or_default();
                    if !seen.contains(&record.stream) && seen.len() <= MOST_CANDIDATES {
                        seen.push(record.stream);
                    }
                }
                Direction::Response => {
                    let seen = requests.get(&(key.destination, key.source, record.psn));
                    for &candidate in seen.into_iter().flatten() {
                        *votes.entry((record.stream, candidate)).or_default() += 1;
                    }
                }
                Direction::Cnp => {}
            }
        }
        let mut votes: Vec<_> = votes.into_iter().map(|(pair, count)| (count, pair)).collect();
        votes.sort_unstable_by(|a, b| b.cmp(a));
        for (_, (answers, requests)) in votes {
            self.join(answers, requests);
        }
    }

    fn join_by_addresses(&mut self) {
        let mut by_hosts: HashMap<(IpAddr, IpAddr), Vec<StreamId>> = HashMap::new();
        for id in self.connected() {
            if let Some(stream) = self.streams.get(id).filter(|_| !self.found.contains_key(&id)) {
                by_hosts.entry((stream.key.source, stream.key.destination)).or_default().push(id);
            }
        }
        let mut joined = Vec::new();
        for ((source, destination), there) in &by_hosts {
            if let ([one], Some([other])) =
                (&**there, by_hosts.get(&(*destination, *source)).map(Vec::as_slice))
            {
                joined.push((*one, *other));
            }
        }
        for (one, other) in joined {
            self.join(one, other);
        }
    }

    fn into_pairs(self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for forward in self.connected() {
            let backward = self.found.get(&forward).copied();
            // The other stream of a pair began later.
            if backward.is_none_or(|backward| backward > forward) && self.has_queue_pair(forward) {
                pairs.push(Pair { forward, backward });
            }
        }
        pairs
    }

    /// Returns whether a stream is that of a queue pair of applications: not of queue pair 1.
    fn has_queue_pair(&self, id: StreamId) -> bool {
        self.streams
            .get(id)
            .is_some_and(|stream| stream.key.qpn != Qpn::GSI && stream.transport != Some(Transport::Ud))
    }
}
