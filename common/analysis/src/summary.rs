//! One connection in figures: who sent how much, what was lost, and how long answers took.

use std::collections::HashSet;

use roce_packet::mad::CmMessage;
use roce_packet::{Direction, Encapsulation, Operation, PathMtu, Transport};

use crate::analysis::Analysis;
use crate::connection::{Connection, End, View};
use crate::damage::{damaged, in_gaps, lost_between};
use crate::record::{Bits, Extension, Place, Record, StreamId};
use crate::replay::{Answer, Cause, GapEnd, Replay, Resend, ResponseGap, Sent};
use crate::stall::{Stall, longest};

/// A connection in figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Both ends; end 0 sent the packet that was captured first.
    pub ends: [End; 2],
    /// Transport service.
    pub transport: Transport,
    /// Version of RoCE.
    pub encapsulation: Encapsulation,
    /// Number of places at which the connection was captured.
    pub taps: usize,
    /// Packets in both directions at the tap with the most, without copies of a mirror.
    pub packets: u64,
    /// Times of the first and the last packet at that tap, in nanoseconds; `None` without times.
    pub times_ns: Option<(u64, u64)>,
    /// What each end requested.
    pub requests: [Requests; 2],
    /// Congestion notifications that each end sent.
    pub notifications: [u64; 2],
    /// Packets of each end with an ECN mark.
    pub marked: [u64; 2],
    /// Packets of each end that came with a wrong ICRC although others of it are right. They do not count as
    /// lost.
    pub damaged: [u64; 2],
    /// Messages of connection management.
    pub management: Management,
}

/// What one end requested, and what came back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// The operations, the most frequent one first.
    pub operations: Vec<Operations>,
    /// Path MTU, if the packets show it.
    pub mtu: Option<PathMtu>,
    /// Number of messages.
    pub messages: u64,
    /// Number of messages whose answer was captured.
    pub answered: u64,
    /// Bytes of the messages, each counted once, whether they arrived or not. READs count although their
    /// bytes flow to the requester.
    pub bytes: u64,
    /// The bytes that arrived, each counted once: those that the receiver acknowledged. `None` if the
    /// captures do not show it.
    pub delivered_bytes: Option<u64>,
    /// Bytes of the frames with requests and READ responses, every copy counted.
    pub wire_bytes: u64,
    /// Delivered bytes per time from the first request to the last request or answer, in bits per second.
    pub goodput_bps: Option<f64>,
    /// Bytes of frames per time from the first request to the last request or answer, in bits per second.
    pub wire_bps: Option<f64>,
    /// Request packets that were lost, as far as the captures show it.
    pub lost: u64,
    /// READ responses that were lost, as far as the captures show it.
    pub lost_responses: u64,
    /// ACKs, NAKs and atomic responses that were lost between two taps. One tap does not show their loss.
    pub lost_answers: u64,
    /// Request packets that were sent again.
    pub resent: u64,
    /// NAKs for sequence errors.
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// NAKs that refuse a request.
    pub refusals: u64,
    /// Retransmissions that followed a timeout.
    pub timeouts: u64,
    /// Time from a request packet to its answer at the tap near the requester. Packets that were sent again
    /// do not count, because the answer may belong to any copy.
    pub round_trips: Option<Distribution>,
    /// Time from the first copy of a request packet that was sent again to its first answer.
    pub repeated_round_trips: Option<Distribution>,
    /// The longest time in which nothing came back, if it is much longer than the usual time of an answer.
    pub stall: Option<Stall>,
    /// Largest number of messages that waited for their answer at one time.
    pub most_messages_in_flight: u64,
    /// Largest number of PSNs that waited for their answer at one time.
    pub most_packets_in_flight: u64,
}

/// Messages with one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations {
    /// The operation.
    pub operation: Operation,
    /// Number of messages.
    pub count: u64,
    /// Number of bytes of the shortest message.
    pub least_bytes: u64,
    /// Number of bytes of the longest message.
    pub most_bytes: u64,
}

