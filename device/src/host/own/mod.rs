//! A separate host on the link, for devices whose addresses the kernel does not have: it announces its
//! Ethernet address and learns those of others, answers pings, joins multicast groups, and provides TCP.
//!
//! ```text
//!   frames in --> receive: ARP, neighbour discovery, queries for groups     stack: pings, TCP (smoltcp)
//!                   |                         |                            |
//!                 neighbours --asks-->  messages  <--reports-- groups      |
//!                   |                         |                            |
//!   frames out <----+-- addresses ------------+----------------------------+
//! ```
//!
//! Like the engine, it owns no clock, thread or operating system socket. smoltcp gets only IP packets,
//! because this module has its own neighbour table: smoltcp's has only eight entries, which an ARP flood
//! would replace, and it cannot be read.

mod groups;
mod messages;
mod neighbours;
mod receive;
mod routes;
mod sockets;
mod stack;
mod tcp;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use roce_packet::{EtherType, EthernetHeader, Gid, MacAddr};
use roce_transport::Instant;

use crate::HostTcp;
use crate::counters::counters;
use crate::framed::port::Incoming;
use crate::framed::{Host, Resolution, Unreachable};
use groups::Groups;
use messages::{Message, destination_of, solicited_node};
use neighbours::Neighbours;
use routes::{Route, Routes};
use stack::Stack;

pub(crate) use routes::{broadcast, same_prefix};

/// The configuration of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostConfig {
    /// The host's Ethernet address.
    pub(crate) mac: MacAddr,
    /// The host's addresses with prefix lengths, at most one of each family. The link-local one is added.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) gateway_v4: Option<Ipv4Addr>,
    pub(crate) gateway_v6: Option<Ipv6Addr>,
    /// The MTU in bytes.
    pub(crate) link_mtu: usize,
    /// A number that other hosts cannot guess: TCP derives its initial sequence numbers from it.
    pub(crate) seed: u64,
}

/// Maximum number of messages that wait to be sent; further requests get no answer.
const MOST_MESSAGES: usize = 128;
/// Maximum number of packets of smoltcp that wait for the Ethernet address of their next hop.
const MOST_PARKED: usize = 32;
/// Announcements at the start (`ANNOUNCE_NUM`, `ANNOUNCE_INTERVAL`, RFC 5227 1.1).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between two reports of address conflicts (`DEFEND_INTERVAL`).
const CONFLICT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time without a lookup of the last next hop, so that the table learns which entries are in use.
const SETTLED: Duration = Duration::from_millis(100);

/// A function that looks up a neighbour, such as [`Neighbours::resolve`].
type Find = fn(&mut Neighbours, Instant, IpAddr) -> Resolution;

/// A separate host. See the module documentation.
pub(crate) struct OwnHost {
    mac: MacAddr,
    addresses: Vec<IpAddr>,
    routes: Routes,
    neighbours: Neighbours,
    groups: Groups,
    stack: Stack,
    messages: VecDeque<Message>,
    /// Packets that wait for the Ethernet address of their next hop.
    parked: VecDeque<(IpAddr, Vec<u8>)>,
    /// Number of remaining announcements, and the time of the next.
    announcements: u8,
    announce_at: Instant,
    report_conflict_at: Instant,
    /// Destination used last, the Ethernet address for it, and until when this is valid.
    last: Option<(IpAddr, MacAddr, Instant)>,
    /// The latest time passed to a call. It never goes back.
    now: Instant,
    scratch: Vec<u8>,
    counters: Counters,
}

counters! {
    struct Counters {
        /// Frames dropped because they are damaged or inconsistent.
        malformed => "host_rx_malformed",
        /// Frames ignored because they are for another host, or of an unsupported protocol.
        ignored => "host_rx_ignored",
        /// Frames from a host that uses an address of this host.
        conflicts => "host_address_conflicts",
        /// Messages and packets dropped because a queue was full.
        overflows => "host_overflows",
        /// TCP and ICMP packets dropped because their destination does not answer.
        unreachable => "host_tx_unreachable",
    }
}

