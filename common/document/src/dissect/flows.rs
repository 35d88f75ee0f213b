//! Tracks the packet sequence numbers of each flow and marks gaps and repetitions, as a receiver notices
//! them.
//!
//! A flow contains the packets that one queue pair sends to another in one role: requests, or responses to
//! READ and atomic requests. Each role of a queue pair has its own PSNs. Memory is bounded for any capture.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use roce_analysis::walk::{Packet, Walk};
use roce_capture::{CapturedPacket, Direction as Way, LinkType};
use roce_packet::{Direction, OpcodeInfo, Operation, PathMtu, Position, Psn, Reth, Transport};

/// The remark about the PSN of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Packets are missing in front of this one.
    Gap {
        /// The first missing PSN.
        first: Psn,
        /// Number of missing packets.
        count: u32,
    },
    /// A response has no end or no beginning. The number of missing packets is unknown.
    Unfinished,
    /// The PSN was seen before: a retransmission or a copy.
    Repeat,
    /// The PSN fills an earlier gap: a retransmission, or a packet that was overtaken.
    Late,
    /// The PSN is far from all previous ones: another connection, or a long hole in the capture.
    Jump,
}

impl Mark {
    /// Returns the word in the column and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gap { .. } | Self::Unfinished => "gap",
            Self::Repeat => "repeat",
            Self::Late => "late",
            Self::Jump => "jump",
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Gap { first, count: 1 } => write!(f, "1 packet is missing before it: PSN {first}"),
            Self::Gap { first, count } => {
                let last = first.add(count - 1);
                write!(f, "{count} packets are missing before it: PSN {first} to {last}")
            }
            Self::Unfinished => f.write_str("an earlier part of the response is missing"),
            Self::Repeat => f.write_str("PSN seen before: retransmission or copy"),
            Self::Late => f.write_str("fills an earlier gap: retransmission or overtaken"),
            Self::Jump => {
                f.write_str("PSN far from all earlier ones: another connection, or missing packets")
            }
        }
    }
}

/// The flows of a capture, in two generations.
///
/// A used flow moves to the young generation. When that is full, it becomes the old generation, and flows
/// that were not used since are dropped.
#[derive(Debug, Default)]
pub struct Flows {
    young: HashMap<Key, Flow>,
    old: HashMap<Key, Flow>,
}

/// Maximum number of flows of a generation.
const MOST_FLOWS: usize = 4096;
/// Maximum number of recorded gaps of a flow.
const MOST_GAPS: usize = 8;
/// A PSN that differs by more than this belongs to another connection.
const FAR: u32 = 1 << 16;

/// The identity of a flow. A capture of several interfaces may contain a packet once for each interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    interface: u32,
    way: Way,
    source: IpAddr,
    destination: IpAddr,
    dest_qp: u32,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Request,
    Response,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The highest PSN.
    highest: Psn,
    /// The number of PSNs of the packet with the highest PSN, as far as known.
    span: Span,
    /// Whether the highest PSN belongs to an incomplete response.
    is_open: bool,
    /// The path MTU, once it is known.
    mtu: Option<u32>,
    gaps: Gaps,
}

/// The number of PSNs of a packet. A READ request has one PSN for each packet of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    One,
    /// A READ of `len` bytes at `va`.
    Read {
        va: u64,
        len: u32,
    },
}

impl Span {
    const fn packets(self, mtu: u32) -> u32 {
        match self {
            Self::One | Self::Read { len: 0, .. } => 1,
            Self::Read { len, .. } => len.div_ceil(mtu),
        }
    }

    /// Returns whether `later` requests the end of this READ again.
    fn is_continued_by(self, later: Self) -> bool {
        match (self, later) {
            (Self::Read { va, len }, Self::Read { va: next_va, len: next_len }) => {
                next_va > va && va.wrapping_add(len.into()) == next_va.wrapping_add(next_len.into())
            }
            _ => false,
        }
    }
}

/// Ranges of missing PSNs. If there are too many, the oldest one is dropped.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    ranges: [(u32, u32); MOST_GAPS],
    len: usize,
}

