//! Replays one direction of a connection: the requests of one end, and the answers of the other.
//!
//! The replay keeps the state that both ends must have, as far as the captured packets show it. It decides for
//! each packet whether it is new, sent again or overtaken, and why. It judges nothing: see [`crate::verdict`].
//!
//! PSNs are unwrapped to 64 bits. They count from [`ORIGIN`], so that earlier ones stay positive.

mod answers;
mod reads;
mod requests;

use std::collections::{BTreeMap, HashMap};

use roce_packet::{Direction, NakCode, Operation, PathMtu, Position, Psn, RnrTimer};

use crate::record::{Bits, Extension, Place, Record, StreamId};

/// The unwrapped PSN of the first request.
pub const ORIGIN: u64 = 1 << 32;

/// A request packet that was sent at least once.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Number of PSNs: those of the responses for a READ, otherwise 1.
    pub span: u64,
    /// Index of the record that was captured first.
    pub first: usize,
    /// Index of the record that was captured last.
    pub last: usize,
    /// How often it was captured.
    pub times: u32,
    /// Whether the packet ends a message of the requester.
    pub ends_message: bool,
}

/// PSNs that were not captured when a later one was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first of them.
    pub first: u64,
    /// Their number.
    pub count: u64,
    /// The packet behind the gap.
    pub after: usize,
    /// What became of it.
    pub end: GapEnd,
}

/// What became of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapEnd {
    /// The capture ends before anything is known.
    Open,
    /// The packets came later without being sent again: others overtook them.
    Overtaken,
    /// They were sent again: the first copy was lost before this place.
    Resent,
    /// The receiver acknowledged them, so only the capture lacks them.
    NotCaptured,
}

/// Why packets were sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A NAK for a sequence error asked for them; the index is that of the record.
    Nak(usize),
    /// The receiver was not ready.
    Rnr(usize),
    /// Responses of a READ were missing. The index is that of the response behind the gap.
    ImpliedNak(usize),
    /// Nothing asked for them, and the requester had waited.
    Timeout {
        /// Time since the packet was last sent or the last progress, in nanoseconds.
        waited_ns: u64,
    },
}

/// A return of the requester to an earlier PSN.
#[derive(Clone, Copy, Debug)]
pub struct Resend {
    /// The PSN at which it starts again.
    pub psn: u64,
    /// Index of the first packet.
    pub at: usize,
    /// Number of packets until new ones follow.
    pub packets: u64,
    /// Number of them that the receiver had acknowledged before.
    pub needless: u64,
    /// The reason.
    pub cause: Cause,
    /// Whether the packet at `psn` had been captured before.
    pub was_seen: bool,
    /// Whether the answer for `psn` had been captured before.
    pub was_answered: bool,
}

/// A NAK for a sequence error.
#[derive(Clone, Copy, Debug)]
pub struct SequenceNak {
    /// The PSN that the responder expects.
    pub psn: u64,
    /// Index of the record.
    pub at: usize,
    /// Index of the earlier NAK with this PSN, if the requester had not sent it again in between.
    pub repeats: Option<usize>,
    /// Whether a packet with a later PSN was captured before the NAK.
    pub has_later: bool,
    /// Whether the PSN had been acknowledged before.
    pub was_acknowledged: bool,
    /// Whether the packet with this PSN was captured before the NAK.
    pub was_seen: bool,
    /// Index of the return of the requester that this NAK caused in [`Replay::resends`].
    pub resend: Option<usize>,
}

/// An RNR NAK.
#[derive(Clone, Copy, Debug)]
pub struct RnrNak {
    /// The PSN that was refused.
    pub psn: u64,
    /// Index of the record.
    pub at: usize,
    /// The shortest time to wait.
    pub timer: RnrTimer,
    /// Index of the record with which the requester tried again.
    pub again: Option<usize>,
}

/// A NAK that ends a connection.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The PSN of the refused request.
    pub psn: u64,
    /// Index of the record.
    pub at: usize,
    /// The reason.
    pub code: NakCode,
    /// Number of requests that were new and came later.
    pub later_requests: u64,
}

/// Responses of a READ that are missing when a later one comes.
#[derive(Clone, Copy, Debug)]
pub struct ResponseGap {
    /// The first missing PSN.
    pub first: u64,
    /// Their number.
    pub count: u64,
    /// Index of the response behind the gap.
    pub after: usize,
    /// Index of the request that asks for them again.
    pub again: Option<usize>,
}

