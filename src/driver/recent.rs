//! The headers of the last packets, for the explanation of a failure.
//!
//! Nobody knows beforehand which packets will matter, so all are remembered. A packet costs one copy of its
//! first bytes; they are interpreted only when somebody asks.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use roce_packet::{HeaderSet, Opcode, Psn, Qpn, Syndrome};
use roce_transport::{DropReason, Ends, Instant, Verdict};

/// Number of packets that are remembered, all queue pairs together. 8 KiB stay in the cache.
const KEPT: usize = 256;
/// Number of failures whose last packets are kept. Later packets of other queue pairs would replace them.
const FAILURES: usize = 4;
/// The BTH and the header behind it, which is the AETH of an answer.
const HEAD: usize = 16;

/// The last packets of all queue pairs.
#[derive(Debug)]
pub(crate) struct Recent {
    ring: Box<[Packet; KEPT]>,
    /// Number of packets so far.
    count: usize,
    /// The packets before the latest failures, with the time at which each was noticed.
    failures: VecDeque<(Instant, Vec<Packet>)>,
    /// Number of failures so far.
    known: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    at: Instant,
    head: [u8; HEAD],
    /// The last bytes of the address of the other end.
    remote: [u8; 4],
    /// BTH to ICRC.
    len: u16,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sent,
    Received(Verdict),
}

/// One of the last packets of a queue pair.
///
/// Its text has one line: whether it was sent or received, its opcode, PSN and syndrome, and the reason if it
/// was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastPacket {
    /// Time from the packet to the failure; to now, if the queue pair has not failed.
    pub before: Duration,
    /// Whether this side sent the packet, or received it.
    pub is_sent: bool,
    /// The opcode.
    pub opcode: Opcode,
    /// The PSN.
    pub psn: Psn,
    /// The syndrome, if the packet has an AETH.
    pub syndrome: Option<Syndrome>,
    /// Bytes from BTH to ICRC.
    pub len: u16,
    /// Why this side dropped the packet, if it did.
    pub dropped: Option<DropReason>,
    /// Number of equal packets in a row, of which this is the newest.
    pub times: u32,
}

impl Recent {
    pub(super) fn new() -> Self {
        let none = Packet { at: Instant::ZERO, head: [0; HEAD], remote: [0; 4], len: 0, fate: Fate::Sent };
        Self { ring: Box::new([none; KEPT]), count: 0, failures: VecDeque::new(), known: 0 }
    }

    #[inline]
    pub(super) fn sent(&mut self, now: Instant, remote: IpAddr, bytes: &[u8], len: usize) {
        self.note(now, remote, bytes, len, Fate::Sent);
    }

    #[inline]
    pub(super) fn received(
        &mut self,
        now: Instant,
        remote: IpAddr,
        [head, tail]: [&[u8]; 2],
        verdict: Verdict,
    ) {
        self.note(now, remote, head, head.len() + tail.len(), Fate::Received(verdict));
    }

    #[inline]
    fn note(&mut self, at: Instant, remote: IpAddr, bytes: &[u8], len: usize, fate: Fate) {
        // Without a BTH, a packet belongs to no queue pair.
        let Some(&head) = bytes.first_chunk() else { return };
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        if let Some(place) = self.ring.get_mut(self.count % KEPT) {
            *place = Packet { at, head, remote: last_bytes(remote), len, fate };
        }
        self.count = self.count.wrapping_add(1);
    }

    /// Keeps the last packets if queue pairs have failed since the last call. `failures` is their number so
    /// far.
    #[inline]
    pub(super) fn keep(&mut self, now: Instant, failures: u64) {
        if self.known != failures {
            self.known = failures;
            self.keep_all(now);
        }
    }

    #[cold]
    fn keep_all(&mut self, now: Instant) {
        if self.failures.len() == FAILURES {
            self.failures.pop_front();
        }
        let packets = self.newest_last().copied().collect();
        self.failures.push_back((now, packets));
    }

    fn newest_last(&self) -> impl DoubleEndedIterator<Item = &Packet> {
        let (newer, older) = self.ring.split_at(self.count % KEPT);
        older.iter().chain(newer).filter(|packet| packet.len > 0)
    }