/// A distribution of times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Number of times.
    pub count: usize,
    /// The shortest.
    pub least_ns: u64,
    /// Half of them are at most this long.
    pub median_ns: u64,
    /// 99 of 100 are at most this long.
    pub p99_ns: u64,
    /// The longest.
    pub most_ns: u64,
}

impl Distribution {
    /// Returns the distribution of these times, or `None` if there are none.
    #[must_use]
    pub fn of(mut times: Vec<u64>) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let at = |percent: usize| times.get(last * percent / 100).copied();
        Some(Self {
            count: times.len(),
            least_ns: at(0)?,
            median_ns: at(50)?,
            p99_ns: at(99)?,
            most_ns: at(100)?,
        })
    }
}

/// The messages of connection management that name the queue pairs of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Management {
    /// The first REQ.
    pub request: Option<Place>,
    /// The first REP.
    pub reply: Option<Place>,
    /// The first RTU.
    pub ready: Option<Place>,
    /// The first DREQ.
    pub disconnect: Option<Place>,
}

/// Returns the figures of a connection.
#[must_use]
pub fn summary(analysis: &Analysis, connection: &Connection) -> Summary {
    let records = &analysis.records;
    let view = connection.views.first();
    let seen = || {
        let indices = view.map_or(&[][..], |view| &view.indices);
        indices.iter().filter_map(|index| records.get(*index)).filter(|one| !one.bits.contains(Bits::COPY))
    };
    let is_timed = analysis.counts.without_time == 0;
    let first = seen().map(|record| record.time_ns).min();
    let last = seen().map(|record| record.time_ns).max();
    let count = |end: usize, what: fn(&Record) -> bool| {
        let stream = connection.streams.get(end).copied().flatten();
        seen().filter(|record| Some(record.stream) == stream && what(record)).count() as u64
    };
    let both = |what: fn(&Record) -> bool| [count(0, what), count(1, what)];
    Summary {
        ends: connection.ends,
        transport: connection.transport,
        encapsulation: connection.encapsulation,
        taps: connection.views.len(),
        packets: seen().count() as u64,
        times_ns: first.zip(last).filter(|_| is_timed),
        requests: [0, 1].map(|end| requests(analysis, connection, end)),
        notifications: both(|record| record.info().is_some_and(|info| info.operation == Operation::Cnp)),
        marked: both(|record| record.ecn() == 0b11),
        damaged: [0, 1].map(|end| damaged(records, connection, end)),
        management: management(analysis, connection),
    }
}

fn requests(analysis: &Analysis, connection: &Connection, end: usize) -> Requests {
    let records = &analysis.records;
    let (Some(view), Some(replay)) = (connection.view_of(end), connection.requester(end)) else {
        return Requests::default();
    };
    let messages = messages(records, replay);
    let is_timed = analysis.counts.without_time == 0;
    let bytes = messages.iter().filter_map(Message::bytes).sum();
    let delivered_bytes = delivered(analysis, connection, end);
    let wire_bytes = wire_bytes(records, connection, view, end);
    let span = span_ns(records, connection, view, end).filter(|_| is_timed);
    let round_trips =
        Distribution::of(round_trips(records, replay).map(|(_, time)| time).collect()).filter(|_| is_timed);
    let repeated_round_trips = Distribution::of(repeated_round_trips(records, replay)).filter(|_| is_timed);
    let rate = |bytes: u64| span.map(|span| bits_per_second(bytes, span));
    Requests {
        operations: operations(&messages),
        mtu: replay.mtu,
        messages: messages.len() as u64,
        answered: replay.messages.len() as u64,
        bytes,
        delivered_bytes,
        wire_bytes,
        goodput_bps: delivered_bytes.and_then(rate).filter(|_| bytes > 0),
        wire_bps: rate(wire_bytes).filter(|_| wire_bytes > 0),
        lost: lost_requests(records, connection, replay, end),
        lost_answers: lost_between(records, connection, 1 - end).filter(|record| is_answer(record)).count()
            as u64,
        lost_responses: lost_responses(records, connection, replay, end),
        resent: replay.resends.iter().map(|resend| resend.packets).sum(),
        naks: replay.naks.len() as u64,
        rnr_naks: replay.rnr.len() as u64,
        refusals: replay.refusals.len() as u64,
        timeouts: replay.timeouts().count() as u64,
        round_trips,
        repeated_round_trips,
        stall: round_trips.and_then(|times| longest(analysis, connection, end, times.median_ns)),
        most_messages_in_flight: most_at_once(&replay.messages),
        most_packets_in_flight: replay.most_in_flight,
    }
}

