//! Connection management, pauses and clocks.

use std::collections::{BTreeMap, HashMap};

use roce_packet::MacAddr;
use roce_packet::mad::CmMessage;
use roce_packet::pause::PauseRequest;

use super::finder::Finder;
use super::kinds::{Event, EventKind};
use crate::copies::Tap;
use crate::record::{Place, Record};
use crate::verdict::cm::{DEFAULT_WAIT_NS, refusal};

/// Longest time between two pause frames of one storm, in nanoseconds. The longest pause of one frame is
/// 33 ms at 1 Gbit/s.
const PAUSE_NS: u64 = 33_000_000;
/// A port that asks for pauses for this time causes a storm, in nanoseconds.
const STORM_NS: u64 = 100_000_000;
/// A clock that goes back by more than this has been set, in nanoseconds. Captures of several queues may be
/// slightly out of order.
const STEP_NS: u64 = 100_000;

pub(super) fn find(finder: &mut Finder<'_>) {
    management(finder);
    pauses(finder);
    clocks(finder);
}

fn add(finder: &mut Finder<'_>, kind: EventKind, time: u64, at: Vec<Place>, summary: String) {
    finder.found.push((time, Event { kind, connection: None, end: None, at, psn: None, summary }));
}

fn management(finder: &mut Finder<'_>) {
    let analysis = finder.analysis;
    for exchange in &analysis.exchanges {
        if let Some(record) = exchange.first(&analysis.cm, "REJ")
            && let CmMessage::Rej(rej) = &*record.message
        {
            let text = refusal(record.source, rej);
            add(finder, EventKind::CmReject, record.time_ns, vec![record.place], text);
        }
        for name in ["REQ", "REP", "RTU", "DREQ", "DREP", "REJ", "MRA", "SIDR_REQ", "SIDR_REP"] {
            let all = exchange.all(&analysis.cm, name);
            for (before, record) in all.iter().zip(all.iter().skip(1)) {
                if before.source != record.source {
                    // Both ends may disconnect.
                    continue;
                }
                let ms = record.time_ns.saturating_sub(before.time_ns) as f64 / 1e6;
                let text = format!("{} sent {name} again after {ms:.1} ms", record.source);
                let at = vec![record.place, before.place];
                add(finder, EventKind::CmRepetition, record.time_ns, at, text);
            }
        }
        let wait_ns =
            exchange.first(&analysis.cm, "REQ").map_or(DEFAULT_WAIT_NS, |record| match &*record.message {
                CmMessage::Req(req) => req.remote_cm_response_timeout.nanos(),
                _ => DEFAULT_WAIT_NS,
            });
        if let (Some(record), None) =
            (exchange.first(&analysis.cm, "DREQ"), exchange.first(&analysis.cm, "DREP"))
            && analysis.time_left(record).is_some_and(|left| left > wait_ns)
        {
            let text = format!("the DREQ of {} has no DREP", record.source);
            add(finder, EventKind::NoDisconnectAnswer, record.time_ns, vec![record.place], text);
        }
    }
}

/// Pauses of one priority that a port asks for without an end.
#[derive(Clone, Copy)]
struct Storm {
    first: Place,
    first_ns: u64,
    last_ns: u64,
    last: Place,
    frames: u64,
}

fn pauses(finder: &mut Finder<'_>) {
    let mut open: BTreeMap<(u16, [u8; 6], usize), Storm> = BTreeMap::new();
    let mut over = Vec::new();
    for pause in &finder.analysis.pauses {
        let MacAddr(source) = pause.source;
        let quanta: Vec<(usize, u16)> = match pause.request {
            PauseRequest::All(quanta) => vec![(usize::MAX, quanta)],
            PauseRequest::PerPriority(all) => {
                all.iter().enumerate().filter_map(|(priority, quanta)| Some((priority, (*quanta)?))).collect()
            }
        };
        for (priority, quanta) in quanta {
            let key = (pause.place.capture, source, priority);
            let ends = open
                .get(&key)
                .is_some_and(|storm| quanta == 0 || pause.time_ns.saturating_sub(storm.last_ns) > PAUSE_NS);
            if ends {
                over.extend(open.remove(&key).map(|storm| (key, storm)));
            }
            if quanta > 0 {
                let (place, now) = (pause.place, pause.time_ns);
                let new = Storm { first: place, first_ns: now, last_ns: now, last: place, frames: 0 };
                let storm = open.entry(key).or_insert(new);
                (storm.last_ns, storm.last) = (now, place);
                storm.frames += 1;
            }
        }
    }
    over.extend(open);
    for ((_, source, priority), storm) in over {
        let length = storm.last_ns.saturating_sub(storm.first_ns);
        if length < STORM_NS {
            continue;
        }
        let what =
            if priority == usize::MAX { "all traffic".to_owned() } else { format!("priority {priority}") };
        let text = format!(
            "{} stops {what} for {:.1} ms with {} pause frames",
            MacAddr(source),
            length as f64 / 1e6,
            storm.frames
        );
        add(finder, EventKind::PauseStorm, storm.first_ns, vec![storm.first, storm.last], text);
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
