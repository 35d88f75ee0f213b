//! The ladder of a flow: its packets as both hosts saw them.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use roce_analysis::connection::Connection;
use roce_analysis::ladder::ladder;
use roce_analysis::{Collector, Packet};
use roce_packet::outer::Link;
use roce_packet::{Path, Qpn, ROCE_UDP_PORT};
use roce_scenario::Scenario;
use roce_sim::net::{Captured, CapturedContent, FlowResult, NodeKind, host_address};

use super::capture::frame_bytes;

/// Rows of the ladder, as many as `roce ladder` draws by default.
const ROWS: usize = 60;
/// Maximum number of packets, which take about 200 MB. A ladder of the packets after them would be folded.
const MOST_PACKETS: u64 = 1_000_000;

/// The packets between the hosts of a flow, at the ports of both.
pub(super) struct Observed {
    flow: u32,
    /// Source and destination, by their numbers.
    hosts: [u32; 2],
    /// The port of each host.
    ports: [(u32, String); 2],
    /// Number of packets at each port.
    counts: [u64; 2],
    collector: Collector,
}

impl Observed {
    /// Observes the flow with this number of a scenario.
    pub(super) fn new(scenario: &Scenario, flow: u32) -> anyhow::Result<Self> {
        let Some(spec) = scenario.flows.get(flow as usize) else {
            let count = scenario.flows.len();
            bail!("--ladder: there is no flow {flow}; they are numbered from 0, and there are {count}");
        };
        let hosts = [spec.source, spec.destination];
        let topology = &scenario.topology;
        let port = |host: u32| {
            let mut nodes = topology.nodes.iter().filter(|node| node.kind == NodeKind::Host);
            let host = nodes.nth(host as usize)?;
            Some((topology.port_named(&host.name)?, host.name.clone()))
        };
        let ports = port(spec.source).zip(port(spec.destination)).context("--ladder: a host has no link")?;
        let ports = [ports.0, ports.1];
        let collector = Collector::new(ROCE_UDP_PORT).with_captures(2);
        Ok(Self { flow, hosts, ports, counts: [0; 2], collector })
    }

    /// The ports whose frames it needs, with their names.
    pub(super) const fn ports(&self) -> &[(u32, String); 2] {
        &self.ports
    }

    /// Adds frames in the order of their times.
    pub(super) fn add(&mut self, frames: &[Captured]) {
        let [source, destination] = self.hosts.map(host_address);
        let is_between = |path: &Path| {
            let ends = [path.source, path.destination];
            ends == [source, destination] || ends == [destination, source]
        };
        for frame in frames {
            let CapturedContent::Datagram { path, .. } = &frame.content else { continue };
            let side = self.ports.iter().position(|(port, _)| *port == frame.port);
            let (Some(side), true) = (side, is_between(path)) else { continue };
            let (Some(bytes), Some(count)) = (frame_bytes(&frame.content), self.counts.get_mut(side)) else {
                continue;
            };
            *count += 1;
            if *count > MOST_PACKETS {
                continue;
            }
            self.collector.add(&Packet {
                capture: side as u16,
                interface: 0,
                number: *count,
                time_ns: Some(frame.time.as_ns()),
                link: Link::Ethernet,
                wire_len: bytes.len(),
                is_dropped: false,
                bytes: &bytes,
            });
        }
    }

    /// Returns the ladder of the flow as text, with a title.
    pub(super) fn text(self, flows: &[FlowResult]) -> anyhow::Result<String> {
        let result = flows.get(self.flow as usize).context("the flow has no result")?;
        let [source, destination] = self.hosts.map(host_address);
        let [source_qpn, destination_qpn] = result.queue_pairs;
        let ends = [(source, source_qpn), (destination, destination_qpn)];
        let analysis = self.collector.analyze();
        let [(_, from), (_, to)] = &self.ports;
        let mut text = format!("Flow {} from {from} to {to}: {}\n", self.flow, result.state.name());
        match analysis.connections.iter().find(|connection| joins(connection, &ends)) {
            Some(connection) => text.push_str(&ladder(&analysis, connection, ROWS).to_text()),
            None => text.push_str("No packet of the flow was captured.\n"),
        }
        let most = self.counts.into_iter().max().unwrap_or(0);
        if most > MOST_PACKETS {
            text.push_str(&format!("Drawn are the first {MOST_PACKETS} of {most} packets at a port.\n"));
        }
        Ok(text)
    }
}

/// Returns whether a connection has these ends, in either order. An end to which no packet was captured has
/// no queue pair.
fn joins(connection: &Connection, ends: &[(IpAddr, Qpn); 2]) -> bool {
    let [one, other] = ends;
    let is = |number: usize, (address, qpn): &(IpAddr, Qpn)| {
        let end = connection.ends.get(number);
        end.is_some_and(|end| end.address == *address && end.qpn.is_none_or(|own| own == *qpn))
    };
    is(0, one) && is(1, other) || is(0, other) && is(1, one)
}
