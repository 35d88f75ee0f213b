//! A script from the packets of a recorded connection.
//!
//! The script plays one end: it sends what this end sent, and expects what the other end sent. Memory of the
//! NIC takes the place of the recorded regions, and the NIC posts the requests that the recorded one sent.

mod packet;
mod regions;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;

use roce_packet::{Datagram, NakCode, Operation, Position, Psn, Syndrome, Transport};

use packet::{Packet, answered_psns};
use regions::Regions;
use words::{Line, post_words};

pub use packet::{NoScript, Recorded};

/// Shorter pauses of the recording are left out.
const PAUSE_NS: u64 = 1_000_000;
/// Time in which every expectation is met without `within`.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Returns the text of a script that repeats these packets of an RC connection. `is_sent` marks those of the
/// end that the script plays.
///
/// Payloads of more than 32 bytes become patterns of the same length. MSNs count from the start of the
/// script.
///
/// # Errors
///
/// Fails if there are no packets of an RC connection, if one is incomplete, or if its regions are too large.
pub fn script_of(title: &str, recorded: &[Recorded<'_>]) -> Result<String, NoScript> {
    let packets = recorded.iter().map(Packet::new).collect::<Result<Vec<_>, _>>()?;
    if !packets.iter().any(|packet| packet.transport() == Some(Transport::Rc)) {
        return Err(NoScript("the connection has no packet of RC".to_owned()));
    }
    Writer::new(&packets)?.write(title)
}

/// The lines of a script.
struct Writer<'a> {
    packets: &'a [Packet<'a>],
    regions: Regions,
    /// The path MTU in bytes.
    mtu: u32,
    text: String,
    /// The PSNs of the RNR NAKs.
    not_ready: BTreeSet<u32>,
    /// The PSNs of requests of the script for which the NIC has a receive.
    received: BTreeSet<u32>,
    /// The number of PSNs of each request that the NIC has posted, by its first PSN.
    posted: BTreeMap<u32, u32>,
    next_id: u32,
    /// What to subtract from the MSNs of the NIC.
    msn_offset: Option<u32>,
    /// The PSN of the last packet of each message of the script. The NIC counts a READ at its request.
    last_psns: Vec<Psn>,
}

