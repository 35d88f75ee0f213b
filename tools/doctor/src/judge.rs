//! Turns the observations of both sides into findings. All functions are pure.

mod directions;
mod marks;

use std::collections::BTreeSet;
use std::net::IpAddr;

use roce_analysis::icrc::Mistake;

pub(super) use directions::Both;
pub(super) use marks::{dscp, ecn};

use super::finding::{Finding, Step};
use super::icrc::in_words;
use super::local::ACCEPT;
use super::wire::{Introduction, Link, Observation, PROBE_BYTES, TripReport};
use directions::Direction;

/// BTH and ICRC: the minimum size of a datagram without its payload.
const AROUND_PAYLOAD: usize = 12 + 4;
/// The hop limit of sent probes.
const HOP_LIMIT: u8 = 64;

/// Bytes of IP, UDP, BTH, DETH and ICRC around the payload of a probe over IPv4.
const AROUND_PROBE: usize = 20 + 8 + 12 + 8 + 4;

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 || percent == 0.0 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}

/// Returns the finding about the other side.
pub(super) fn other_side(own: &Introduction, peer: &Introduction) -> Finding {
    let text = format!(
        "`roce doctor` waits there, on {} {} with an MTU of {}",
        peer.kind(),
        peer.address,
        peer.link_mtu
    );
    if own.address.is_ipv4() != peer.address.is_ipv4() {
        return Finding::problem(
            Step::Exchange,
            format!("{text}, but this side uses {}: one address is IPv4, the other IPv6", own.address),
            "give both sides a --device with an address of the same IP version",
        );
    }
    if peer.largest_path_mtu == 0 {
        let name = peer.interface.as_ref().map_or_else(|| "IFNAME".to_owned(), Link::name);
        return Finding::problem(
            Step::Exchange,
            format!("{text}, too small even for path MTU 256"),
            format!(
                "raise the MTU on {} to the MTU of this side: `ip link set dev {name} mtu {}`",
                peer.address,
                own.link_mtu.max(1500)
            ),
        );
    }
    if own.link_mtu == peer.link_mtu {
        return Finding::ok(Step::Exchange, text);
    }
    let hint = format!("the MTUs of the two sides differ ({} here): raise the smaller one", own.link_mtu);
    Finding::ok(Step::Exchange, text).with_hint(hint)
}

/// Returns the finding whether packets arrive at all. `is_named` means that an earlier finding names a rule
/// that refuses packets to the peer.
pub(super) fn arrival(both: &Both, is_named: bool) -> Finding {
    let [to, from] = both.directions();
    let names = |direction: &Direction<'_>| {
        format!("none of {} RoCE packets {} arrives", direction.sent, direction.name())
    };
    if let Some(wrong) = [&to, &from].iter().find(|one| !one.has_arrived() && one.seen.wrong_vlan > 0) {
        return Finding::problem(
            Step::Arrival,
            format!(
                "{} packets {} arrive with another VLAN tag, or without one, and are dropped",
                wrong.seen.wrong_vlan,
                wrong.name()
            ),
            "use the same vlan= in the --device of both sides, or omit it on both",
        );
    }
    match (to.has_arrived(), from.has_arrived()) {
        (true, true) => {
            Finding::ok(Step::Arrival, format!("RoCE packets arrive in both directions{}", hops(both)))
        }
        (false, false) => Finding::problem(
            Step::Arrival,
            format!(
                "no RoCE packet arrives in either direction ({} sent in each), although TCP works",
                to.sent
            ),
            format!(
                "accept UDP port 4791 in both directions on every firewall between the two sides, before any \
                 rule that drops it: `{ACCEPT}` on both machines, `{}` on routers, and an equivalent rule in \
                 a cloud",
                ACCEPT.replace("INPUT", "FORWARD")
            ),
        ),
        (arrives_there, _) => {
            let (dead, alive) = if arrives_there { (from, to) } else { (to, from) };
            let text = format!("one direction fails: {}, but packets {} arrive", names(&dead), alive.name());
            Finding::problem(Step::Arrival, text, one_way(&dead, is_named && !arrives_there))
        }
    }
}

/// Returns the remedy for a direction in which nothing arrives.
fn one_way(dead: &Direction<'_>, is_named: bool) -> String {
    let (from, to) = (dead.from.address, dead.to.address);
    if is_named {
        return "a firewall rule causes this; see the finding about UDP port 4791".to_owned();
    }
    format!(
        "accept UDP port 4791 before the rule that drops it: `{ACCEPT}` on {to}, the same rule in chain \
         OUTPUT on {from}, and in chain FORWARD on routers between them"
    )
}

