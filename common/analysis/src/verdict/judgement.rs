//! Verdicts, and what a check looks at.

use roce_packet::Transport;

use super::rules::Rule;
use crate::analysis::Analysis;
use crate::connection::Connection;
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
        Self { rule, outcome, summary, packets: Vec::new(), figures: Vec::new() }
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

    /// Judges the requests of each end, as the tap near it shows them: for rules about requesters.
    pub(super) fn of_requesters(&self, judge: Judge) -> Vec<Verdict> {
        (0..2).filter_map(|end| judge(self, self.connection.requester(end)?)).collect()
    }

    /// Judges the requests of each end, as the tap near the other end shows them: for rules about responders.
    pub(super) fn of_responders(&self, judge: Judge) -> Vec<Verdict> {
        (0..2).filter_map(|end| judge(self, self.connection.responder(end)?)).collect()
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