impl Flows {
    /// Takes the next packet of the capture and returns its mark. Malformed packets and packets with a wrong
    /// ICRC do not count, because their receiver drops them.
    pub fn mark(&mut self, captured: &CapturedPacket<'_>, walk: &Walk<'_>) -> Option<Mark> {
        let packet = walk.packet()?;
        if walk.error.is_some() || packet.icrc.is_bad() {
            return None;
        }
        let info = packet.info?;
        let role = role(info)?;
        let lids = || walk.outer.lrh.map(|lrh| (lid(lrh.source()), lid(lrh.destination())));
        let (source, destination) = walk.outer.addresses().or_else(lids)?;
        let (interface, way) = place(captured);
        let dest_qp = packet.bth.dest_qp().get();
        let key = Key { interface, way, source, destination, dest_qp, role };
        let sighting = Sighting::new(packet, info, walk);
        match self.find(key) {
            Some(flow) => flow.next(&sighting, role),
            None => {
                self.insert(key, Flow::new(&sighting));
                None
            }
        }
    }

    fn find(&mut self, key: Key) -> Option<&mut Flow> {
        if !self.old.is_empty()
            && let Some(flow) = self.old.remove(&key)
        {
            self.insert(key, flow);
        }
        self.young.get_mut(&key)
    }

    fn insert(&mut self, key: Key, flow: Flow) {
        if self.young.len() >= MOST_FLOWS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, flow);
    }
}

/// Returns a local identifier of native InfiniBand as an address, which is enough to tell flows apart.
fn lid(lid: u16) -> IpAddr {
    Ipv6Addr::from_bits(lid.into()).into()
}

/// Returns the part of the PSN space that a packet belongs to. Acknowledgements skip and repeat PSNs by
/// design. The PSNs of a UD queue pair span all its destinations, which a capture rarely contains.
fn role(info: &OpcodeInfo) -> Option<Role> {
    match (info.transport, info.direction, info.operation) {
        (Transport::Ud | Transport::Rd | Transport::Cnp, ..) | (_, _, Operation::Acknowledge) => None,
        (_, Direction::Request, _) => Some(Role::Request),
        (_, Direction::Response, _) => Some(Role::Response),
        (_, Direction::Cnp, _) => None,
    }
}

/// Returns the interface and the direction of a packet. Linux cooked captures have one interface for all
/// packets, so their header decides.
fn place(captured: &CapturedPacket<'_>) -> (u32, Way) {
    let bytes = captured.bytes;
    let interface = match captured.link_type {
        LinkType::LINUX_SLL2 => {
            bytes.get(4..).and_then(<[u8]>::first_chunk).map(|index| u32::from_be_bytes(*index))
        }
        // The kind of packet: for this host, for others, or sent.
        LinkType::LINUX_SLL => bytes.first_chunk().map(|kind: &[u8; 2]| u16::from_be_bytes(*kind).into()),
        _ => captured.interface,
    };
    (interface.unwrap_or(0), captured.direction)
}

/// The properties that decide the mark of a packet.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    psn: Psn,
    span: Span,
    position: Position,
    /// The payload length of a packet that has exactly one path MTU.
    mtu: Option<u32>,
}

impl Sighting {
    fn new(packet: &Packet<'_>, info: &OpcodeInfo, walk: &Walk<'_>) -> Self {
        let span = match info.operation {
            Operation::ReadRequest => {
                let part = walk.parts.iter().find(|part| part.header.name == "RETH");
                let reth = part.and_then(|part| Reth::parse(walk.part_bytes(part)).ok());
                reth.map_or(Span::One, |(reth, _)| Span::Read { va: reth.va, len: reth.dma_len })
            }
            _ => Span::One,
        };
        let is_full = matches!(info.position, Position::First | Position::Middle);
        let mtu = packet.payload_len.filter(|_| is_full).and_then(PathMtu::from_bytes);
        let mtu = mtu.map(|mtu| mtu.bytes() as u32);
        Self { psn: packet.bth.psn(), span, position: info.position, mtu }
    }
}

impl Flow {
    fn new(sighting: &Sighting) -> Self {
        Self {
            highest: sighting.psn,
            span: sighting.span,
            is_open: matches!(sighting.position, Position::First | Position::Middle),
            mtu: sighting.mtu,
            gaps: Gaps::default(),
        }
    }