/// Describes the distance to the peer, as far as the hop limit reveals it.
fn hops(both: &Both) -> String {
    let hops = |seen: &Observation| HOP_LIMIT.checked_sub(seen.hop_limit.filter(|limit| *limit > 0)?);
    match (hops(&both.there), hops(&both.here)) {
        (Some(0), Some(0)) => ", with no router in between".to_owned(),
        (Some(1), Some(1)) => ", through one router".to_owned(),
        (Some(to), Some(from)) if to == from => format!(", through {to} routers"),
        (Some(to), Some(from)) => format!(", through {to} routers to the peer and {from} routers back"),
        _ => String::new(),
    }
}

/// Returns the finding whether packets arrive undamaged, from the counters of both sides.
pub(super) fn icrc(headers: &Both, many: &Both) -> Finding {
    let mut wrong = Vec::new();
    let mut arrived = 0;
    let mut are_all = false;
    for (first, second) in headers.directions().iter().zip(many.directions().iter()) {
        let damaged = first.seen.damaged + second.seen.damaged;
        let intact = u64::from(first.seen.intact) + u64::from(second.seen.intact);
        let total = damaged + intact;
        arrived += total;
        if damaged > 0 {
            are_all |= intact == 0;
            let rate = percent(damaged as f64 / total as f64);
            wrong.push(format!("{damaged} of {total} arrived packets {} ({rate})", first.name()));
        }
    }
    if wrong.is_empty() {
        return Finding::ok(
            Step::Icrc,
            format!("all {arrived} packets that arrived, in both directions, had a correct ICRC"),
        );
    }
    let text = format!("a wrong ICRC in {}", wrong.join(" and "));
    if let Some((name, remedy)) = cause(&[headers, many]) {
        return Finding::problem(Step::Icrc, format!("{text}; the cause is: {name}"), remedy);
    }
    if are_all {
        return Finding::problem(
            Step::Icrc,
            text,
            "every ICRC is wrong, so this is not random corruption: a device on the path rewrites fields \
             that the ICRC covers (NAT of addresses or ports; see the finding about the source port), or one \
             side computes the ICRC incorrectly; record both sides with --pcap and compare the packets with \
             `roce explain`",
        );
    }
    Finding::problem(
        Step::Icrc,
        text,
        "bits change where the checksum of Ethernet does not detect it: look for errors at cables, optics \
         and switch ports (`ethtool -S IFNAME`), and for a NIC or machine that damages packets in its memory",
    )
}

/// Returns the mistakes that lead to the wrong ICRCs in any direction, and their remedies. Names that this
/// version does not know are ignored.
fn cause(bursts: &[&Both]) -> Option<(String, String)> {
    let observations = bursts.iter().flat_map(|both| [&both.here, &both.there]);
    let names = observations.flat_map(|seen| &seen.mistakes);
    let mistakes: BTreeSet<Mistake> = names.filter_map(|name| Mistake::from_name(name)).collect();
    let mistakes: Vec<Mistake> = mistakes.into_iter().collect();
    (!mistakes.is_empty()).then(|| in_words(&mistakes))
}

/// Returns the finding about lost, duplicated and late packets.
pub(super) fn loss(many: &Both) -> Finding {
    let [to, from] = many.directions();
    let directions = [&to, &from];
    if directions.iter().all(|direction| direction.lost() == 0) {
        let late: u32 = directions.iter().map(|direction| direction.seen.late).sum();
        let twice: u32 = directions.iter().map(|direction| direction.seen.duplicates).sum();
        if late > 0 || twice > 0 {
            return order(&to, late, twice);
        }
        return Finding::ok(
            Step::Loss,
            format!(
                "none of {} packets to {} and none of {} packets back was lost",
                to.sent, to.to.address, from.sent
            ),
        );
    }
    let describe = |direction: &&&Direction<'_>| {
        format!(
            "{} of {} packets {} ({})",
            direction.lost(),
            direction.sent,
            direction.name(),
            percent(direction.rate())
        )
    };
    let text: Vec<String> = directions
        .iter()
        .filter(|direction| direction.lost() > 0)
        .map(|direction| describe(&direction))
        .collect();
    let overflow = directions.iter().find(|direction| direction.seen.overflow > 0);
    let is_asymmetric = to.rate() > 4.0 * from.rate() || from.rate() > 4.0 * to.rate();
    let direction = if is_asymmetric && overflow.is_none() {
        let worse = if to.rate() > from.rate() { &to } else { &from };
        format!("; the loss is one-way: examine the devices that carry only packets {}", worse.name())
    } else {
        String::new()
    };
    let remedy = match overflow {
        Some(direction) => format!(
            "{} packets were lost at {}, which did not read them in time: increase its socket buffers \
             (`sysctl net.core.rmem_max`), or give it more CPU time",
            direction.seen.overflow, direction.to.address
        ),
        None => format!(
            "RoCE retransmits every packet from the first lost one, so even a small loss is expensive: look \
             for discards at switch ports and interfaces (`ethtool -S IFNAME`), for PFC that is disabled or \
             uses another priority, and for an overloaded receiver{direction}"
        ),
    };
    Finding::problem(Step::Loss, format!("lost: {}", text.join(" and ")), remedy)
}

