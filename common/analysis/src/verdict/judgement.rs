//! Verdicts, and what a check looks at.

use std::fmt;

use roce_packet::Transport;

use super::rules::Rule;
use crate::analysis::Analysis;
use crate::connection::{Connection, End, name};
use crate::exchange::record_at;
use crate::record::Place;
use crate::replay::Replay;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The packets follow the rule.
    Pass,
    /// A packet violates the rule.
    Fail,
    /// The packets cannot show it. The summary begins with the reason.
    Unknown,
}

impl Outcome {
    /// Returns the word in reports: `pass`, `fail` or `unknown`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// A number that a verdict rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is, in words that also serve as a key: lower case with underscores, ending in the unit if
    /// there is one (`shortest_interval_us`).
    pub name: &'static str,
    /// The number.
    pub value: f64,
}

/// The role in which an end follows or breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It sends requests.
    Requester,
    /// It answers requests.
    Responder,
    /// It sends packets of any kind.
    Sender,
    /// It receives packets of any kind.
    Receiver,
}

impl Role {
    /// Returns the word in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requester => "requester",
            Self::Responder => "responder",
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }
}

/// An end of a connection that a verdict concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The role that the rule is about.
    pub role: Role,
    /// The end.
    pub end: End,
}

impl fmt::Display for Party {
    /// Writes role, address and queue pair: `requester 192.0.2.1 QP 0x11`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role.name(), name(self.end))
    }
}

/// The judgement of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The rule.
    pub rule: &'static Rule,
    /// The result.
    pub outcome: Outcome,
    /// One or two sentences: what was found, or why nothing can be said.
    pub summary: String,
    /// The packets that prove it, the first [`MOST_PLACES`] of them.
    pub packets: Vec<Place>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// The ends of the connection whose packets are judged: of a failed verdict, those that violate the rule.
    /// Empty if the verdict is not about a connection.
    pub parties: Vec<Party>,
}

/// Maximum number of packets that a verdict names.
pub const MOST_PLACES: usize = 10;

impl Verdict {
    /// The packets follow the rule.
    #[must_use]
    pub fn pass(rule: &'static Rule, summary: impl Into<String>) -> Self {
        Self::new(rule, Outcome::Pass, summary.into())
    }

    /// Packets violate the rule.
    #[must_use]
    pub fn fail(rule: &'static Rule, summary: impl Into<String>) -> Self {
        Self::new(rule, Outcome::Fail, summary.into())
    }

    /// Nothing can be said, for this reason.
    #[must_use]
    pub fn unknown(rule: &'static Rule, because: impl Into<String>) -> Self {
        Self::new(rule, Outcome::Unknown, because.into())
    }

    fn new(rule: &'static Rule, outcome: Outcome, summary: String) -> Self {
        Self { rule, outcome, summary, packets: Vec::new(), figures: Vec::new(), parties: Vec::new() }
    }

    /// Adds an end that the verdict concerns.
    #[must_use]
    pub(super) fn of(mut self, party: Option<Party>) -> Self {
        self.parties.extend(party);
        self
    }

    /// Adds packets. Only the first [`MOST_PLACES`] are kept.
    #[must_use]
    pub fn at(mut self, packets: impl IntoIterator<Item = Place>) -> Self {
        let room = MOST_PLACES.saturating_sub(self.packets.len());
        self.packets.extend(packets.into_iter().take(room));
        self
    }

    /// Adds a figure.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push(Figure { name, value });
        self
    }
}

/// A check of the requests of one end.
pub(super) type Judge = fn(&Scene<'_>, &Replay) -> Option<Verdict>;

/// What the checks of one connection look at.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// All packets.
    pub analysis: &'a Analysis,
    /// The connection.
    pub connection: &'a Connection,
}

impl Scene<'_> {
    /// Returns where a record is.
    #[must_use]
    pub fn place(&self, index: usize) -> Option<Place> {
        self.analysis.place(index)
    }

    /// Returns the time of a record in nanoseconds, 0 if unknown.
    #[must_use]
    pub fn time(&self, index: usize) -> u64 {
        self.analysis.records.get(index).map_or(0, |record| record.time_ns)
    }

    /// Returns an end in a role.
    pub(super) fn party(&self, role: Role, end: usize) -> Option<Party> {
        self.connection.ends.get(end).map(|end| Party { role, end: *end })
    }

    /// Returns a failed verdict with the senders of the packets that prove it, unless it says whom it
    /// concerns.
    pub(super) fn with_senders(&self, verdict: Verdict) -> Verdict {
        if verdict.outcome != Outcome::Fail || !verdict.parties.is_empty() {
            return verdict;
        }
        let records = &self.analysis.records;
        let streams: Vec<_> =
            verdict.packets.iter().filter_map(|place| Some(record_at(records, *place)?.1.stream)).collect();
        let is_sender = |end: &usize| {
            let stream = self.connection.streams.get(*end).copied().flatten();
            stream.is_some_and(|stream| streams.contains(&stream))
        };
        let senders: Vec<usize> = (0..2).filter(is_sender).collect();
        senders.into_iter().fold(verdict, |verdict, end| verdict.of(self.party(Role::Sender, end)))
    }

    /// Judges the requests of each end, as the tap near it shows them: for rules about requesters.
    pub(super) fn of_requesters(&self, judge: Judge) -> Vec<Verdict> {
        self.of_requests(judge, |_| Role::Requester)
    }

    /// Judges the requests of each end and their answers, as the tap near the requester shows them. `role` is
    /// that of the end which the rule is about.
    pub(super) fn of_requests(&self, judge: Judge, role: fn(&Replay) -> Role) -> Vec<Verdict> {
        let of_end = |end: usize| {
            let replay = self.connection.requester(end)?;
            let role = role(replay);
            let end = if role == Role::Responder { 1_usize.checked_sub(end)? } else { end };
            Some(judge(self, replay)?.of(self.party(role, end)))
        };
        (0..2).filter_map(of_end).collect()
    }

    /// Judges the requests of each end, as the tap near the other end shows them: for rules about responders.
    pub(super) fn of_responders(&self, judge: Judge) -> Vec<Verdict> {
        let of_end = |end: usize| {
            let party = self.party(Role::Responder, 1_usize.checked_sub(end)?);
            Some(judge(self, self.connection.responder(end)?)?.of(party))
        };
        (0..2).filter_map(of_end).collect()
    }

    /// Returns whether the transport acknowledges requests and sends them again.
    pub(super) fn is_reliable(&self) -> bool {
        self.connection.transport != Transport::Uc
    }

    /// Returns whether the packets have times.
    #[must_use]
    pub const fn has_times(&self) -> bool {
        self.analysis.counts.without_time == 0
    }
}