    /// Returns at most `most` last packets of a connection, the newest last: those before the failure at this
    /// time, or those before now.
    pub(crate) fn of(
        &self,
        connection: &Connection,
        failed: Option<Instant>,
        now: Instant,
        most: usize,
    ) -> Vec<LastPacket> {
        let Some(failed) = failed else {
            return last(self.newest_last(), connection, now, most);
        };
        let kept = self.failures.iter().find(|(at, _)| *at >= failed);
        kept.map_or_else(Vec::new, |(_, packets)| last(packets.iter(), connection, failed, most))
    }
}

/// The ends of a connection, by which its packets are recognized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) own: Qpn,
    pub(crate) peer: Qpn,
    /// `None` for UD: what such a queue pair sends does not name it.
    pub(crate) ends: Option<Ends>,
}

impl Connection {
    fn has(&self, packet: &Packet) -> bool {
        let dest = packet.dest();
        match packet.fate {
            Fate::Received(_) => dest == self.own,
            Fate::Sent => {
                let is_to = |ends: Ends| packet.remote == last_bytes(ends.remote);
                dest == self.peer && self.ends.is_some_and(is_to)
            }
        }
    }
}

/// Returns the last packets of a connection, the newest last.
fn last<'a>(
    packets: impl DoubleEndedIterator<Item = &'a Packet>,
    connection: &Connection,
    end: Instant,
    most: usize,
) -> Vec<LastPacket> {
    let mut found: Vec<LastPacket> = Vec::with_capacity(most);
    for packet in packets.rev().filter(|packet| connection.has(packet)) {
        let shown = packet.show(end);
        let is_full = found.len() == most;
        match found.last_mut() {
            Some(newer) if newer.is_like(&shown) => newer.times += 1,
            _ if is_full => break,
            _ => found.push(shown),
        }
    }
    found.reverse();
    found
}

impl Packet {
    fn dest(&self) -> Qpn {
        let [_, _, _, _, _, high, middle, low, ..] = self.head;
        Qpn::from_be_bytes([high, middle, low])
    }

    fn show(&self, end: Instant) -> LastPacket {
        let [opcode, _, _, _, _, _, _, _, _, high, middle, low, syndrome, ..] = self.head;
        let opcode = Opcode(opcode);
        let has_aeth = opcode.info().is_some_and(|info| info.headers.contains(HeaderSet::AETH));
        LastPacket {
            before: end.since(self.at),
            is_sent: self.fate == Fate::Sent,
            opcode,
            psn: Psn::from_be_bytes([high, middle, low]),
            syndrome: has_aeth.then(|| Syndrome::from_byte(syndrome)),
            len: self.len,
            dropped: match self.fate {
                Fate::Received(Verdict::Dropped(reason)) => Some(reason),
                Fate::Received(Verdict::Handled) | Fate::Sent => None,
            },
            times: 1,
        }
    }
}

impl LastPacket {
    /// Returns whether two packets differ at most in their time.
    fn is_like(&self, other: &Self) -> bool {
        Self { before: other.before, times: other.times, ..*self } == *other
    }
}

impl fmt::Display for LastPacket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, is_sent, opcode, psn, syndrome, len, dropped, times } = self;
        let verb = if *is_sent { "sent" } else { "received" };
        write!(formatter, "{before:.3?} before: {verb} {opcode} PSN {}, {len} bytes", psn.get())?;
        if let Some(syndrome) = syndrome {
            write!(formatter, ", {syndrome}")?;
        }
        if let Some(reason) = dropped {
            write!(formatter, ", dropped: {}", reason.counter())?;
        }
        if *times > 1 {
            write!(formatter, ", {times} times")?;
        }
        Ok(())
    }
}