    fn next(&mut self, sighting: &Sighting, role: Role) -> Option<Mark> {
        let ahead = self.highest.distance_to(sighting.psn);
        if ahead == 0 || ahead > Psn::MASK / 2 {
            return Some(self.behind(sighting));
        }
        // A READ may have many PSNs.
        if ahead > self.span.packets(SMALLEST_MTU).saturating_add(FAR) {
            *self = Self { mtu: self.mtu, ..Self::new(sighting) };
            return Some(Mark::Jump);
        }
        if self.span.is_continued_by(sighting.span) {
            return Some(Mark::Repeat);
        }
        let mark = match role {
            Role::Request => self.request(ahead),
            Role::Response => self.response(ahead, sighting.position),
        };
        *self = Self { mtu: sighting.mtu.or(self.mtu), gaps: self.gaps, ..Self::new(sighting) };
        mark
    }

    /// Handles a PSN that is not above the highest one.
    fn behind(&mut self, sighting: &Sighting) -> Mark {
        if self.gaps.fill(sighting.psn) {
            return Mark::Late;
        }
        if sighting.psn.distance_to(self.highest) > FAR {
            *self = Self { mtu: self.mtu, ..Self::new(sighting) };
            return Mark::Jump;
        }
        // A retransmitted READ may request less, but never more.
        Mark::Repeat
    }

    /// Handles a request. Requests use all PSNs, one after the other.
    fn request(&mut self, ahead: u32) -> Option<Mark> {
        let smallest = self.mtu.unwrap_or(SMALLEST_MTU);
        let expected = self.span.packets(smallest);
        // Until a packet reveals the path MTU, the distance after a READ determines it. After a lost packet,
        // the guess is too small until a shorter distance corrects it.
        let fits = |mtu: &&PathMtu| self.span.packets(mtu.bytes() as u32) == ahead;
        if (self.mtu.is_none() || ahead < expected)
            && let Some(mtu) = PathMtu::ALL.iter().rev().find(fits)
        {
            if expected > 1 {
                self.mtu = Some(mtu.bytes() as u32);
            }
            return None;
        }
        self.missing(ahead, expected)
    }

    /// Handles a response. Responses to READs are consecutive within a message. Between messages, other
    /// requests may have PSNs.
    fn response(&mut self, ahead: u32, position: Position) -> Option<Mark> {
        match (self.is_open, position) {
            (true, Position::Middle | Position::Last) => self.missing(ahead, 1),
            (false, Position::First | Position::Only) => None,
            (true, Position::First | Position::Only) | (false, Position::Middle | Position::Last) => {
                Some(Mark::Unfinished)
            }
        }
    }

    fn missing(&mut self, ahead: u32, expected: u32) -> Option<Mark> {
        let count = ahead.checked_sub(expected).filter(|count| *count > 0)?;
        let first = self.highest.add(expected);
        self.gaps.add(first, count);
        Some(Mark::Gap { first, count })
    }
}

const SMALLEST_MTU: u32 = 256;

impl Gaps {
    fn add(&mut self, first: Psn, count: u32) {
        if self.len == MOST_GAPS {
            self.ranges.rotate_left(1);
            self.len -= 1;
        }
        if let Some(place) = self.ranges.get_mut(self.len) {
            *place = (first.get(), count);
            self.len += 1;
        }
    }

    /// Removes a PSN from the gaps. Returns whether it was in one.
    fn fill(&mut self, psn: Psn) -> bool {
        let inside = |&(first, count): &(u32, u32)| Psn::new(first).distance_to(psn) < count;
        let Some(index) = self.ranges.iter().take(self.len).position(inside) else { return false };
        let (first, count) = self.ranges.get(index).copied().unwrap_or_default();
        let before = Psn::new(first).distance_to(psn);
        let after = count - before - 1;
        self.ranges.copy_within(index + 1.., index);
        self.len -= 1;
        if before > 0 {
            self.add(Psn::new(first), before);
        }
        if after > 0 {
            self.add(psn.add(1), after);
        }
        true
    }
}

#[cfg(test)]
mod tests;