/// An answer whose content differs from that of an earlier one to the same request.
#[derive(Clone, Copy, Debug)]
pub struct Changed {
    /// PSN of both.
    pub psn: u64,
    /// Index of the earlier answer.
    pub before: usize,
    /// Index of the later answer.
    pub now: usize,
}

/// An acknowledgement, for the checks of its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The PSN.
    pub psn: u64,
    /// Index of the record.
    pub at: usize,
    /// Index of the request that was captured last before it.
    pub after_request: Option<usize>,
}

/// What the packets of one direction show.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// Path MTU, if it can be known.
    pub mtu: Option<PathMtu>,
    /// Requests by unwrapped PSN.
    pub sent: BTreeMap<u64, Sent>,
    /// Missing requests.
    pub gaps: Vec<Gap>,
    /// Returns to earlier PSNs.
    pub resends: Vec<Resend>,
    /// Requests that were captured twice within a short time although nothing was lost; the two indices.
    pub doubled: Vec<(usize, usize)>,
    /// Requests that others overtook; the index of the record.
    pub overtaken: Vec<usize>,
    /// NAKs for sequence errors.
    pub naks: Vec<SequenceNak>,
    /// RNR NAKs.
    pub rnr: Vec<RnrNak>,
    /// NAKs that end the connection.
    pub refusals: Vec<Refusal>,
    /// Missing responses.
    pub response_gaps: Vec<ResponseGap>,
    /// Answers that contradict earlier ones.
    pub changed: Vec<Changed>,
    /// Answers with a PSN.
    pub answers: Vec<Answer>,
    /// Answers to PSNs that were never captured as sent and lie behind all that were; indices.
    pub unsent: Vec<usize>,
    /// Responses that came again.
    pub repeated_responses: u64,
    /// Indices of packets with a wrong ICRC or contradicting headers. Their receiver drops them.
    pub broken: Vec<usize>,
    /// Largest number of PSNs under way.
    pub most_in_flight: u64,
    /// For each answered message: indices of its first request packet and of the answer.
    pub messages: Vec<(usize, usize)>,
    /// The next new PSN.
    pub next: u64,
    /// All PSNs below it are acknowledged.
    pub unacknowledged: u64,
}

/// The streams of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    /// The requests.
    pub requests: Option<StreamId>,
    /// The answers.
    pub answers: Option<StreamId>,
}

/// State of the replay beside its results.
struct Player<'a> {
    records: &'a [Record],
    /// The stream of the answers.
    answers: Option<StreamId>,
    /// Indices of the requests that count, in order.
    requests: Vec<usize>,
    out: Replay,
    base: Option<Psn>,
    /// Missing PSNs: first, end, and the index in `out.gaps`.
    missing: Vec<(u64, u64, usize)>,
    /// The current return: index in `out.resends`, and the PSN that follows next.
    run: Option<(usize, u64)>,
    /// The last sequence NAK that no return has answered.
    pending_nak: Option<usize>,
    pending_rnr: Option<usize>,
    pending_gap: Option<usize>,
    /// Time of the last progress: an acknowledgement of something new.
    progress_ns: u64,
    last_request: Option<usize>,
    last_response: Option<usize>,
    /// READs that are being answered: by first PSN, the PSN of the next response.
    reading: BTreeMap<u64, u64>,
    /// By PSN, the first response: its index.
    responses: HashMap<u64, usize>,
    /// First request packet of the oldest message that is not answered: PSNs by end of message.
    open_messages: BTreeMap<u64, usize>,
    message_start: Option<usize>,
}

/// Replays one direction. `indices` are those of the records of both streams, in the order of their capture.
#[must_use]
pub fn replay(records: &[Record], indices: &[usize], half: Half) -> Replay {
    let mut player = Player::new(records, indices, half);
    for &index in indices {
        let Some(record) = records.get(index) else { continue };
        let direction = record.info().map(|info| info.direction);
        let is_request = Some(record.stream) == half.requests && direction == Some(Direction::Request);
        let is_answer = Some(record.stream) == half.answers && direction == Some(Direction::Response);
        if !(is_request || is_answer) || record.bits.contains(Bits::COPY) {
            continue;
        }
        if !record.is_sound() {
            player.out.broken.push(index);
        } else if is_request {
            player.request(index, record);
        } else {
            player.answer(index, record);
        }
    }
    player.finish()
}

