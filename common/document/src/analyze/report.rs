//! The contents of a report: connections with their figures and verdicts, and the conclusion.

use std::net::IpAddr;

use roce_analysis::connection::Connection;
use roce_analysis::connection::name;
use roce_analysis::counters::Comparison;
use roce_analysis::stall::Stall;
use roce_analysis::summary::{Summary, summary, transport_name};
use roce_analysis::verdict::{Outcome, Verdict, of_capture, of_connection, of_counters};
use roce_analysis::words::{duration, thousands};

use super::captures::Captures;
use super::figures::{self, Losses, counted, parties};

/// The summary of captures.
#[derive(Debug)]
pub struct Report<'a> {
    /// The captures.
    pub captures: &'a Captures,
    /// Verdicts on the captures as a whole.
    pub verdicts: Vec<Verdict>,
    /// The connections.
    pub parts: Vec<Part<'a>>,
    /// The changes of the counters in the files of `--counters`.
    pub counters: Vec<Comparison>,
}

/// Counters of one or more NICs.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// What changed.
    pub comparisons: Vec<Comparison>,
    /// The address of the NIC; `None` for the address that agrees with most counters.
    pub address: Option<IpAddr>,
}

/// The summary of one connection.
#[derive(Debug)]
pub struct Part<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// The connection.
    pub connection: &'a Connection,
    /// Its figures.
    pub summary: Summary,
    /// The verdicts on it.
    pub verdicts: Vec<Verdict>,
    /// The files that have none of its packets.
    absent: Vec<String>,
}

impl Part<'_> {
    /// Returns whether a file has none of its packets, and nobody answered the requests of the others.
    fn never_arrived(&self) -> bool {
        let requests = &self.summary.requests;
        let is_answered = requests.iter().any(|one| one.answered > 0);
        !self.absent.is_empty() && !is_answered && requests.iter().any(|one| one.messages > 0)
    }

    /// Returns the longest stall of each end, with the number of the connection and the address of the end.
    fn stalls(&self) -> impl Iterator<Item = (usize, IpAddr, &Stall)> {
        let ends = self.summary.ends.iter().zip(&self.summary.requests);
        ends.filter_map(|(end, requests)| Some((self.number, end.address, requests.stall.as_ref()?)))
    }

    /// Returns a line about the connection as a whole.
    #[must_use]
    pub fn about(&self) -> String {
        let text = figures::of_connection(&self.summary);
        match &self.absent[..] {
            [] => text,
            files => format!(
                "{text}; none of its packets is in {}: the network lost them, or that capture has another time \
                 or filter",
                files.join(", ")
            ),
        }
    }

    /// Returns the transport and both ends.
    #[must_use]
    pub fn title(&self) -> String {
        let [one, other] = self.summary.ends.map(name);
        format!("{} {one} <-> {other}", transport_name(self.summary.transport))
    }
}

/// Returns the files without a packet of a connection.
fn absent(captures: &Captures, connection: &Connection) -> Vec<String> {
    let has_it = |index: usize| connection.views.iter().any(|view| usize::from(view.tap.capture) == index);
    let files = captures.files.iter().enumerate().filter(|(index, _)| !has_it(*index));
    files.map(|(_, name)| name.clone()).collect()
}

impl<'a> Report<'a> {
    /// Judges these connections by the rules with these keys, or by all.
    #[must_use]
    pub fn new(
        captures: &'a Captures,
        only: &[&'static str],
        connections: Vec<(usize, &'a Connection)>,
        counters: Counters,
    ) -> Self {
        let analysis = &captures.analysis;
        let chosen = |mut verdicts: Vec<Verdict>| {
            verdicts.retain(|verdict| only.is_empty() || only.contains(&verdict.rule.key));
            verdicts.sort_by_key(|verdict| verdict.rule.number);
            verdicts
        };
        let part = |(number, connection): (usize, &'a Connection)| Part {
            number,
            connection,
            summary: summary(analysis, connection),
            verdicts: chosen(of_connection(analysis, connection)),
            absent: absent(captures, connection),
        };
        let parts = connections.into_iter().map(part).collect();
        let Counters { comparisons, address } = counters;
        let verdicts = [of_capture(analysis), of_counters(analysis, &comparisons, address)].concat();
        Self { captures, verdicts: chosen(verdicts), parts, counters: comparisons }
    }

    /// Returns every verdict with what it is about.
    pub fn all(&self) -> impl Iterator<Item = (String, &Verdict)> {
        let of_parts = self.parts.iter().flat_map(|part| {
            part.verdicts.iter().map(|verdict| (format!("connection {}", part.number), verdict))
        });
        self.verdicts.iter().map(|verdict| ("capture".to_owned(), verdict)).chain(of_parts)
    }

    /// Returns the number of verdicts with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.all().filter(|(_, verdict)| verdict.outcome == outcome).count()
    }

    /// Returns whether a verdict failed.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        self.count(Outcome::Fail) > 0
    }