/// A message of a requester.
struct Message {
    operation: Operation,
    /// Its length, if a header says it.
    announced: Option<u64>,
    /// The bytes of its captured packets.
    payload: u64,
    /// Whether all of its packets were captured.
    is_whole: bool,
    /// The PSN of its first captured packet, and the one behind its last.
    first: u64,
    end: u64,
}

impl Message {
    /// Returns its length, if all of it was captured or a header says it.
    fn bytes(&self) -> Option<u64> {
        self.announced.or(self.is_whole.then_some(self.payload))
    }
}

/// Returns the messages of a requester whose end was captured.
fn messages(records: &[Record], replay: &Replay) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut begun: Option<Message> = None;
    for (psn, Sent { first, span, .. }) in &replay.sent {
        let Some(record) = records.get(*first) else { continue };
        let Some(info) = record.info() else { continue };
        let payload = u64::from(record.payload_len);
        let end = psn.saturating_add(*span);
        let message = match begun.take() {
            Some(message) if !info.starts_message() => Message {
                payload: message.payload.saturating_add(payload),
                is_whole: message.is_whole && message.end == *psn,
                end,
                ..message
            },
            _ => {
                let (operation, is_whole) = (info.operation, info.starts_message());
                let announced = announced_bytes(record).filter(|_| is_whole);
                Message { operation, announced, payload, is_whole, first: *psn, end }
            }
        };
        if info.ends_message() {
            messages.push(message);
        } else {
            begun = Some(message);
        }
    }
    messages
}

/// Returns the length of a message that the header of its first packet says.
fn announced_bytes(record: &Record) -> Option<u64> {
    match record.extension {
        Extension::Reth(reth) => Some(u64::from(reth.dma_len)),
        Extension::Atomic(_) => Some(8),
        _ => None,
    }
}

/// Returns the delivered bytes of the requests of an end per time from the first request to the last packet
/// that belongs to them, in bits per second. `None` if the captures do not show it.
#[must_use]
pub fn goodput(analysis: &Analysis, connection: &Connection, end: usize) -> Option<f64> {
    if analysis.counts.without_time > 0 {
        return None;
    }
    let span = span_ns(&analysis.records, connection, connection.view_of(end)?, end)?;
    Some(bits_per_second(delivered(analysis, connection, end)?, span))
}

fn bits_per_second(bytes: u64, span_ns: u64) -> f64 {
    bytes as f64 * 8e9 / span_ns as f64
}

