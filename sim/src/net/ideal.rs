//! The completion time of a flow alone in the network, in closed form.
//!
//! Every packet is stored and forwarded over a path of links, and the sender always has another packet. A
//! packet leaves hop `j` at
//! `max(departure of the previous packet from j, its own departure from j - 1) + time on the link`. With
//! `max` as the sum and `+` as the product (max-plus algebra), each packet is a matrix. A message of a
//! million equal packets is a power of one matrix. Link delays only shift all departures of a hop.

use std::collections::BTreeMap;

use roce_packet::{Aeth, Bth, ImmDt, Reth, icrc};

use super::frame::{buffered, wire_len};
use super::port::{Owner, Port};
use super::route::{Routes, other_end};
use super::settings::{FlowOperation, HostSettings};
use super::time::Time;
use super::topology::LinkSpec;
use super::workload::FlowSpec;

/// The maximum number of paths between two hosts that are compared.
const MOST_PATHS: usize = 64;

/// The links of a path in order.
type Links = Vec<LinkSpec>;

/// A flow that is alone in the network.
#[derive(Clone, Copy)]
pub(super) struct Alone<'a> {
    pub(super) spec: FlowSpec,
    /// The settings of the queue pairs.
    pub(super) host: &'a HostSettings,
    /// Whether the last packet has immediate data.
    pub(super) signals: bool,
}

/// The properties of a network that determine the ideal completion times.
pub(super) struct Network<'a> {
    pub(super) routes: &'a Routes,
    pub(super) ports: &'a [Port],
    /// The port of each host.
    pub(super) hosts: &'a [u32],
    /// The settings of the hosts, as opposed to their queue pairs.
    pub(super) settings: &'a HostSettings,
}