fn order(to: &Direction<'_>, late: u32, twice: u32) -> Finding {
    let remedy = if late > 0 {
        "a RoCE receiver treats a packet that arrives too early as a sign of loss: make switches and bonds \
         balance by flow instead of by packet (ECMP, LACP hash on UDP ports)"
    } else {
        "look for the loop or the mirror port that sends packets twice, and remove it (spanning tree, `tc filter`, `iptables -t \
         mangle -S` for TEE)"
    };
    Finding::problem(
        Step::Loss,
        format!(
            "none of {} packets in each direction was lost, but {late} arrived out of order and {twice} \
             arrived twice",
            to.sent
        ),
        remedy,
    )
}

/// Returns the finding that small packets arrive, but no packets of the smallest path MTU, in at least one
/// direction.
pub(super) fn nothing_but_small(many: &Both) -> Finding {
    let headers = AROUND_PROBE + if many.own.address.is_ipv4() { 0 } else { 20 };
    let dead: Vec<String> =
        many.directions().iter().filter(|direction| !direction.has_arrived()).map(Direction::name).collect();
    let needed = many.own.link_mtu.min(many.peer.link_mtu);
    Finding::problem(
        Step::PathMtu,
        format!(
            "no packet of {} bytes arrives {}, although smaller ones do: a link on the path has a smaller \
             MTU (black hole)",
            PROBE_BYTES + headers,
            dead.join(" and ")
        ),
        format!("raise the MTU of every switch and router on the path to {needed}, the MTU of both ends"),
    )
}

/// Returns the finding whether addresses and ports are kept.
pub(super) fn source_port(both: &Both) -> Finding {
    let mut ports = Vec::new();
    for direction in both.directions() {
        let strangers: Vec<&(IpAddr, u16)> =
            direction.seen.sources.iter().filter(|(address, _)| *address != direction.from.address).collect();
        if let Some((address, port)) = strangers.first() {
            return Finding::problem(
                Step::SourcePort,
                format!(
                    "packets from {} arrive with the source {address}:{port}: a device translates addresses \
                     (NAT)",
                    direction.from.address
                ),
                EXEMPT,
            );
        }
        // RoCE v1 does not use ports.
        if direction.source_port == 0 {
            return Finding::not_tested(Step::SourcePort, "RoCE v1 has no UDP port");
        }
        if let Some((_, port)) =
            direction.seen.sources.iter().find(|(_, port)| *port != direction.source_port)
        {
            return Finding::problem(
                Step::SourcePort,
                format!(
                    "packets {} leave from UDP port {} and arrive from {port}",
                    direction.name(),
                    direction.source_port
                ),
                EXEMPT,
            );
        }
        ports.push(direction.source_port);
    }
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    Finding::ok(
        Step::SourcePort,
        format!("addresses and UDP source ports ({}) are kept; no NAT", ports.join(", ")),
    )
}

/// The remedy for address translation.
const EXEMPT: &str = "RoCE does not work through NAT, because the ICRC covers addresses and ports: exempt \
                      RoCE on the router that translates (`iptables -t nat -I POSTROUTING -p udp --dport \
                      4791 -j ACCEPT`; existing translations end after 30 s without packets, or with \
                      `conntrack -D -p udp`)";

/// Returns the finding whether the flow label is kept, if one was sent.
pub(super) fn flow_label(both: &Both, sent: Option<u32>) -> Finding {
    let Some(sent) = sent else {
        let why = if both.own.address.is_ipv4() {
            "IPv4 has no flow label"
        } else {
            "a udp device does not see the IPv6 header; use raw, xdp or tap on both sides"
        };
        return Finding::not_tested(Step::FlowLabel, why);
    };
    for direction in both.directions() {
        if let Some(seen) = direction.seen.flow_labels.iter().find(|seen| **seen != sent) {
            return Finding::problem(
                Step::FlowLabel,
                format!("{sent:#07x} becomes {seen:#07x} {}", direction.name()),
                "find the router that rewrites flow labels; it may send the packets of one flow over several \
                 paths",
            );
        }
    }
    Finding::ok(Step::FlowLabel, format!("{sent:#07x} is kept in both directions"))
}

