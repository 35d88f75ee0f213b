//! The connections of a capture, and what they say.

use std::net::IpAddr;

use roce_analysis::Collector;
use roce_analysis::connection::Connection;
use roce_analysis::verdict::Outcome;
use roce_document::analyze::{self, Captures, Counters, NoSuchConnection, Report};
use roce_document::packet::analysable;
use roce_packet::ROCE_UDP_PORT;
use serde::Serialize;
use serde_json::json;

use super::store::Store;
use crate::program::PROGRAM;

/// The result of an analysis.
#[derive(Debug)]
pub(super) struct Analysed {
    pub(super) captures: Captures,
    /// The document of `roce analyze --json`.
    pub(super) document: String,
    pub(super) connections: Vec<ConnectionRow>,
    /// Number of the connection of each packet, from 1; 0 for packets without one.
    of_packets: Vec<u32>,
}

/// A connection in the list of connections.
#[derive(Debug, Serialize)]
pub(super) struct ConnectionRow {
    number: usize,
    a: IpAddr,
    b: IpAddr,
    a_qp: Option<u32>,
    b_qp: Option<u32>,
    packets: u64,
    verdicts: Verdicts,
}

/// Numbers of verdicts by their outcome.
#[derive(Debug, Default, Serialize)]
struct Verdicts {
    pass: u64,
    fail: u64,
    unknown: u64,
}

impl Analysed {
    /// Analyses the packets of a file with this name.
    pub(super) fn of(store: &Store, name: &str, is_whole: bool) -> Self {
        let mut collector = Collector::new(ROCE_UDP_PORT).with_captures(1);
        let mut unread = 0;
        for packet in store.iter() {
            match analysable(&packet, 0) {
                Some(packet) => collector.add(&packet),
                None => unread += 1,
            }
        }
        let files = vec![name.to_owned()];
        let captures = Captures { analysis: collector.analyze(), files, unread, is_whole };
        let (document, connections) = {
            let all = (1..).zip(&captures.analysis.connections).collect();
            let report = Report::new(&captures, &[], all, Counters::default());
            let document = analyze::text(&report, PROGRAM)
                .unwrap_or_else(|error| json!({ "error": error.to_string() }).to_string());
            (document, report.parts.iter().map(row).collect())
        };
        let of_packets = connections_of_packets(&captures, store.len());
        Self { document, connections, of_packets, captures }
    }

    /// Returns the number of the connection of the packet with this index, from 0.
    pub(super) fn connection_of(&self, index: usize) -> Option<usize> {
        let number = self.of_packets.get(index).copied().unwrap_or(0);
        (number > 0).then_some(number as usize)
    }

    /// Returns the connection with this number, from 1.
    pub(super) fn connection(&self, number: usize) -> Result<&Connection, String> {
        let connections = &self.captures.analysis.connections;
        let found = number.checked_sub(1).and_then(|index| connections.get(index));
        found.ok_or_else(|| NoSuchConnection { number, count: connections.len() }.to_string())
    }
}

fn row(part: &analyze::Part<'_>) -> ConnectionRow {
    let [a, b] = part.summary.ends;
    let mut verdicts = Verdicts::default();
    for verdict in &part.verdicts {
        match verdict.outcome {
            Outcome::Pass => verdicts.pass += 1,
            Outcome::Fail => verdicts.fail += 1,
            Outcome::Unknown => verdicts.unknown += 1,
        }
    }
    ConnectionRow {
        number: part.number,
        a: a.address,
        b: b.address,
        a_qp: a.qpn.map(|qpn| qpn.get()),
        b_qp: b.qpn.map(|qpn| qpn.get()),
        packets: part.summary.packets,
        verdicts,
    }
}

/// Returns the number of the connection of each packet.
fn connections_of_packets(captures: &Captures, count: usize) -> Vec<u32> {
    let mut of_packets = vec![0; count];
    let analysis = &captures.analysis;
    for (number, connection) in (1..).zip(&analysis.connections) {
        for index in connection.views.iter().flat_map(|view| &view.indices) {
            let place = analysis.place(*index).and_then(|place| usize::try_from(place.number).ok());
            let packet = place.and_then(|place| of_packets.get_mut(place.checked_sub(1)?));
            if let Some(packet) = packet {
                *packet = number;
            }
        }
    }
    of_packets
}
