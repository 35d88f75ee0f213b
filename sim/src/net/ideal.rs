//! The completion time of a flow that has the network for itself, in closed form.
//!
//! Every packet is stored and forwarded over a path of links, and the sender always has another packet. A packet leaves hop `j` at
//! `max(departure of its predecessor from j, its own departure from j - 1) + time on the link`. With times in place of
//! numbers, `max` in place of sums and `+` in place of products this is a matrix for each packet, so a message of a million
//! equal packets is a power of one matrix. The delays of links only move all departures of a hop.

use std::collections::BTreeMap;

use roce_packet::{Aeth, Bth, Reth, icrc};

use super::frame::{buffered, wire_len};
use super::port::{Owner, Port};
use super::route::{Routes, other_end};
use super::settings::HostSettings;
use super::time::Time;
use super::topology::LinkSpec;
use super::workload::FlowSpec;

/// The largest number of different paths between two hosts that are compared.
const MOST_PATHS: usize = 64;

/// The links of a path, in their order.
type Links = Vec<LinkSpec>;

/// What decides how long a flow takes at least.
pub(super) struct Network<'a> {
    pub(super) routes: &'a Routes,
    pub(super) ports: &'a [Port],
    /// The port of each host.
    pub(super) hosts: &'a [u32],
    pub(super) settings: &'a HostSettings,
}

impl Network<'_> {
    /// The ideal completion time of each flow; `None` without a path. Of several paths the fastest counts.
    pub(super) fn times(&self, flows: &[FlowSpec]) -> Vec<Option<Time>> {
        let there = self.fastest(
            flows,
            |flow| (flow.source, flow.destination),
            |path, flow| self.flow_time(path, flow),
        );
        let back = self.fastest(
            flows,
            |flow| (flow.destination, flow.source),
            |path, flow| self.answer_time(path, flow),
        );
        there.into_iter().zip(back).map(|(there, back)| Some(there? + back?)).collect()
    }

    /// For each flow, the least of `time` over the paths between two hosts.
    fn fastest(
        &self,
        flows: &[FlowSpec],
        ends: impl Fn(&FlowSpec) -> (u32, u32),
        time: impl Fn(&[LinkSpec], &FlowSpec) -> Time,
    ) -> Vec<Option<Time>> {
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by_key(|flow| ends(&flows[*flow]).1);
        let mut times = vec![None; flows.len()];
        // The paths to one host are found together.
        let mut paths = Paths { network: self, to: 0, known: BTreeMap::new() };
        for number in order {
            let (from, to) = ends(&flows[number]);
            if paths.to != to {
                paths.to = to;
                paths.known.clear();
            }
            times[number] = paths.of_host(from).iter().map(|path| time(path, &flows[number])).min();
        }
        times
    }

    /// From the post to the arrival of the last byte in the engine of the receiver.
    fn flow_time(&self, path: &[LinkSpec], flow: &FlowSpec) -> Time {
        let (message, mtu) = (self.settings.message_bytes, self.settings.path_mtu.bytes() as u64);
        let packet = |payload: u64, is_first: bool| {
            let reth = if is_first { Reth::LEN } else { 0 };
            let datagram = Bth::LEN + reth + payload.next_multiple_of(4) as usize + icrc::LEN;
            Step::of(&self.link_times(path, flow.destination, wire_len(datagram)))
        };
        let message_of = |bytes: u64| {
            let packets = bytes.div_ceil(mtu);
            match packets {
                0 => None,
                1 => Some(packet(bytes, true)),
                _ => {
                    let first = packet(mtu, true);
                    let middle = packet(mtu, false).repeated(packets - 2);
                    let last = packet(bytes - (packets - 1) * mtu, false);
                    Some(first.then_some(middle).then(&last))
                }
            }
        };
        let whole = message_of(message.min(flow.bytes)).and_then(|one| one.repeated(flow.bytes / message));
        let all = match (whole, message_of(flow.bytes % message)) {
            (Some(whole), rest) => Some(whole.then_some(rest)),
            (None, rest) => rest,
        };
        self.delays(path) + Time::from_ps(all.map_or(0, |all| all.whole()))
    }

    /// From there to the completion: the last acknowledgement.
    fn answer_time(&self, path: &[LinkSpec], flow: &FlowSpec) -> Time {
        let len = wire_len(Bth::LEN + Aeth::LEN + icrc::LEN);
        let times = self.link_times(path, flow.source, len);
        times.into_iter().fold(self.delays(path), |sum, time| sum + Time::from_ps(time))
    }

    fn delays(&self, path: &[LinkSpec]) -> Time {
        path.iter().fold(self.settings.delay, |sum, link| sum + link.delay)
    }

    /// How long a frame occupies each link, and the receiver if that is slow; in picoseconds.
    fn link_times(&self, path: &[LinkSpec], receiver: u32, wire_len: u32) -> Vec<u64> {
        let mut times: Vec<u64> =
            path.iter().map(|link| Time::to_send(wire_len.into(), link.rate_bps).as_ps()).collect();
        let limit = self.settings.receive_limit;
        if let Some(limit) = limit.filter(|limit| limit.host.is_none_or(|host| host == receiver)) {
            times.push(Time::to_send(buffered(wire_len).into(), limit.rate_bps).as_ps());
        }
        times
    }
}