/// Round trips with one path MTU.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) path_mtu: usize,
    pub(super) here: TripReport,
    pub(super) there: TripReport,
}

impl Tried {
    pub(super) fn is_good(&self) -> bool {
        self.here.failure.is_none() && self.there.failure.is_none()
    }

    /// Returns the reason of the failure. The text of the peer is not trusted.
    fn failure(&self) -> String {
        let failure = self.here.failure.as_ref().or(self.there.failure.as_ref());
        failure.map_or_else(String::new, |text| {
            text.chars().filter(|sign| !sign.is_control()).take(300).collect()
        })
    }

    /// Returns whether packets of full size arrived, to the peer and from it.
    fn full_packets(&self) -> [bool; 2] {
        [&self.there, &self.here].map(|report| report.longest >= self.path_mtu + AROUND_PAYLOAD)
    }
}

/// Returns the finding about the largest path MTU that passes.
pub(super) fn path_mtu(both: &Both, tried: &[Tried]) -> Finding {
    let list = |tried: &[&Tried]| {
        tried.iter().map(|tried| tried.path_mtu.to_string()).collect::<Vec<_>>().join(", ")
    };
    if tried.is_empty() {
        return Finding::not_tested(Step::PathMtu, "no path MTU fits both interfaces; see the MTU findings");
    }
    let (good, bad): (Vec<&Tried>, Vec<&Tried>) = tried.iter().partition(|tried| tried.is_good());
    let Some(worst) = bad.first() else {
        let text = format!("messages pass in both directions with {}, every byte compared", list(&good));
        return Finding::ok(Step::PathMtu, text);
    };
    let Some(best) = good.last() else {
        return Finding::problem(
            Step::PathMtu,
            format!("no message comes back with any path MTU: {}", worst.failure()),
            "single packets arrive, but connections fail: remedy the problems above first; if there are \
             none, repeat with --pcap on both sides",
        );
    };
    if bad.iter().any(|bad| bad.path_mtu < best.path_mtu) {
        return Finding::problem(
            Step::PathMtu,
            format!(
                "path MTU {} fails, although the larger {} works: {}",
                list(&bad),
                best.path_mtu,
                worst.failure()
            ),
            "packets are lost or damaged intermittently; remedy the losses and damage above, then repeat",
        );
    }
    let where_to = match worst.full_packets() {
        // A message that does not arrive at the peer is not sent back.
        [false, _] => format!(" {}", both.directions()[0].name()),
        [true, false] => format!(" {}", both.directions()[1].name()),
        [true, true] => String::new(),
    };
    let largest = bad.last().map_or(worst.path_mtu, |bad| bad.path_mtu);
    let needed = largest + if both.own.address.is_ipv4() { 64 } else { 84 };
    Finding::problem(
        Step::PathMtu,
        format!(
            "{} works, {} does not: a black hole on the path drops larger packets{where_to}, although both \
             interfaces carry them",
            best.path_mtu,
            list(&bad)
        ),
        format!(
            "raise the MTU of every switch and router on the path to {}, the MTU of both ends (at least \
             {needed}), or use --mtu {}",
            both.own.link_mtu.min(both.peer.link_mtu),
            best.path_mtu
        ),
    )
}

/// Returns the finding about the time of a round trip.
pub(super) fn round_trip(tried: &Tried, count: u32) -> Finding {
    if !tried.is_good() {
        return Finding::problem(
            Step::RoundTrip,
            format!("the test ended after {} of {count} messages: {}", tried.here.done, tried.failure()),
            "packets are lost intermittently; remedy the problems above, then repeat",
        );
    }
    let times = &tried.here.times_ns;
    let at = |share: usize| {
        let index = (times.len().saturating_sub(1)) * share / 100;
        times.get(index).map_or(0.0, |nanos| *nanos as f64 / 1e3)
    };
    let resent = tried.here.retransmitted_packets + tried.there.retransmitted_packets;
    let text = format!(
        "{count} messages of 64 bytes in each direction: median {:.1} us, minimum {:.1}, 99th percentile \
         {:.1}",
        at(50),
        at(0),
        at(99)
    );
    match resent {
        0 => Finding::ok(Step::RoundTrip, text),
        1 => Finding::ok(Step::RoundTrip, format!("{text}; 1 packet was retransmitted")),
        resent => Finding::ok(Step::RoundTrip, format!("{text}; {resent} packets were retransmitted")),
    }
}

#[cfg(test)]
pub(super) mod tests;