impl Network<'_> {
    /// Returns the ideal completion time of each flow over its fastest path, or `None` if there is no path.
    pub(super) fn times(&self, flows: &[Alone<'_>]) -> Vec<Option<Time>> {
        let there = self.fastest(
            flows,
            |flow| (flow.source, flow.destination),
            |path, flow| self.flow_time(path, flow),
        );
        let back = self.fastest(
            flows,
            |flow| (flow.destination, flow.source),
            |path, flow| self.other_way(path, flow),
        );
        there.into_iter().zip(back).map(|(there, back)| Some(there? + back?)).collect()
    }

    /// Returns, for each flow, the minimum of `time` over the paths between two hosts.
    fn fastest(
        &self,
        flows: &[Alone<'_>],
        ends: impl Fn(&FlowSpec) -> (u32, u32),
        time: impl Fn(&[LinkSpec], &Alone<'_>) -> Time,
    ) -> Vec<Option<Time>> {
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by_key(|flow| ends(&flows[*flow].spec).1);
        let mut times = vec![None; flows.len()];
        let mut paths = Paths { network: self, to: 0, switch: None, known: BTreeMap::new() };
        for number in order {
            let (from, to) = ends(&flows[number].spec);
            paths.lead_to(to);
            times[number] = paths.of_host(from).iter().map(|path| time(path, &flows[number])).min();
        }
        times
    }

    /// Returns the time from the departure of the first byte to the arrival of the last byte at the
    /// receiver's engine. For several READs, each request after the first arrives before the previous
    /// response has left.
    fn flow_time(&self, path: &[LinkSpec], flow: &Alone<'_>) -> Time {
        let bytes = flow.spec.bytes;
        let (message, mtu) = (flow.host.message_bytes, flow.host.path_mtu.bytes() as u64);
        let (in_first, in_last) = match flow.host.operation {
            FlowOperation::Write => (Reth::LEN, 0),
            FlowOperation::Send => (0, 0),
            FlowOperation::Read => (Aeth::LEN, Aeth::LEN),
        };
        let packet = |payload: u64, more: usize| {
            let datagram = Bth::LEN + more + payload.next_multiple_of(4) as usize + icrc::LEN;
            Step::of(&self.link_times(path, flow.spec.destination, wire_len(datagram)))
        };
        let message_of = |bytes: u64, more: usize| {
            let packets = bytes.div_ceil(mtu);
            match packets {
                0 => None,
                1 => Some(packet(bytes, in_first + more)),
                _ => {
                    let first = packet(mtu, in_first);
                    let middle = packet(mtu, 0).repeated(packets - 2);
                    let last = packet(bytes - (packets - 1) * mtu, in_last + more);
                    Some(first.then_some(middle).then(&last))
                }
            }
        };
        // The last message can contain additional headers.
        let last = bytes - (bytes - 1) / message * message;
        let before = message_of(message.min(bytes), 0).and_then(|one| one.repeated((bytes - last) / message));
        let last = message_of(last, if flow.signals { ImmDt::LEN } else { 0 });
        let all = match (before, last) {
            (Some(before), last) => Some(before.then_some(last)),
            (None, last) => last,
        };
        self.delays(path) + Time::from_ps(all.map_or(0, |all| all.whole()))
    }

    /// Returns the time of the one packet in the other direction that counts: the last acknowledgement, or
    /// the first request of a READ.
    fn other_way(&self, path: &[LinkSpec], flow: &Alone<'_>) -> Time {
        let headers = match flow.host.operation {
            FlowOperation::Write | FlowOperation::Send => Aeth::LEN,
            FlowOperation::Read => Reth::LEN,
        };
        let times = self.link_times(path, flow.spec.source, wire_len(Bth::LEN + headers + icrc::LEN));
        times.into_iter().fold(self.delays(path), |sum, time| sum + Time::from_ps(time))
    }

    fn delays(&self, path: &[LinkSpec]) -> Time {
        path.iter().fold(self.settings.delay, |sum, link| sum + link.delay)
    }

    /// Returns the time in picoseconds that a frame occupies each link and, if its rate is limited, the
    /// receiver.
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

/// The distinct paths to one host.
struct Paths<'a> {
    network: &'a Network<'a>,
    to: u32,
    /// The switch of the host and the link between them, if all hosts at that switch share the paths up to
    /// that link.
    switch: Option<(u32, LinkSpec)>,
    /// The paths from each switch, without that link. During its search, a switch has no paths, so that loops
    /// end.
    known: BTreeMap<u32, Vec<Links>>,
}

impl Paths<'_> {
    /// Switches to the paths to another host. Known paths are kept if both hosts have the same switch,
    /// because their paths differ in the last link only. Searching all paths of a fat tree for each host
    /// would dominate a short run.
    fn lead_to(&mut self, to: u32) {
        let Network { routes, ports, .. } = self.network;
        let switch = routes.switch_of(to).map(|(switch, port)| (switch, ports[port as usize].spec));
        let stays = self.to == to || switch.is_some() && self.switch.map(|of| of.0) == switch.map(|of| of.0);
        if !stays {
            self.known.clear();
        }
        (self.to, self.switch) = (to, switch);
    }

    fn of_host(&mut self, host: u32) -> Vec<Links> {
        let port = self.network.hosts.get(host as usize).copied();
        let mut paths = port.map_or_else(Vec::new, |port| self.through(port));
        if let Some((_, last)) = self.switch {
            paths.iter_mut().for_each(|path| path.push(last));
        }
        paths
    }

    /// Returns the paths that begin with the link of a port.
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
            if self.switch.is_some_and(|(last, _)| last == switch) {
                return self.known.entry(switch).or_insert_with(|| vec![Vec::new()]);
            }
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

/// One or more consecutive packets. For `i <= j`, an entry is the time from the departure of the previous
/// packet from hop `i` to their own from hop `j`, along the slowest way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    hops: usize,
    times: Vec<u64>,
}

impl Step {
    /// Creates the step of one packet from its time on each link.
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

    /// Returns the step of these packets, followed by those of `behind`.
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

    /// Returns the step of `count` repetitions, or `None` for 0.
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

    /// Returns the time from the start to the departure from the last hop.
    fn whole(&self) -> u64 {
        self.hops.checked_sub(1).and_then(|last| self.times.get(last)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the time packet by packet.
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