/// Returns the bytes of the messages of an end that arrived, each counted once. An acknowledgement shows it;
/// of an unreliable message, only another tap does, and it must be whole. `None` if nothing shows it.
fn delivered(analysis: &Analysis, connection: &Connection, end: usize) -> Option<u64> {
    let records = &analysis.records;
    let replay = connection.requester(end).filter(|replay| !replay.sent.is_empty())?;
    if connection.transport == Transport::Uc {
        let crossing = connection.crossing(end)?;
        let is_lost = |sent: &Sent| crossing.lost.binary_search(&sent.first).is_ok();
        let arrived = messages(records, replay).into_iter().filter(|message| {
            let mut packets = replay.sent.range(message.first..message.end);
            message.is_whole && !packets.any(|(_, sent)| is_lost(sent))
        });
        return Some(arrived.filter_map(|message| message.bytes()).sum());
    }
    // Without answers and timeouts, the capture may lack the answers.
    if replay.answers.is_empty() && connection.between.is_none() && replay.timeouts().next().is_none() {
        return None;
    }
    let limit = replay.unacknowledged;
    let (mut bytes, mut counted) = (0_u64, 0);
    for message in messages(records, replay).iter().filter(|message| message.end <= limit) {
        bytes = bytes.saturating_add(message.bytes().unwrap_or(message.payload));
        counted = message.end;
    }
    // The acknowledged part of the next message.
    let rest = replay.sent.range(counted..limit.max(counted));
    let rest = rest.map(|(psn, sent)| match records.get(sent.first).map(|record| record.extension) {
        Some(Extension::Reth(reth)) if sent.span > 1 => {
            let mtu = replay.mtu.map_or(0, |mtu| mtu.bytes() as u64);
            limit.saturating_sub(*psn).saturating_mul(mtu).min(reth.dma_len.into())
        }
        _ => payload_of(records, sent),
    });
    Some(bytes.saturating_add(rest.sum()))
}

fn payload_of(records: &[Record], sent: &Sent) -> u64 {
    records.get(sent.first).map_or(0, |record| record.payload_len.into())
}

fn operations(messages: &[Message]) -> Vec<Operations> {
    let mut all: Vec<Operations> = Vec::new();
    for message in messages {
        let operation = message.operation;
        let one = match all.iter_mut().find(|one| one.operation == operation) {
            Some(one) => one,
            None => {
                let new = Operations { operation, count: 0, least_bytes: u64::MAX, most_bytes: 0 };
                all.push(new);
                let Some(new) = all.last_mut() else { continue };
                new
            }
        };
        one.count += 1;
        if let Some(bytes) = message.bytes() {
            one.least_bytes = one.least_bytes.min(bytes);
            one.most_bytes = one.most_bytes.max(bytes);
        }
    }
    for one in &mut all {
        // No message of this operation was captured as a whole.
        one.least_bytes = one.least_bytes.min(one.most_bytes);
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.count));
    all
}

/// Returns the packets that belong to the requests of an end: the requests, and the answers to them.
fn parts<'a>(
    records: &'a [Record],
    connection: &Connection,
    view: &'a View,
    end: usize,
) -> impl Iterator<Item = &'a Record> + use<'a> {
    let stream = |end: Option<usize>| connection.streams.get(end?).copied().flatten();
    let (own, other) = (stream(Some(end)), stream(1_usize.checked_sub(end)));
    let all = view.indices.iter().filter_map(|index| records.get(*index));
    all.filter(move |record| match record.info().map(|info| info.direction) {
        Some(Direction::Request) => is_of(record, own),
        Some(Direction::Response) => is_of(record, other),
        _ => false,
    })
}

/// Returns the time from the first request of an end to the last packet that belongs to its requests.
fn span_ns(records: &[Record], connection: &Connection, view: &View, end: usize) -> Option<u64> {
    let times = || parts(records, connection, view, end).map(|record| record.time_ns);
    times().max()?.checked_sub(times().min()?).filter(|span| *span > 0)
}

/// Returns the bytes of the frames with requests of an end and with responses to its READs.
fn wire_bytes(records: &[Record], connection: &Connection, view: &View, end: usize) -> u64 {
    let all = parts(records, connection, view, end);
    let counted = all.filter(|record| !record.bits.contains(Bits::COPY) && !is_answer(record));
    counted.map(|record| u64::from(record.wire_len)).sum()
}

