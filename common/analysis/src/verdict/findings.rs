//! What a check finds, grouped by kind and sender.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::judgement::{MOST_PLACES, Verdict};
use super::rules::Rule;
use crate::analysis::Analysis;
use crate::record::{Place, StreamId};

/// Maximum number of kinds that a summary names.
const MOST_KINDS: usize = 4;
/// Maximum number of senders that a summary names for a kind.
const MOST_SENDERS: usize = 2;
/// Maximum number of packets that a summary names for a kind and a sender.
const MOST_NAMED: usize = 3;

/// One kind of observation about the packets of one sender.
#[derive(Clone, Debug)]
struct Finding {
    kind: &'static str,
    stream: Option<StreamId>,
    /// What is special about the first packet.
    detail: String,
    count: u64,
    places: Vec<Place>,
}

/// Faults, which fail the rule, and remarks, which do not.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    faults: List,
    remarks: List,
}

/// Findings in the order of their first packets.
#[derive(Clone, Debug, Default)]
struct List {
    all: Vec<Finding>,
    /// Index of each finding by kind and sender.
    known: HashMap<(&'static str, Option<StreamId>), usize>,
}

impl List {
    fn add(
        &mut self,
        kind: &'static str,
        stream: Option<StreamId>,
        place: Place,
        detail: impl FnOnce() -> String,
    ) {
        let index = *self.known.entry((kind, stream)).or_insert(self.all.len());
        if let Some(finding) = self.all.get_mut(index) {
            finding.count += 1;
            if finding.places.len() < MOST_PLACES {
                finding.places.push(place);
            }
            return;
        }
        self.all.push(Finding { kind, stream, detail: detail(), count: 1, places: vec![place] });
    }
}

impl Findings {
    /// Adds a packet that violates the rule.
    pub(super) fn fault(&mut self, kind: &'static str, stream: Option<StreamId>, place: Place) {
        self.faults.add(kind, stream, place, String::new);
    }

    /// Adds a packet that violates the rule. Only the detail of the first packet of a kind is kept.
    pub(super) fn fault_with(
        &mut self,
        kind: &'static str,
        stream: Option<StreamId>,
        place: Place,
        detail: impl FnOnce() -> String,
    ) {
        self.faults.add(kind, stream, place, detail);
    }

    /// Adds a packet that is legal but worth knowing.
    pub(super) fn remark(&mut self, kind: &'static str, stream: Option<StreamId>, place: Place) {
        self.remarks.add(kind, stream, place, String::new);
    }

    /// Adds a packet that is legal but worth knowing. Only the detail of the first packet of a kind is kept.
    pub(super) fn remark_with(
        &mut self,
        kind: &'static str,
        stream: Option<StreamId>,
        place: Place,
        detail: impl FnOnce() -> String,
    ) {
        self.remarks.add(kind, stream, place, detail);
    }

    /// Returns whether a packet violates the rule.
    pub(super) const fn has_faults(&self) -> bool {
        !self.faults.all.is_empty()
    }

    /// Returns whether a packet is worth knowing.
    pub(super) const fn has_remarks(&self) -> bool {
        !self.remarks.all.is_empty()
    }

    /// Returns the number of packets that violate the rule. A packet with two faults counts twice.
    pub(super) fn faults(&self) -> u64 {
        self.faults.all.iter().map(|finding| finding.count).sum()
    }

    /// Returns the remarks as sentences after another text, which ends with a period.
    pub(super) fn remarks(&self, analysis: &Analysis) -> String {
        if self.remarks.all.is_empty() {
            return String::new();
        }
        format!(" Remark: {}.", describe(analysis, &self.remarks.all))
    }

    /// Returns the verdict: *fail* with the faults, or else the given one. The remarks follow in both cases.
    pub(super) fn into_verdict(
        self,
        rule: &'static Rule,
        analysis: &Analysis,
        otherwise: impl FnOnce() -> Verdict,
    ) -> Verdict {
        let mut verdict = if self.has_faults() {
            Verdict::fail(rule, format!("{}.", describe(analysis, &self.faults.all)))
        } else {
            otherwise()
        };
        verdict.summary += &self.remarks(analysis);
        let shown = if self.has_faults() { &self.faults.all } else { &self.remarks.all };
        let places = interleaved(shown);
        verdict.at(places).with("violations", self.faults() as f64)
    }
}

/// Returns the packets: first one of each kind, then the second ones, so that every kind is named.
fn interleaved(findings: &[Finding]) -> Vec<Place> {
    let mut places = Vec::new();
    for at in 0..MOST_PLACES {
        for place in findings.iter().filter_map(|finding| finding.places.get(at)) {
            if places.len() < MOST_PLACES && !places.contains(place) {
                places.push(*place);
            }
        }
    }
    places
}

/// Describes findings. Senders with a finding of the same kind share its name.
fn describe(analysis: &Analysis, findings: &[Finding]) -> String {
    let mut kinds: Vec<&'static str> = Vec::new();
    for finding in findings {
        if !kinds.contains(&finding.kind) {
            kinds.push(finding.kind);
        }
    }
    let texts = kinds.iter().take(MOST_KINDS).map(|kind| {
        let mut senders = findings.iter().filter(|finding| finding.kind == *kind);
        let named: Vec<String> =
            senders.by_ref().take(MOST_SENDERS).map(|finding| packets_of(analysis, finding)).collect();
        let others = match senders.count() {
            0 => String::new(),
            count => format!(" and packets of {}", count_of(count as u64, "more sender")),
        };
        format!("{kind}: {}{others}", named.join(" and "))
    });
    let mut text = texts.collect::<Vec<_>>().join("; ");
    if kinds.len() > MOST_KINDS {
        _ = write!(text, "; {} more kinds", kinds.len() - MOST_KINDS);
    }
    text
}

fn packets_of(analysis: &Analysis, finding: &Finding) -> String {
    let mut text = match finding.count {
        1 => format!("packet {}", named(finding)),
        count if count as usize <= MOST_NAMED => format!("packets {}", named(finding)),
        count => format!("{count} packets, such as {},", named(finding)),
    };
    if let Some(stream) = finding.stream {
        _ = write!(text, " from {}", sender(analysis, stream));
    }
    if !finding.detail.is_empty() {
        _ = write!(text, " ({})", finding.detail);
    }
    text
}

fn named(finding: &Finding) -> String {
    let names: Vec<String> = finding.places.iter().take(MOST_NAMED).map(Place::to_string).collect();
    names.join(", ")
}

/// Names the sender of a stream, and the queue pair that it sends to.
pub(super) fn sender(analysis: &Analysis, stream: StreamId) -> String {
    match analysis.streams.get(stream) {
        Some(stream) => format!("{} to queue pair {}", stream.key.source, stream.key.qpn),
        None => "an unknown sender".to_owned(),
    }
}

/// Returns `count` with a noun, which gets an `s` unless the count is 1.
pub(super) fn count_of(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