/// The different paths to one host.
struct Paths<'a> {
    network: &'a Network<'a>,
    to: u32,
    /// The paths from switches. A switch that is being looked at has none yet, so that loops end.
    known: BTreeMap<u32, Vec<Links>>,
}

impl Paths<'_> {
    fn of_host(&mut self, host: u32) -> Vec<Links> {
        let port = self.network.hosts.get(host as usize).copied();
        port.map_or_else(Vec::new, |port| self.through(port))
    }

    /// The paths that begin with the link of a port.
    fn through(&mut self, port: u32) -> Vec<Links> {
        let ports = self.network.ports;
        let link = ports[port as usize].spec;
        let rests = match ports[other_end(port) as usize].owner {
            Owner::Host(host) if host == self.to => return vec![vec![link]],
            Owner::Host(_) => return Vec::new(),
            Owner::Switch(switch) => self.of_switch(switch),
        };
        let with_link = |rest: &Links| std::iter::once(link).chain(rest.iter().copied()).collect();
        rests.iter().map(with_link).collect()
    }

    fn of_switch(&mut self, switch: u32) -> &[Links] {
        if !self.known.contains_key(&switch) {
            self.known.insert(switch, Vec::new());
            let mut found: Vec<Links> = Vec::new();
            for port in self.network.routes.ports(switch, self.to) {
                for path in self.through(*port) {
                    if found.len() < MOST_PATHS && !found.contains(&path) {
                        found.push(path);
                    }
                }
            }
            self.known.insert(switch, found);
        }
        self.known.get(&switch).map_or(&[], Vec::as_slice)
    }
}

/// A packet, or several one after the other: the time from the departure of their predecessor from hop `i` to their own from hop
/// `j`, for `i <= j`, along the slowest way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    hops: usize,
    times: Vec<u64>,
}

impl Step {
    /// One packet that takes so long on each link.
    fn of(links: &[u64]) -> Self {
        let hops = links.len();
        let mut times = vec![0; hops * hops];
        for from in 0..hops {
            let mut sum = 0_u64;
            for to in from..hops {
                sum = sum.saturating_add(links[to]);
                times[from * hops + to] = sum;
            }
        }
        Self { hops, times }
    }

    /// These packets, and others behind them.
    fn then(&self, behind: &Self) -> Self {
        let hops = self.hops;
        let mut times = vec![0; hops * hops];
        for from in 0..hops {
            for to in from..hops {
                let over =
                    |hop: usize| self.times[from * hops + hop].saturating_add(behind.times[hop * hops + to]);
                times[from * hops + to] = (from..=to).map(over).max().unwrap_or(0);
            }
        }
        Self { hops, times }
    }

    fn then_some(self, behind: Option<Self>) -> Self {
        behind.map_or_else(|| self.clone(), |behind| self.then(&behind))
    }

    /// As many of them one after the other.
    fn repeated(self, mut count: u64) -> Option<Self> {
        let (mut power, mut all) = (self, None);
        while count > 0 {
            if count & 1 == 1 {
                all = Some(match all {
                    None => power.clone(),
                    Some(all) => power.then(&all),
                });
            }
            power = power.then(&power);
            count >>= 1;
        }
        all
    }

    /// From the start to the departure from the last hop.
    fn whole(&self) -> u64 {
        self.hops.checked_sub(1).and_then(|last| self.times.get(last)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packet by packet.
    fn forwarded(packets: &[Vec<u64>]) -> u64 {
        let mut left = vec![0; packets[0].len()];
        for times in packets {
            let mut arrival = 0;
            for (left, time) in left.iter_mut().zip(times) {
                *left = arrival.max(*left) + time;
                arrival = *left;
            }
        }
        *left.last().unwrap()
    }

    #[test]
    fn powers_are_packets_one_after_the_other() {
        for links in [vec![5], vec![3, 7, 2], vec![2, 7, 3, 9, 1], vec![9, 1, 8, 1]] {
            let long: Vec<u64> = links.iter().map(|time| time * 2).collect();
            for count in [1_u64, 2, 3, 10, 77] {
                let mut packets = vec![long.clone()];
                packets.extend(vec![links.clone(); count as usize]);
                packets.push(long.clone());
                let step = Step::of(&long).then_some(Step::of(&links).repeated(count)).then(&Step::of(&long));
                assert_eq!(step.whole(), forwarded(&packets), "{links:?} {count}");
            }
        }
        assert_eq!(Step::of(&[1]).repeated(0), None);
    }
}