impl<'a> Player<'a> {
    fn new(records: &'a [Record], indices: &[usize], half: Half) -> Self {
        let is_request = |index: &usize| {
            records.get(*index).is_some_and(|record| {
                Some(record.stream) == half.requests
                    && record.is_sound()
                    && !record.bits.contains(Bits::COPY)
                    && record.info().is_some_and(|info| info.direction == Direction::Request)
            })
        };
        let requests: Vec<usize> = indices.iter().copied().filter(is_request).collect();
        let mtu = path_mtu(records, indices, half, &requests);
        Self {
            records,
            answers: half.answers,
            requests,
            out: Replay { mtu, next: ORIGIN, unacknowledged: ORIGIN, ..Replay::default() },
            base: None,
            missing: Vec::new(),
            run: None,
            pending_nak: None,
            pending_rnr: None,
            pending_gap: None,
            progress_ns: 0,
            last_request: None,
            last_response: None,
            reading: BTreeMap::new(),
            responses: HashMap::new(),
            open_messages: BTreeMap::new(),
            message_start: None,
        }
    }

    /// Returns the 64-bit form of a PSN that is the closest to the next new one.
    fn unwrap(&mut self, psn: Psn) -> u64 {
        let base = *self.base.get_or_insert(psn);
        let next = self.out.next;
        let expected = base.add(u32::try_from(next.wrapping_sub(ORIGIN) & u64::from(Psn::MASK)).unwrap_or(0));
        let ahead = u64::from(expected.distance_to(psn));
        if ahead <= u64::from(Psn::MASK / 2) {
            next.saturating_add(ahead)
        } else {
            next.saturating_sub(u64::from(Psn::MASK) + 1 - ahead)
        }
    }

    fn time(&self, index: usize) -> u64 {
        self.records.get(index).map_or(0, |record| record.time_ns)
    }

    /// Returns the number of PSNs of a request.
    fn span(&self, record: &Record) -> u64 {
        let is_read = record.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        match (record.extension, self.out.mtu) {
            (Extension::Reth(reth), Some(mtu)) if is_read => {
                u64::from(reth.dma_len).div_ceil(mtu.bytes() as u64).max(1)
            }
            _ => 1,
        }
    }

    fn finish(mut self) -> Replay {
        let unacknowledged = self.out.unacknowledged;
        for &(_, end, gap) in &self.missing {
            if let Some(gap) = self.out.gaps.get_mut(gap)
                && gap.end == GapEnd::Open
                && end <= unacknowledged
            {
                gap.end = GapEnd::NotCaptured;
            }
        }
        self.out
    }
}

/// Determines the path MTU: from packets that must be full, and without any, from the PSNs after READs.
fn path_mtu(records: &[Record], indices: &[usize], half: Half, requests: &[usize]) -> Option<PathMtu> {
    let streams = [half.requests, half.answers];
    let full = indices
        .iter()
        .filter_map(|index| records.get(*index))
        .filter(|record| streams.contains(&Some(record.stream)) && record.is_sound())
        .filter(|record| {
            record.info().is_some_and(|info| matches!(info.position, Position::First | Position::Middle))
        })
        .map(|record| record.payload_len as usize)
        .max();
    full.and_then(PathMtu::from_bytes).or_else(|| mtu_from_reads(records, requests))
}

fn mtu_from_reads(records: &[Record], requests: &[usize]) -> Option<PathMtu> {
    let mut votes = [0_u32; PathMtu::ALL.len()];
    for pair in requests.windows(2) {
        let &[one, two] = pair else { continue };
        let (Some(read), Some(next)) = (records.get(one), records.get(two)) else { continue };
        let is_read = read.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        let Extension::Reth(reth) = read.extension else { continue };
        let distance = read.psn.distance_to(next.psn);
        for (vote, mtu) in votes.iter_mut().zip(PathMtu::ALL) {
            let fits = u64::from(reth.dma_len).div_ceil(mtu.bytes() as u64) == u64::from(distance);
            *vote += u32::from(is_read && distance > 1 && fits);
        }
    }
    let best = votes.iter().zip(PathMtu::ALL).max_by_key(|(votes, _)| **votes)?;
    (*best.0 > 0).then_some(best.1)
}

/// A packet as reports name it.
#[must_use]
pub fn place(records: &[Record], index: usize) -> Option<Place> {
    records.get(index).map(|record| record.place)
}