impl OwnHost {
    pub(crate) fn new(config: &HostConfig) -> Self {
        let mut own = config.addresses.clone();
        own.push((IpAddr::V6(Gid::link_local(config.mac).to_ipv6()), 64));
        let mut groups = Groups::default();
        for (address, _) in &own {
            if let IpAddr::V6(address) = address {
                // Snooping bridges deliver solicitations only to members. There is room for these groups.
                let _ = groups.set(solicited_node(*address).into(), true);
            }
        }
        Self {
            mac: config.mac,
            addresses: own.iter().map(|(address, _)| *address).collect(),
            routes: Routes::new(&own, config.gateway_v4, config.gateway_v6),
            neighbours: Neighbours::default(),
            groups,
            stack: Stack::new(&own, config.link_mtu, config.seed),
            messages: VecDeque::new(),
            parked: VecDeque::new(),
            announcements: ANNOUNCEMENTS,
            announce_at: Instant::ZERO,
            report_conflict_at: Instant::ZERO,
            last: None,
            now: Instant::ZERO,
            scratch: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Advances the host's time. Callers that do not know the time pass 0.
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    /// Returns the source address for a neighbour or peer.
    fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let is_link_local = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let mut of_family = self.addresses.iter().filter(|own| own.is_ipv4() == peer.is_ipv4());
        let same_scope = of_family.clone().find(|own| is_link_local(own) == is_link_local(&peer));
        same_scope.or_else(|| of_family.next()).copied()
    }

    fn enqueue(&mut self, message: Message) {
        if self.messages.len() < MOST_MESSAGES {
            self.messages.push_back(message);
        } else {
            self.counters.overflows += 1;
        }
    }

    /// Queues the messages that are due.
    fn tick(&mut self, now: Instant) {
        if self.announcements > 0 && self.announce_at <= now {
            self.announce(self.announcements == ANNOUNCEMENTS);
            self.announcements -= 1;
            self.announce_at = now + ANNOUNCE_INTERVAL;
        }
        while self.messages.len() < MOST_MESSAGES
            && let Some(ask) = self.neighbours.poll_ask(now)
        {
            let message = match (self.source_for(ask.target), ask.target) {
                (Some(IpAddr::V4(source)), IpAddr::V4(target)) => {
                    Message::ArpRequest { source, target, to: ask.at.unwrap_or(MacAddr::BROADCAST) }
                }
                (Some(IpAddr::V6(source)), IpAddr::V6(target)) => {
                    Message::Solicitation { source, target, to: ask.at }
                }
                // A host without an address of this family has no route either.
                _ => continue,
            };
            self.enqueue(message);
        }
        while self.messages.len() < MOST_MESSAGES
            && let Some((group, change)) = self.groups.poll(now)
        {
            // Reports of IPv6 groups come from the link-local address (RFC 3810 5.2.13).
            let of_family = |own: &&IpAddr| own.is_ipv4() == group.is_ipv4();
            let source = match group {
                IpAddr::V4(_) => self.addresses.iter().find(of_family),
                IpAddr::V6(_) => self.addresses.last(),
            };
            if let Some(source) = source.copied() {
                self.enqueue(Message::Membership { source, group, change });
            }
        }
    }

    /// Announces the host's addresses. The first time, it also probes for a host that already has one of
    /// them, without waiting for the answer, which is only reported.
    fn announce(&mut self, first: bool) {
        for address in self.addresses.clone() {
            match address {
                IpAddr::V4(own) => {
                    let to = MacAddr::BROADCAST;
                    if first {
                        self.enqueue(Message::ArpRequest { source: Ipv4Addr::UNSPECIFIED, target: own, to });
                    }
                    self.enqueue(Message::ArpRequest { source: own, target: own, to });
                }
                IpAddr::V6(own) => {
                    if first {
                        let source = Ipv6Addr::UNSPECIFIED;
                        self.enqueue(Message::Solicitation { source, target: own, to: None });
                    }
                    self.enqueue(Message::Advertisement { source: own, to: None });
                }
            }
        }
    }

    /// Reports a frame that shows that another host has an address of this host.
    fn report_conflict(&mut self, address: IpAddr, other: MacAddr) {
        self.counters.conflicts += 1;
        if self.report_conflict_at <= self.now {
            self.report_conflict_at = self.now + CONFLICT_INTERVAL;
            tracing::warn!(
                %address, %other, own = %self.mac,
                "another host has the address of this device; change the address of one of them"
            );
        }
    }

    /// Looks up the Ethernet address for a destination, by route and table.
    fn look_up(&mut self, now: Instant, destination: IpAddr, find: Find) -> Resolution {
        let Route::Through(next_hop) = self.routes.next_hop(destination) else {
            return Resolution::Failed(Unreachable::NoRoute);
        };
        let resolution = find(&mut self.neighbours, now, next_hop);
        self.last = match (&resolution, self.neighbours.settled_until(next_hop)) {
            (Resolution::Known(mac), Some(until)) => Some((destination, *mac, until.min(now + SETTLED))),
            _ => None,
        };
        resolution
    }

    /// Returns the stack's next packet and its Ethernet destination. Any host can make the stack answer, also
    /// to a forged address.
    fn next_packet(&mut self, now: Instant) -> Option<(MacAddr, Vec<u8>)> {
        // Waiting packets go first; each is checked once.
        for _ in 0..self.parked.len() {
            let (destination, packet) = self.parked.pop_front()?;
            match self.look_up(now, destination, Neighbours::resolve_again) {
                Resolution::Known(mac) => return Some((mac, packet)),
                Resolution::Pending => self.parked.push_back((destination, packet)),
                Resolution::Failed(_) => self.drop_packet(packet),
            }
        }
        while let Some(packet) = self.stack.poll_packet(now) {
            let Some(destination) = destination_of(&packet) else {
                self.drop_packet(packet);
                continue;
            };
            match self.look_up(now, destination, Neighbours::resolve_unsolicited) {
                Resolution::Known(mac) => return Some((mac, packet)),
                Resolution::Pending if self.parked.len() < MOST_PARKED => {
                    self.parked.push_back((destination, packet));
                }
                Resolution::Pending => {
                    self.counters.overflows += 1;
                    self.stack.give_back(packet);
                }
                Resolution::Failed(_) => self.drop_packet(packet),
            }
        }
        None
    }

    fn drop_packet(&mut self, packet: Vec<u8>) {
        self.counters.unreachable += 1;
        self.stack.give_back(packet);
    }
}

impl Host for OwnHost {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    #[inline]
    fn resolve(&mut self, now: Instant, destination: IpAddr) -> Resolution {
        if let Some((known, mac, until)) = self.last
            && known == destination
            && now < until
        {
            return Resolution::Known(mac);
        }
        let now = self.advance(now);
        self.look_up(now, destination, Neighbours::resolve)
    }