/// Returns the number of lost requests: those that another tap misses, those that are missing in front of the
/// tap, and those behind it that a NAK asks for. Damaged packets came to a tap.
fn lost_requests(records: &[Record], connection: &Connection, replay: &Replay, end: usize) -> u64 {
    let gaps =
        || replay.gaps.iter().filter(|gap| gap.end == GapEnd::Resent).map(|gap| (gap.after, gap.count));
    let missing: u64 = gaps().map(|(_, count)| count).sum();
    let stream = connection.streams.get(end).copied().flatten();
    let view = connection.view_of(end);
    let came = view.map_or(0, |view| in_gaps(records, view, stream, Direction::Request, gaps()));
    let is_request = |record: &Record| record.info().is_some_and(|info| info.direction == Direction::Request);
    let behind = match connection.between {
        Some(_) => lost_between(records, connection, end).filter(|record| is_request(record)).count() as u64,
        None => replay.naks.iter().filter(|nak| nak.shows_loss_behind()).count() as u64,
    };
    missing.saturating_sub(came).saturating_add(behind)
}

fn is_answer(record: &Record) -> bool {
    record.info().is_some_and(|info| {
        info.direction == Direction::Response && info.operation != Operation::ReadResponse
    })
}

fn lost_responses(records: &[Record], connection: &Connection, replay: &Replay, end: usize) -> u64 {
    let requested = Requested::new(replay);
    let gaps = || {
        let gaps = replay.response_gaps.iter().filter(|gap| requested.covers(gap));
        gaps.map(|gap| (gap.after, gap.count))
    };
    let missing: u64 = gaps().map(|(_, count)| count).sum();
    let stream = connection.streams.get(1 - end).copied().flatten();
    let view = connection.view_of(end);
    let came = view.map_or(0, |view| in_gaps(records, view, stream, Direction::Response, gaps()));
    missing.saturating_sub(came).saturating_add(requested.behind_the_tap(replay))
}

/// The responses that a requester asked for again.
pub(crate) struct Requested {
    /// The records that ask for a gap.
    for_gaps: HashSet<usize>,
    /// For each return of the requester: its record, and the lowest PSN of this return and all later ones.
    lowest: Vec<(usize, u64)>,
}

impl Requested {
    pub(crate) fn new(replay: &Replay) -> Self {
        let for_gaps = replay.response_gaps.iter().filter_map(|gap| gap.again).collect();
        let mut least = u64::MAX;
        let mut lowest: Vec<(usize, u64)> = Vec::with_capacity(replay.resends.len());
        for resend in replay.resends.iter().rev() {
            least = least.min(resend.psn);
            lowest.push((resend.at, least));
        }
        lowest.reverse();
        Self { for_gaps, lowest }
    }

    /// Returns whether the missing responses were requested again, so that they were lost.
    pub(crate) fn covers(&self, gap: &ResponseGap) -> bool {
        let later = self.lowest.partition_point(|(at, _)| *at <= gap.after);
        gap.again.is_some() || self.lowest.get(later).is_some_and(|(_, lowest)| *lowest <= gap.first)
    }

    /// Returns how often the requester asks again for responses that passed the tap.
    pub(crate) fn behind_the_tap(&self, replay: &Replay) -> u64 {
        let is_one = |one: &&Resend| matches!(one.cause, Cause::ImpliedNak(_)) && !self.is_for_gap(one.at);
        replay.resends.iter().filter(is_one).count() as u64
    }

    /// Returns whether a record asks for responses that are missing at the tap.
    pub(crate) fn is_for_gap(&self, at: usize) -> bool {
        self.for_gaps.contains(&at)
    }
}

/// Returns the time of each answered request and the time to its answer, in nanoseconds.
pub fn round_trips<'a>(records: &'a [Record], replay: &'a Replay) -> impl Iterator<Item = (u64, u64)> + 'a {
    let time = |index: usize| records.get(index).map(|record| record.time_ns);
    replay.answers.iter().filter_map(move |answer| {
        let sent = replay.sent.get(&answer.psn).filter(|sent| sent.times == 1 && sent.first < answer.at)?;
        let begin = time(sent.first)?;
        Some((begin, time(answer.at)?.checked_sub(begin)?))
    })
}

