//! Which two streams belong to one connection.
//!
//! A packet names only the queue pair that receives it. Two streams in opposite directions belong together if
//!
//! 1. connection management says so: REQ and REP name the queue pairs of both ends;
//! 2. answers in one stream have the PSNs of requests that were captured before them in the other. Some
//!    programs start all queue pairs at PSN 0, so several streams may match. Then the first request that has
//!    no answer yet counts, because answers mostly come in the order of the requests. If two streams match
//!    equally often, the one with the same UDP source port counts, which many NICs compute from both queue
//!    pairs;
//! 3. there is only one stream in each direction between the two hosts.

use std::collections::{BTreeMap, HashMap, VecDeque};
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
        let connected = self.streams.iter().filter(|(_, stream)| stream.transport.is_none_or(is_connected));
        // Other streams got all packets of those without any.
        connected.filter(|(_, stream)| stream.packets > 0).map(|(id, _)| id)
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
        let mut waiting: HashMap<(IpAddr, IpAddr, Psn), VecDeque<StreamId>> = HashMap::new();
        let mut votes: HashMap<(StreamId, StreamId), u32> = HashMap::new();
        let mut ports: HashMap<StreamId, u16> = HashMap::new();
        let alone = self.alone();
        for record in records.iter().filter(|record| !alone.contains_key(&record.stream)) {
            let Some((info, stream)) = record.info().zip(self.streams.get(record.stream)) else { continue };
            if !is_connected(info.transport) || !record.is_sound() {
                continue;
            }
            let key = stream.key;
            ports.entry(record.stream).or_insert(record.source_port);
            match info.direction {
                Direction::Request => {
                    let queue = waiting.entry((key.source, key.destination, record.psn)).or_default();
                    // Copies of a request wait once.
                    if queue.back() != Some(&record.stream) {
                        queue.push_back(record.stream);
                    }
                }
                Direction::Response => {
                    let queue = waiting.get_mut(&(key.destination, key.source, record.psn));
                    if let Some(first) = queue.and_then(VecDeque::pop_front) {
                        *votes.entry((record.stream, first)).or_default() += 1;
                    }
                }
                Direction::Cnp => {}
            }
        }
        let has_port = |one, other| ports.get(&one) == ports.get(&other);
        let mut votes: Vec<_> = votes
            .into_iter()
            .map(|((answers, requests), count)| (count, has_port(answers, requests), answers, requests))
            .collect();
        votes.sort_unstable_by(|a, b| b.cmp(a));
        self.join_best(&votes);
    }

    /// Joins streams, the clearest ones first: votes, whether the ports are equal, answers, requests.
    fn join_best(&mut self, votes: &[(u32, bool, StreamId, StreamId)]) {
        for rank in votes.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let mut choices: HashMap<StreamId, Vec<StreamId>> = HashMap::new();
            for &(_, _, answers, requests) in rank {
                if !self.found.contains_key(&answers) && !self.found.contains_key(&requests) {
                    choices.entry(answers).or_default().push(requests);
                }
            }
            let mut clear: Vec<_> = choices
                .into_iter()
                .filter_map(|(answers, requests)| match *requests {
                    [requests] => Some((answers, requests)),
                    // Several match equally well.
                    _ => None,
                })
                .collect();
            clear.sort_unstable();
            for (answers, requests) in clear {
                self.join(answers, requests);
            }
        }
    }

    /// Returns the streams that are the only ones in their direction between two hosts, each with the one of
    /// the other direction. Nothing else can be their partner, so their packets need not be compared, which
    /// is most of the time of a capture of one connection.
    fn alone(&self) -> BTreeMap<StreamId, StreamId> {
        let mut by_hosts: HashMap<(IpAddr, IpAddr), Vec<StreamId>> = HashMap::new();
        for id in self.connected() {
            if let Some(stream) = self.streams.get(id).filter(|_| !self.found.contains_key(&id)) {
                by_hosts.entry((stream.key.source, stream.key.destination)).or_default().push(id);
            }
        }
        let mut alone = BTreeMap::new();
        for ((source, destination), there) in &by_hosts {
            if let ([one], Some([other])) =
                (&**there, by_hosts.get(&(*destination, *source)).map(Vec::as_slice))
            {
                alone.insert(*one, *other);
            }
        }
        alone
    }

    fn join_by_addresses(&mut self) {
        for (one, other) in self.alone() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::records::Traffic;

    /// Returns the queue pairs of host 2 and host 1 of each pair.
    fn paired(traffic: &Traffic) -> Vec<(u32, Option<u32>)> {
        let qpn = |id: StreamId| traffic.streams.get(id).map_or(0, |stream| stream.key.qpn.get());
        let found = pairs(&traffic.records, &[], &traffic.streams);
        found.iter().map(|pair| (qpn(pair.forward), pair.backward.map(qpn))).collect()
    }

    #[test]
    fn queue_pairs_that_all_start_at_psn_0_are_paired_by_the_order_of_answers() {
        let mut traffic = Traffic::default();
        for psn in 0..20 {
            for qp in 0..50 {
                traffic.request(100 + qp, psn);
            }
            for qp in 0..50 {
                // Some answers overtake others.
                let qp = if psn % 5 == 4 { 49 - qp } else { qp };
                traffic.ack(500 + qp, psn);
            }
        }
        let expected: Vec<_> = (0..50).map(|qp| (100 + qp, Some(500 + qp))).collect();
        assert_eq!(paired(&traffic), expected);
    }

    #[test]
    fn streams_without_evidence_stay_alone() {
        let mut traffic = Traffic::default();
        for qp in 0..3 {
            traffic.request(100 + qp, 1000 * qp);
        }
        for qp in 0..3 {
            traffic.ack(500 + qp, 77_000 + qp);
        }
        let pairs = paired(&traffic);
        assert_eq!(pairs.len(), 6);
        assert!(pairs.iter().all(|(_, other)| other.is_none()), "{pairs:?}");
    }

    #[test]
    fn two_streams_that_are_alone_belong_together() {
        let mut traffic = Traffic::default();
        traffic.request(7, 1);
        traffic.ack(9, 77);
        assert_eq!(paired(&traffic), [(7, Some(9))]);
    }
}
