//! What a replay finds.

use std::collections::{BTreeMap, HashSet};

use roce_packet::{NakCode, PathMtu, RnrTimer};

use crate::record::StreamId;

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
    /// Whether the packets had been captured before, and were missing when they were sent again.
    pub is_of_resend: bool,
    /// What became of it.
    pub end: GapEnd,
}

/// The end of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapEnd {
    /// The capture ends before anything is known.
    Open,
    /// The packets came later without being sent again: others overtook them.
    Overtaken,
    /// They were sent again: the first copy was lost before this place.
    Resent,
    /// The receiver acknowledged them, so only the capture lacks them. For packets that are missing among
    /// those that were sent again: the receiver had them, so they were left out.
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
        /// Index of the packet from which that time counts: the last copy of the packet, or the answer that
        /// brought progress later. `None` if it was not captured.
        since: Option<usize>,
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
    /// Index of the first captured copy of the packet at `psn`, if there was one before.
    pub first: Option<usize>,
    /// Whether the answer for `psn` had been captured before.
    pub was_answered: bool,
    /// After a timeout, the index of the first packet that was not captured before, if it continues a message
    /// of which earlier packets were: its first copy was lost before this place.
    pub went_on: Option<usize>,
}

/// A NAK for a sequence error.
#[derive(Clone, Copy, Debug)]
pub struct SequenceNak {
    /// The PSN that the responder expects.
    pub psn: u64,
    /// Index of the record.
    pub at: usize,
    /// Index of the earlier NAK with this PSN, if there are more of them than copies of the packet.
    pub repeats: Option<usize>,
    /// Whether a packet with a later PSN was captured before the NAK.
    pub has_later: bool,
    /// Whether the PSN had been acknowledged before.
    pub was_acknowledged: bool,
    /// Whether the packet with this PSN was captured before the NAK.
    pub was_seen: bool,
    /// Whether the responder had refused the packet because it was not ready. It then asks for the packet
    /// with a NAK, too, when later ones arrive, although nothing was lost.
    pub follows_rnr: bool,
    /// Index of the return of the requester that this NAK caused in [`Replay::resends`].
    pub resend: Option<usize>,
}

impl SequenceNak {
    /// Returns whether the packet that the NAK asks for was lost behind the place of capture.
    #[must_use]
    pub const fn shows_loss_behind(&self) -> bool {
        self.was_seen && self.repeats.is_none() && !self.follows_rnr
    }
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

/// The READs of one direction.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// Number of new READ requests.
    pub requests: u64,
    /// Length of the longest one in bytes.
    pub longest: u32,
    /// Payload of the longest response that was the only one of its READ, in bytes. No READ up to this length
    /// has several responses.
    pub longest_only: u32,
    /// READs that were resumed at an address or with a length that does not fit the PSN: the index of the new
    /// request and that of the first one.
    pub wrong_resumption: Vec<(usize, usize)>,
    /// Last responses whose length does not complete the READ; indices.
    pub wrong_length: Vec<usize>,
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
    /// Requests that came after a NAK, behind the PSN that it asks for, and shortly before the packet with
    /// this PSN, if nothing shows the order in which both were sent; indices. Either they came late, or the
    /// requester starts again at the wrong PSN.
    pub unordered: Vec<usize>,
    /// NAKs for sequence errors.
    pub naks: Vec<SequenceNak>,
    /// RNR NAKs.
    pub rnr: Vec<RnrNak>,
    /// NAKs that end the connection.
    pub refusals: Vec<Refusal>,
    /// Missing responses.
    pub response_gaps: Vec<ResponseGap>,
    /// Later responses that came while the requester waited for those that it had requested again; it drops
    /// them. Indices.
    pub dropped_responses: HashSet<usize>,
    /// READ requests and their lengths.
    pub reads: Reads,
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
    /// The connections after the first one, if the queue pairs were connected again: the PSN and the index of
    /// their first request.
    pub beginnings: Vec<(u64, usize)>,
}

impl Resend {
    /// Returns whether the packet at which it starts had been captured before.
    #[must_use]
    pub const fn was_seen(&self) -> bool {
        self.first.is_some()
    }
}

impl Replay {
    /// Returns whether an acknowledgement of the latest connection was captured. Before that, nothing is
    /// known about packets before the first captured one.
    pub(super) fn has_acknowledgement(&self) -> bool {
        self.unacknowledged > self.beginnings.last().map_or(ORIGIN, |(psn, _)| *psn)
    }

    /// Returns the returns of the requester after timeouts.
    pub fn timeouts(&self) -> impl Iterator<Item = &Resend> {
        self.resends.iter().filter(|resend| matches!(resend.cause, Cause::Timeout { .. }))
    }
}

/// The streams of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    /// The requests.
    pub requests: Option<StreamId>,
    /// The answers.
    pub answers: Option<StreamId>,
}