/// Returns the time from the first copy of each request that was sent again to its first answer, in
/// nanoseconds.
fn repeated_round_trips(records: &[Record], replay: &Replay) -> Vec<u64> {
    let time = |index: usize| records.get(index).map(|record| record.time_ns);
    let mut known = HashSet::new();
    let of_answer = |answer: &Answer| {
        let sent = replay.sent.get(&answer.psn).filter(|sent| sent.times > 1 && sent.first < answer.at)?;
        let times = time(answer.at)?.checked_sub(time(sent.first)?);
        times.filter(|_| known.insert(answer.psn))
    };
    replay.answers.iter().filter_map(of_answer).collect()
}

/// Returns the largest number of intervals that overlap.
fn most_at_once(intervals: &[(usize, usize)]) -> u64 {
    let mut changes: Vec<(usize, i64)> =
        intervals.iter().flat_map(|(begin, end)| [(*begin, 1), (*end, -1)]).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0_i64, 0_i64);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most.unsigned_abs()
}

/// Finds the messages of connection management with the queue pairs of a connection.
fn management(analysis: &Analysis, connection: &Connection) -> Management {
    let mut found = Management::default();
    let [one, other] = connection.ends;
    // A queue pair that the captures do not show has no messages.
    let is_end = |address, qpn| [one, other].iter().any(|end| end.address == address && end.qpn == Some(qpn));
    let is_pair = |source, destination| {
        (source, destination) == (one.address, other.address)
            || (source, destination) == (other.address, one.address)
    };
    let mut ids = None;
    for record in analysis.cm.iter().filter(|record| is_pair(record.source, record.destination)) {
        match &*record.message {
            CmMessage::Req(req) if is_end(record.source, req.local_qpn) && found.request.is_none() => {
                found.request = Some(record.place);
            }
            CmMessage::Rep(rep) if is_end(record.source, rep.local_qpn) && found.reply.is_none() => {
                found.reply = Some(record.place);
                ids = Some((rep.remote_comm_id, rep.local_comm_id));
            }
            CmMessage::Rtu(rtu)
                if ids == Some((rtu.local_comm_id, rtu.remote_comm_id)) && found.ready.is_none() =>
            {
                found.ready = Some(record.place);
            }
            CmMessage::Dreq(dreq)
                if is_end(record.destination, dreq.remote_qpn) && found.disconnect.is_none() =>
            {
                found.disconnect = Some(record.place);
            }
            _ => {}
        }
    }
    found
}

/// Returns the name of an operation as programs write it.
#[must_use]
pub const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "SEND",
        Operation::Write => "WRITE",
        Operation::ReadRequest => "READ",
        Operation::ReadResponse => "READ response",
        Operation::Acknowledge => "ACK",
        Operation::AtomicAcknowledge => "ATOMIC ACK",
        Operation::CompareSwap => "CMP SWAP",
        Operation::FetchAdd => "FETCH ADD",
        Operation::Resync => "RESYNC",
        Operation::Flush => "FLUSH",
        Operation::AtomicWrite => "ATOMIC WRITE",
        Operation::Cnp => "CNP",
    }
}

/// Returns the name of a transport service.
#[must_use]
pub const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Rd => "RD",
        Transport::Ud => "UD",
        Transport::Cnp => "CNP",
        Transport::Xrc => "XRC",
    }
}

/// Returns whether a record belongs to a stream.
pub(crate) fn is_of(record: &Record, stream: Option<StreamId>) -> bool {
    Some(record.stream) == stream
}

#[cfg(test)]
mod tests {
    use roce_packet::{NakCode, Opcode, Syndrome};

    use super::*;
    use crate::testing::records::analyzed;
    use crate::testing::wire::{Sketch, Wire};

    fn summaries(names: &[&str]) -> Vec<Summary> {
        let analysis = analyzed(names);
        analysis.connections.iter().map(|connection| summary(&analysis, connection)).collect()
    }