    fn handle_frame(&mut self, now: Instant, frame: &Incoming<'_>) {
        let now = self.advance(now);
        if frame.segment_len.is_some() {
            // Several joined datagrams, which this host does not support.
            self.counters.ignored += 1;
            return;
        }
        if frame.tail.is_empty() {
            self.receive(now, frame.head);
        } else {
            let mut whole = std::mem::take(&mut self.scratch);
            whole.clear();
            whole.extend_from_slice(frame.head);
            whole.extend_from_slice(frame.tail);
            self.receive(now, &whole);
            self.scratch = whole;
        }
    }

    fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<usize> {
        let now = self.advance(now);
        if self.parked.is_empty() && self.deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        self.tick(now);
        while let Some(message) = self.messages.pop_front() {
            if let Some(len) = message.emit(self.mac, buffer) {
                return Some(len);
            }
            self.counters.overflows += 1;
        }
        while let Some((destination, packet)) = self.next_packet(now) {
            let ether_type = match destination_of(&packet) {
                Some(IpAddr::V4(_)) | None => EtherType::IPV4,
                Some(IpAddr::V6(_)) => EtherType::IPV6,
            };
            let len = EthernetHeader::LEN + packet.len();
            if let Some((header, body)) =
                buffer.get_mut(..len).and_then(<[u8]>::split_first_chunk_mut::<{ EthernetHeader::LEN }>)
            {
                EthernetHeader { destination, source: self.mac, ether_type }.emit(header);
                body.copy_from_slice(&packet);
                self.stack.give_back(packet);
                return Some(len);
            }
            self.counters.overflows += 1;
            self.stack.give_back(packet);
        }
        // A lookup may have queued a request.
        self.tick(now);
        let message = self.messages.pop_front()?;
        message.emit(self.mac, buffer)
    }

    fn deadline(&self) -> Option<Instant> {
        let announcement = (self.announcements > 0).then_some(self.announce_at);
        let queued = (!self.messages.is_empty()).then_some(Instant::ZERO);
        let others = [self.neighbours.deadline(), self.groups.deadline(), self.stack.deadline()];
        [announcement, queued].into_iter().chain(others).flatten().min()
    }

    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        if !self.addresses.iter().any(|own| own.is_ipv4() == group.is_ipv4()) {
            let text = format!("this host needs an IPv4 address to join {group}");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        }
        self.groups.set(group, join)
    }

    fn tcp(&mut self) -> Option<&mut dyn HostTcp> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("host_neighbours", self.neighbours.len() as u64);
        visit("host_neighbours_moved", self.neighbours.moved);
        visit("host_neighbours_refused", self.neighbours.refused);
        self.counters.visit(visit);
    }
}