    /// Returns the result of all verdicts together.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match (self.has_failures(), self.count(Outcome::Pass)) {
            (true, _) => Outcome::Fail,
            (false, 0) => Outcome::Unknown,
            (false, _) => Outcome::Pass,
        }
    }

    /// Returns the conclusion: what was lost, the verdicts, and what to look at first.
    #[must_use]
    pub fn conclusion(&self) -> [String; 3] {
        [self.loss_line(), self.verdict_line(), self.first_line()]
    }

    /// Says what was lost and what came of it, before any verdict: a verdict that passes says only that a NIC
    /// follows the rules.
    fn loss_line(&self) -> String {
        let losses = match self.losses().text() {
            Some(losses) => losses,
            None if self.parts.is_empty() => "no connection, so losses are not known".to_owned(),
            None => "nothing was lost or sent again".to_owned(),
        };
        format!("{losses} ({})", self.packet_line())
    }

    /// Returns what was lost and sent again on all connections.
    #[must_use]
    pub fn losses(&self) -> Losses {
        Losses::of(self.parts.iter().map(|part| &part.summary))
    }

    fn verdict_line(&self) -> String {
        let [pass, fail, unknown] =
            [Outcome::Pass, Outcome::Fail, Outcome::Unknown].map(|outcome| self.count(outcome));
        let all = counted((pass + fail + unknown) as u64, "verdict");
        match self.outcome() {
            Outcome::Fail => format!("{fail} of {all} failed, {pass} passed, {unknown} unknown"),
            Outcome::Pass => {
                format!("the NICs follow the rules: none of {all} failed, {pass} passed, {unknown} unknown")
            }
            Outcome::Unknown => format!("none of {all} could be reached"),
        }
    }

    fn packet_line(&self) -> String {
        let analysis = &self.captures.analysis;
        let counts = analysis.counts;
        let others = counts.foreign + counts.unreadable + self.captures.unread;
        let mut text = counted(counts.roce, "RoCE packet");
        for (count, what) in [
            (counts.copies, "copies by a mirror"),
            (counts.pauses, "pause frames"),
            (others, "other packets"),
        ] {
            if count > 0 {
                text += &format!(", {} {what}", thousands(count));
            }
        }
        let times = self.parts.iter().filter_map(|part| part.summary.times_ns);
        let (first, last) =
            times.fold((u64::MAX, 0), |(first, last), (from, until)| (first.min(from), last.max(until)));
        if let Some(span) = last.checked_sub(first) {
            text += &format!(" in {}", duration(span));
        }
        let files = self.captures.files.len();
        let in_files = if files > 1 { format!(" in {files} files") } else { String::new() };
        format!("{text}{in_files}; {}", counted(analysis.connections.len() as u64, "connection"))
    }

    /// Returns the first failed verdict, or the longest stall, or the connection with most losses, or that
    /// there are none.
    fn first_line(&self) -> String {
        if let Some(part) = self.parts.iter().find(|part| part.never_arrived()) {
            let files = part.absent.join(", ");
            return format!("look first at connection {}: none of its packets is in {files}", part.number);
        }
        let failed = self.all().find(|(_, verdict)| verdict.outcome == Outcome::Fail);
        if let Some((about, verdict)) = failed {
            let whom = parties(verdict).map_or(String::new(), |parties| format!(", {parties}"));
            return format!("look first at {about}{whom}, {}: {}", verdict.rule.title, verdict.summary);
        }
        let stalls = self.parts.iter().flat_map(|part| part.stalls());
        if let Some((number, address, stall)) = stalls.max_by_key(|(.., stall)| stall.ns) {
            return format!("look first at connection {number}, {address}: {}", figures::of_stall(stall));
        }
        let worst = self.parts.iter().map(|part| (part.number, Losses::of([&part.summary])));
        // The first one, if there are several.
        let worst = worst.max_by_key(|(number, losses)| (losses.packets(), std::cmp::Reverse(*number)));
        match worst.and_then(|(number, losses)| Some((number, losses.text()?))) {
            Some((number, losses)) => format!("look first at connection {number}: {losses}"),
            None => "no connection needs a look".to_owned(),
        }
    }
}