/// Returns the last bytes of an address, which tell the hosts of a network apart.
#[inline]
fn last_bytes(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Qpn = Qpn::new(7);
    const PEER: Qpn = Qpn::new(9);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn connection() -> Connection {
        let ends = Ends { local: address(1), remote: address(2) };
        Connection { own: OWN, peer: PEER, ends: Some(ends) }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// The first bytes of a packet.
    fn bytes(opcode: u8, dest: Qpn, psn: u8, syndrome: u8) -> [u8; HEAD] {
        let [_, a, b, c] = dest.get().to_be_bytes();
        [opcode, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, psn, syndrome, 0, 0, 1]
    }

    const WRITE_ONLY: u8 = 0x0a;
    const ACK: u8 = 0x11;

    fn shown(recent: &Recent, failed: Option<Instant>, most: usize) -> Vec<String> {
        recent.of(&connection(), failed, at(1_000), most).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn packets_of_a_connection_are_those_of_its_queue_pairs_and_of_its_peer() {
        let mut recent = Recent::new();
        recent.sent(at(10), address(2), &bytes(WRITE_ONLY, PEER, 5, 0), 92);
        recent.sent(at(20), address(3), &bytes(WRITE_ONLY, PEER, 6, 0), 92);
        recent.sent(at(30), address(2), &bytes(WRITE_ONLY, OWN, 7, 0), 92);
        let ack = bytes(ACK, OWN, 5, 0x62);
        recent.received(at(40), address(2), [&ack, &[0; 4]], Verdict::Handled);
        let dropped = Verdict::Dropped(DropReason::BadState);
        recent.received(at(50), address(2), [&bytes(WRITE_ONLY, OWN, 8, 0), &[]], dropped);
        recent.received(at(60), address(2), [&bytes(WRITE_ONLY, PEER, 9, 0), &[]], Verdict::Handled);
        recent.received(at(70), address(2), [&[0; 15], &[0; 99]], Verdict::Handled);
        let expected = [
            "990.000µs before: sent RC_RDMA_WRITE_ONLY PSN 5, 92 bytes",
            "960.000µs before: received RC_ACKNOWLEDGE PSN 5, 20 bytes, NAK remote access error",
            "950.000µs before: received RC_RDMA_WRITE_ONLY PSN 8, 16 bytes, dropped: drop_bad_state",
        ];
        assert_eq!(shown(&recent, None, 9), expected);
        assert_eq!(shown(&recent, None, 2), expected[1..]);
    }

    #[test]
    fn equal_packets_in_a_row_are_one_line() {
        let mut recent = Recent::new();
        recent.sent(at(1), address(2), &bytes(WRITE_ONLY, PEER, 4, 0), 92);
        for time in [10, 20, 30] {
            recent.sent(at(time), address(2), &bytes(WRITE_ONLY, PEER, 5, 0), 92);
        }
        let lines = shown(&recent, None, 2);
        assert_eq!(lines[1], "970.000µs before: sent RC_RDMA_WRITE_ONLY PSN 5, 92 bytes, 3 times");
        assert!(lines[0].contains("PSN 4"), "{lines:?}");
    }

    #[test]
    fn later_packets_of_others_do_not_replace_those_before_a_failure() {
        let mut recent = Recent::new();
        let mut play = |failure: u64| {
            let time = failure * 100;
            let psn = u8::try_from(failure).unwrap();
            recent.sent(at(time), address(2), &bytes(WRITE_ONLY, PEER, psn, 0), 92);
            recent.keep(at(time + 2), failure);
            for _ in 0..2 * KEPT {
                recent.sent(at(time + 3), address(2), &bytes(WRITE_ONLY, Qpn::new(1), 0, 0), 92);
            }
            recent.keep(at(time + 4), failure);
        };
        (1..=FAILURES as u64 + 1).for_each(&mut play);
        assert!(shown(&recent, None, 9).is_empty());
        assert!(
            shown(&recent, Some(at(501)), 9)[0].contains("1.000µs before: sent RC_RDMA_WRITE_ONLY PSN 5")
        );
        assert!(shown(&recent, Some(at(201)), 9)[0].contains("PSN 2"));
        assert!(shown(&recent, Some(at(600)), 9).is_empty(), "not noticed yet");
    }

    #[test]
    fn a_packet_is_half_a_cache_line() {
        assert!(size_of::<Packet>() <= 32, "{}", size_of::<Packet>());
    }
}