    #[test]
    fn a_write_and_a_send_with_a_loss() {
        let all = summaries(&["rc-loss.pcapng"]);
        let [Summary { packets: 17, taps: 1, transport: Transport::Rc, ref requests, .. }] = all[..] else {
            panic!("{all:?}")
        };
        let [there, back] = requests;
        let one =
            |operation, bytes| Operations { operation, count: 1, least_bytes: bytes, most_bytes: bytes };
        assert_eq!(there.operations, [one(Operation::Write, 2048), one(Operation::Send, 21)]);
        assert_eq!((there.mtu, there.messages, there.answered), (Some(PathMtu::Mtu256), 2, 2));
        assert_eq!((there.bytes, there.lost, there.resent, there.naks), (2069, 1, 6, 1));
        // Only the SEND is answered without having been sent twice.
        assert_eq!(there.round_trips.map(|times| times.count), Some(1));
        let again = there.repeated_round_trips.map(|times| (times.count, times.most_ns / 1_000));
        assert_eq!(again, Some((1, 334)), "from the first copy of the last packet of the WRITE");
        assert_eq!((there.most_messages_in_flight, there.most_packets_in_flight), (1, 8));
        assert_eq!((back.messages, back.lost, back.goodput_bps), (0, 0, None));
    }

    /// Regression: rates counted bytes that never arrived.
    #[test]
    fn goodput_counts_each_byte_once_and_only_if_it_arrived() {
        // Two packets of 1,024 bytes are acknowledged, and the third one is sent three times without an
        // answer.
        let mut wire = Wire::default();
        for psn in 0..3 {
            wire.at_us(psn.into(), Sketch::send(1, psn));
        }
        wire.at_us(10, Sketch::ack(2, 1, 2));
        for time in [100_000, 200_000] {
            wire.at_us(time, Sketch::send(1, 2));
        }
        let analysis = wire.analyze();
        let there = summary(&analysis, &analysis.connections[0]).requests[0].clone();
        assert_eq!((there.bytes, there.delivered_bytes), (3 * 1024, Some(2 * 1024)));
        // Each frame has 58 bytes of headers and the ICRC.
        assert_eq!(there.wire_bytes, 5 * (1024 + 58));
        assert_eq!(there.goodput_bps, Some(81_920.0));
        assert_eq!(there.wire_bps, Some(216_400.0));
        // Nothing arrived.
        let mut wire = Wire::default();
        for time in [0, 100_000, 200_000] {
            wire.at_us(time, Sketch::send(1, 2));
        }
        let analysis = wire.analyze();
        let there = summary(&analysis, &analysis.connections[0]).requests[0].clone();
        assert_eq!((there.delivered_bytes, there.goodput_bps), (Some(0), Some(0.0)));
        // The capture may lack the answers.
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 0));
        wire.at_us(1, Sketch::send(1, 1));
        let analysis = wire.analyze();
        let there = summary(&analysis, &analysis.connections[0]).requests[0].clone();
        assert_eq!((there.delivered_bytes, there.goodput_bps), (None, None));
        assert!(there.wire_bps.is_some());
    }

    /// Of a READ, the responses up to the one that is missing have arrived.
    #[test]
    fn goodput_of_a_read_counts_the_responses_that_arrived() {
        let response = |psn, opcode, payload| Sketch { payload, ..Sketch::new(2, opcode, psn) };
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::read(1, 0, 3000));
        wire.at_us(
            5,
            Sketch {
                extension: Sketch::ack(2, 0, 1).extension,
                ..response(0, Opcode::RC_RDMA_READ_RESPONSE_FIRST, 1024)
            },
        );
        wire.at_us(6, response(1, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 1024));
        wire.at_us(100_000, Sketch::read(1, 2, 952));
        let analysis = wire.analyze();
        let there = summary(&analysis, &analysis.connections[0]).requests[0].clone();
        assert_eq!((there.bytes, there.delivered_bytes), (3000, Some(2048)));
    }

    /// Regression: packets that arrived with a wrong ICRC counted as lost.
    #[test]
    fn damaged_packets_are_not_lost() {
        let mut wire = Wire::default();
        for (psn, is_damaged) in [(0, false), (1, true), (2, false)] {
            let time = 1_000 * u64::from(psn);
            if is_damaged {
                wire.damaged(0, time, Sketch::send(1, psn));
            } else {
                wire.add(0, time, Sketch::send(1, psn));
            }
        }
        wire.at_us(10, Sketch::answer(2, 1, Syndrome::Nak(NakCode::PsnSequence), 1));
        wire.at_us(12, Sketch::send(1, 1));
        wire.at_us(13, Sketch::send(1, 2));
        wire.at_us(20, Sketch::ack(2, 2, 3));
        let analysis = wire.analyze();
        let found = summary(&analysis, &analysis.connections[0]);
        assert_eq!((found.damaged, found.requests[0].lost, found.requests[0].resent), ([1, 0], 0, 2));
        // At two places: right at the first one, damaged at the second one.
        let mut wire = Wire::default();
        let sent = [(0, false), (1, true), (2, false), (1, false), (2, false)];
        for (time, (psn, is_damaged)) in (0..).step_by(50_000).zip(sent) {
            wire.add(0, time, Sketch::send(1, psn));
            if is_damaged {
                wire.damaged(1, time + 1_000, Sketch::send(1, psn));
            } else {
                wire.add(1, time + 1_000, Sketch::send(1, psn));
            }
        }
        wire.add(1, 900_000, Sketch::ack(2, 2, 3));
        wire.add(0, 901_000, Sketch::ack(2, 2, 3));
        let analysis = wire.analyze();
        let found = summary(&analysis, &analysis.connections[0]);
        assert_eq!((found.damaged, found.requests[0].lost), ([1, 0], 0), "{found:?}");
    }

    #[test]
    fn a_response_that_is_lost_behind_the_tap_counts() {
        let all = summaries(&["rc-read-loss.pcapng"]);
        let there = &all[0].requests[0];
        assert_eq!((there.lost, there.lost_responses, there.resent), (0, 1, 1));
        assert_eq!(there.bytes, 2048, "the second request is part of the READ");
    }

    #[test]
    fn refusals_and_delays_are_counted_apart() {
        let there = &summaries(&["rc-rnr.pcapng"])[0].requests[0];
        assert_eq!((there.rnr_naks, there.naks, there.refusals, there.resent), (2, 0, 0, 2));
        let refused = summaries(&["rc-refused.pcapng"]);
        assert_eq!(refused.iter().map(|one| one.requests[0].refusals).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn marks_and_notifications_have_their_senders() {
        let all = summaries(&["cnp.pcapng"]);
        assert_eq!((all[0].marked, all[0].notifications), ([2, 0], [0, 2]));
        assert_eq!((all[1].marked, all[1].notifications), ([1, 0], [0, 1]));
    }

    #[test]
    fn connection_management_belongs_to_the_queue_pairs_that_it_names() {
        let all = summaries(&["rxe/cm-rping.pcap"]);
        let [Summary { management, .. }] = &all[..] else { panic!("{all:?}") };
        assert!(management.request < management.reply && management.reply < management.ready);
        assert!(management.ready < management.disconnect, "{management:?}");
        let without = &summaries(&["rxe/rc-write-bw-5003.pcap.gz"])[0];
        assert_eq!(without.management, Management::default());
    }

    /// Two files with one tap each show the packets twice, but they are sent once.
    #[test]
    fn two_taps_count_packets_once() {
        let (one, both) = (summaries(&["rc-loss.pcapng"]), summaries(&["rc-loss.pcapng", "rc-loss.pcapng"]));
        assert_eq!((both[0].taps, both[0].packets), (2, 17));
        assert_eq!(both[0].requests, one[0].requests);
    }

    #[test]
    fn distributions() {
        assert_eq!(Distribution::of(Vec::new()), None);
        let times = Distribution::of((1..=200).rev().collect());
        let expected = Distribution { count: 200, least_ns: 1, median_ns: 100, p99_ns: 198, most_ns: 200 };
        assert_eq!(times, Some(expected));
        assert_eq!(most_at_once(&[(1, 5), (2, 3), (3, 9), (4, 5)]), 3);
    }
}
