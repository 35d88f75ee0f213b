//! Pauses and clocks.

use std::collections::HashMap;

use super::finder::Finder;
use super::kinds::{Event, EventKind};
use crate::copies::Tap;
use crate::record::{Place, Record};
use crate::words::{duration, thousands};

/// A port that asks for pauses for this time causes a storm, in nanoseconds.
const STORM_NS: u64 = 100_000_000;
/// A clock that goes back by more than this has been set, in nanoseconds. Captures of several queues may be
/// slightly out of order.
const STEP_NS: u64 = 100_000;

pub(super) fn find(finder: &mut Finder<'_>) {
    pauses(finder);
    clocks(finder);
}

fn add(finder: &mut Finder<'_>, kind: EventKind, time: u64, at: Vec<Place>, summary: String) {
    finder.found.push((time, Event { kind, connection: None, end: None, at, psn: None, summary }));
}

fn pauses(finder: &mut Finder<'_>) {
    for pause in std::mem::take(&mut finder.pauses) {
        let what = match pause.priority {
            Some(priority) => format!("priority {priority}"),
            None => "all traffic".to_owned(),
        };
        let length = pause.last_ns.saturating_sub(pause.first_ns);
        let kind = if length < STORM_NS { EventKind::Pause } else { EventKind::PauseStorm };
        let frames = match pause.frames {
            1 => "1 pause frame".to_owned(),
            count => format!("{} pause frames within {}", thousands(count), duration(length)),
        };
        let text = format!("{} stops {what} with {frames}", pause.source);
        let [first, last] = pause.places;
        let at = if first == last { vec![first] } else { vec![first, last] };
        let time = finder.on_first_clock(pause.tap, pause.first_ns);
        add(finder, kind, time, at, text);
    }
}

/// Times that go back within one tap.
fn clocks(finder: &mut Finder<'_>) {
    let analysis = finder.analysis;
    if analysis.counts.without_time > 0 {
        return;
    }
    let mut last: HashMap<Tap, &Record> = HashMap::new();
    for record in &analysis.records {
        if let Some(before) = last.insert(Tap::of(record), record)
            && before.time_ns.saturating_sub(record.time_ns) > STEP_NS
        {
            let ms = (before.time_ns - record.time_ns) as f64 / 1e6;
            let text = format!("the clock of the capture goes back by {ms:.3} ms");
            add(finder, EventKind::ClockStep, record.time_ns, vec![record.place, before.place], text);
        }
    }
}