impl<'a> Writer<'a> {
    fn new(packets: &'a [Packet<'a>]) -> Result<Self, NoScript> {
        let (mut last_psns, mut known) = (Vec::new(), HashSet::new());
        for packet in packets.iter().filter(|packet| packet.is_request(true) && packet.ends()) {
            let Some(psn) = packet.psn() else { continue };
            if known.insert(psn) {
                last_psns.push(psn);
            }
        }
        Ok(Self {
            packets,
            regions: Regions::of(packets)?,
            mtu: mtu_of(packets),
            not_ready: answered_psns(packets, |syndrome| matches!(syndrome, Syndrome::RnrNak { .. })),
            text: String::new(),
            received: BTreeSet::new(),
            posted: BTreeMap::new(),
            next_id: 1,
            msn_offset: None,
            last_psns,
        })
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn write(mut self, title: &str) -> Result<String, NoScript> {
        self.line(&format!("# {title}"));
        self.line("rule \"as recorded\"");
        self.connect();
        for line in self.regions.lines() {
            self.line(&line);
        }
        let inbox = self.longest(true);
        if self.packets.iter().any(|packet| packet.is_request(true) && packet.needs_receive()) {
            self.line(&format!("memory inbox {inbox} bytes"));
        }
        if self.packets.iter().any(|packet| packet.is_request(false)) {
            self.line(&format!("memory local {} bytes", self.longest(false)));
        }
        let mut before: Option<u64> = None;
        for (index, packet) in self.packets.iter().enumerate() {
            let at = packet.record.at.as_nanos();
            let pause = before.replace(at).map_or(0, |before| at.saturating_sub(before));
            if packet.record.is_sent {
                self.send(index, packet, pause, inbox);
            } else {
                self.expect(index, packet, pause);
            }
        }
        Ok(self.text)
    }

    fn connect(&mut self) {
        let first = |is_sent| {
            let mut requests = self.packets.iter().filter(move |packet| packet.is_request(is_sent));
            requests.find_map(Packet::psn)
        };
        let mut line = format!("connect rc mtu={}", self.mtu);
        // A closed format never fails on a string.
        if let Some(psn) = first(true).map(|first| self.expected_first(first)) {
            let _ = write!(line, " psn={}", psn.get());
        }
        if let Some(psn) = first(false) {
            let _ = write!(line, " peer_psn={}", psn.get());
        }
        let rnr_timer = self.packets.iter().filter(|packet| !packet.record.is_sent).find_map(|packet| {
            match packet.syndrome()? {
                Syndrome::RnrNak { timer } => Some(timer.code()),
                _ => None,
            }
        });
        if let Some(code) = rnr_timer {
            let _ = write!(line, " rnr_timer={code}");
        }
        let is_cnp = |packet: &Packet<'_>| packet.transport() == Some(Transport::Cnp);
        if self.packets.iter().any(|packet| packet.record.is_marked || is_cnp(packet)) {
            line.push_str(" congestion=\"dcqcn\"");
        }
        self.line(&line);
    }

    /// Returns the PSN that the NIC expects first: that of the first request, unless the first answer says
    /// otherwise.
    fn expected_first(&self, first: Psn) -> Psn {
        let mut answers = self.packets.iter().filter(|packet| !packet.record.is_sent);
        let answer = answers.find_map(|packet| Some((packet.syndrome()?, packet.psn()?)));
        match answer {
            Some((Syndrome::Nak(NakCode::PsnSequence), psn)) if precedes(psn, first) => psn,
            // The first request was a duplicate.
            Some((Syndrome::Ack { .. }, psn)) if !precedes(first, psn.add(1)) => psn.add(1),
            _ => first,
        }
    }

    /// Returns the length of the longest message of one end, in whole pages.
    fn longest(&self, is_sent: bool) -> u64 {
        let (mut longest, mut len) = (1, 0);
        for packet in self.packets.iter().filter(|packet| packet.is_request(is_sent)) {
            let Some(datagram) = &packet.datagram else { continue };
            if packet.begins() {
                len = 0;
            }
            len += datagram.payload_len() as u64;
            let whole = datagram.reth().map_or(0, |reth| u64::from(reth.dma_len));
            longest = longest.max(len).max(if is_sent { 0 } else { whole });
        }
        longest.next_multiple_of(4096)
    }

    /// Writes the line of a packet that the script sends.
    fn send(&mut self, index: usize, packet: &Packet<'_>, pause: u64, inbox: u64) {
        if pause >= PAUSE_NS {
            self.line(&format!("wait {}us", pause / 1_000));
        }
        let Some(datagram) = &packet.datagram else {
            let mut line = "send raw hex\"".to_owned();
            let body = packet.record.bytes.len().saturating_sub(4);
            for byte in packet.record.bytes.iter().take(body) {
                let _ = write!(line, "{byte:02x}");
            }
            line.push('"');
            return self.line(&line);
        };
        let psn = datagram.bth().psn.get();
        let receives = packet.is_request(true) && packet.needs_receive();
        if receives && !self.received.contains(&psn) && !self.is_refused_as_not_ready(index, psn) {
            self.received.insert(psn);
            let id = self.take_id();
            let data = if packet.datagram.as_ref().is_some_and(|datagram| datagram.payload_len() == 0) {
                String::new()
            } else {
                format!(" data=inbox[0..{inbox}]")
            };
            self.line(&format!("post recv id={id}{data}"));
        }
        if datagram.ieth().is_some() {
            self.line("# Invalidates a key of the recorded NIC: bind a window, and write its rkey here.");
        }
        let line = Line::sent(datagram, packet.record, &self.regions).text;
        self.line(&line);
    }

    /// Returns whether the NIC answered this copy of a request with an RNR NAK.
    fn is_refused_as_not_ready(&self, index: usize, psn: u32) -> bool {
        if !self.not_ready.contains(&psn) {
            return false;
        }
        let later = self.packets.iter().skip(index + 1);
        let until_next = later.take_while(|packet| {
            !(packet.is_request(true) && packet.psn().is_some_and(|next| next.get() == psn))
        });
        let mut answers = until_next.filter(|packet| !packet.record.is_sent);
        answers.any(|packet| {
            matches!(packet.syndrome(), Some(Syndrome::RnrNak { .. }))
                && packet.psn().is_some_and(|refused| refused.get() == psn)
        })
    }

    fn take_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Writes the line of a packet that the NIC sends, after the request that lets it send the packet.
    fn expect(&mut self, index: usize, packet: &Packet<'_>, pause: u64) {
        let Some(datagram) = &packet.datagram else { return };
        let psn = datagram.bth().psn.get();
        if packet.is_request(false) && packet.begins() && !self.is_posted(datagram.bth().psn) {
            let id = self.take_id();
            let (len, last) = self.message(index, datagram);
            self.posted.insert(psn, self.psns_of(datagram));
            self.line(&post_words(datagram, &last, id, len));
        }
        let mut line = Line::expected(datagram);
        if let Some(aeth) = datagram.aeth() {
            let msn = aeth.msn.get();
            let offset = match self.msn_offset {
                Some(offset) => offset,
                None => *self.msn_offset.insert(msn.wrapping_sub(self.completed(psn, aeth.syndrome))),
            };
            line.word(&format!("msn={}", msn.wrapping_sub(offset) & Psn::MASK));
        }
        if pause > PATIENCE_NS / 4 {
            line.word(&format!("within {}ms", 4 * pause / 1_000_000));
        }
        let text = line.text;
        self.line(&text);
    }

    /// Returns the number of messages of the script that are complete at an answer with this PSN.
    fn completed(&self, psn: u32, syndrome: Syndrome) -> u32 {
        let is_ack = matches!(syndrome, Syndrome::Ack { .. });
        let is_complete = |last: &&Psn| precedes(**last, Psn::new(psn)) || is_ack && last.get() == psn;
        self.last_psns.iter().filter(is_complete).count() as u32
    }

    /// Returns whether the PSN belongs to a request of the NIC that is posted already. The NIC may ask again
    /// for a part of a READ.
    fn is_posted(&self, psn: Psn) -> bool {
        // The request that begins last at or before the PSN. PSNs go around.
        let before = self.posted.range(..=psn.get()).next_back().or_else(|| self.posted.last_key_value());
        before.is_some_and(|(first, count)| psn.get().wrapping_sub(*first) & Psn::MASK < *count)
    }

    /// Returns the number of PSNs of a request packet: of a READ, those of its responses.
    fn psns_of(&self, datagram: &Datagram<'_>) -> u32 {
        let is_read = datagram.info().operation == Operation::ReadRequest;
        let len = datagram.reth().filter(|_| is_read).map_or(0, |reth| reth.dma_len);
        len.div_ceil(self.mtu).max(1)
    }

    /// Returns the bytes of the message of the NIC that begins with the packet at an index, and its last
    /// packet.
    fn message(&self, index: usize, first: &Datagram<'a>) -> (u64, Datagram<'a>) {
        let (mut len, mut next, mut last) = (0, first.bth().psn, *first);
        let from_first = self.packets.iter().skip(index).filter(|packet| packet.is_request(false));
        for (packet, datagram) in from_first.filter_map(|packet| Some((packet, packet.datagram?))) {
            if datagram.bth().psn == next {
                len += datagram.payload_len() as u64;
                next = next.add(1);
                last = datagram;
                if packet.ends() {
                    break;
                }
            }
        }
        (first.reth().map_or(len, |reth| reth.dma_len.into()), last)
    }
}

/// Returns whether one PSN precedes another. A recording has fewer than 2^22 packets, so a longer way leads
/// around the numbers.
fn precedes(one: Psn, other: Psn) -> bool {
    (1..=Psn::MASK / 4).contains(&(other.get().wrapping_sub(one.get()) & Psn::MASK))
}

/// Returns the path MTU: the payload of a packet that is not the last of its message, otherwise the smallest
/// one with room for all payloads.
fn mtu_of(packets: &[Packet<'_>]) -> u32 {
    let datagrams = || packets.iter().filter_map(|packet| packet.datagram.as_ref());
    let is_full =
        |datagram: &&Datagram<'_>| matches!(datagram.info().position, Position::First | Position::Middle);
    let full = datagrams().find(is_full).map(Datagram::payload_len);
    let longest = full.or_else(|| datagrams().map(Datagram::payload_len).max()).unwrap_or(0);
    [1024, 2048, 4096]
        .into_iter()
        .chain([256, 512])
        .find(|mtu| match full {
            Some(full) => full == *mtu as usize,
            None => longest <= *mtu as usize,
        })
        .unwrap_or(4096)
}

#[cfg(test)]
mod tests;
