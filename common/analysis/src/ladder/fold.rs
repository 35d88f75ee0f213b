//! Folds runs of packets into single rows.

use super::events::{Event, Step};
use super::marks::Marks;
use crate::words::thousands;

/// Packets that a ladder does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Number of packets from each end.
    pub packets: [u64; 2],
    /// Number of those that were lost.
    pub lost: u64,
    /// Number of those that were sent again.
    pub resent: u64,
    /// Number of those with an ECN mark.
    pub marked: u64,
    /// Number of timeouts between them.
    pub timeouts: u64,
    /// Time of the first one in nanoseconds.
    pub from_ns: u64,
    /// Time of the last one in nanoseconds.
    pub until_ns: u64,
}

impl Folded {
    fn add(&mut self, event: &Event) {
        self.until_ns = event.time_ns;
        match event.step {
            Step::Packet(_) => {
                if let Some(packets) = self.packets.get_mut(event.from) {
                    *packets += 1;
                }
                self.lost += u64::from(event.marks.contains(Marks::LOST));
                self.resent += u64::from(event.marks.contains(Marks::RESENT));
                self.marked += u64::from(event.marks.contains(Marks::CE));
            }
            Step::Missing { count, is_lost: true, .. } => self.lost += count,
            Step::Missing { is_lost: false, .. } => {}
            Step::Timeout { .. } => self.timeouts += 1,
        }
    }

    /// Returns what is remarkable about the packets, such as "3 lost".
    pub(super) fn remarks(&self) -> String {
        let counts = [
            (self.lost, "lost"),
            (self.resent, "again"),
            (self.marked, "CE"),
            (self.timeouts, if self.timeouts == 1 { "timeout" } else { "timeouts" }),
        ];
        let texts = counts.into_iter().filter(|(count, _)| *count > 0);
        let texts: Vec<String> = texts.map(|(count, what)| format!("{} {what}", thousands(count))).collect();
        texts.join(", ")
    }
}

/// A row before it has its texts.
#[derive(Debug)]
pub(super) enum Shown {
    Event(Event),
    Folded(Folded),
}

/// The packets at the start and the end that are always shown.
const EDGE: usize = 3;
/// Shortest run that becomes one row.
const SHORTEST: usize = 3;

/// Folds events until at most `most` rows are left: first those without marks, then also equal ones in a row,
/// and at last everything behind the first rows.
pub(super) fn fold(events: Vec<Event>, most: usize) -> Vec<Shown> {
    if events.len() <= most {
        return events.into_iter().map(Shown::Event).collect();
    }
    let rows = assemble(&events, &with_context(&events));
    if rows.len() <= most {
        return rows;
    }
    let keep = changes(&events);
    let rows = assemble(&events, &keep);
    if rows.len() <= most {
        return rows;
    }
    assemble(&events, &only_first(keep, most))
}

fn is_remarkable(event: &Event) -> bool {
    !event.marks.is_empty() || !matches!(event.step, Step::Packet(_))
}

/// Keeps remarkable events and their neighbours.
fn with_context(events: &[Event]) -> Vec<bool> {
    let near = |index: usize| {
        let from = index.saturating_sub(1);
        events.get(from..events.len().min(index + 2)).is_some_and(|near| near.iter().any(is_remarkable))
    };
    (0..events.len()).map(|index| is_edge(index, events.len()) || near(index)).collect()
}

const fn is_edge(index: usize, len: usize) -> bool {
    index < EDGE || index + EDGE >= len
}

/// Keeps remarkable events, but of several equal ones only the first and the last.
fn changes(events: &[Event]) -> Vec<bool> {
    let is_like = |event: &Event, other: Option<&Event>| {
        other.is_some_and(|other| {
            let both = matches!((event.step, other.step), (Step::Packet(_), Step::Packet(_)));
            both && event.from == other.from && event.marks == other.marks
        })
    };
    let keep = events.iter().enumerate().map(|(index, event)| {
        let before = index.checked_sub(1).and_then(|before| events.get(before));
        let is_inner = is_like(event, before) && is_like(event, events.get(index + 1));
        is_edge(index, events.len()) || is_remarkable(event) && !is_inner
    });
    keep.collect()
}

/// Keeps only the first of the kept events, so that at most `most` rows result.
fn only_first(mut keep: Vec<bool>, most: usize) -> Vec<bool> {
    let len = keep.len();
    // One row for the rest, and the edge at the end.
    let room = most.saturating_sub(EDGE + 1);
    let (mut rows, mut run) = (0, 0);
    for (index, keep) in keep.iter_mut().enumerate() {
        if !*keep {
            run += 1;
            continue;
        }
        rows += 1 + if run < SHORTEST { run } else { 1 };
        run = 0;
        *keep = rows <= room || index + EDGE >= len;
    }
    keep
}

fn assemble(events: &[Event], keep: &[bool]) -> Vec<Shown> {
    let mut rows = Vec::new();
    let mut run: Vec<Event> = Vec::new();
    let flush = |run: &mut Vec<Event>, rows: &mut Vec<Shown>| {
        if run.len() < SHORTEST {
            rows.extend(run.drain(..).map(Shown::Event));
            return;
        }
        let from_ns = run.first().map_or(0, |event| event.time_ns);
        let mut folded = Folded { from_ns, ..Folded::default() };
        for event in run.drain(..) {
            folded.add(&event);
        }
        rows.push(Shown::Folded(folded));
    };
    for (event, keep) in events.iter().zip(keep) {
        if *keep {
            flush(&mut run, &mut rows);
            rows.push(Shown::Event(*event));
        } else {
            run.push(*event);
        }
    }
    flush(&mut run, &mut rows);
    rows
}
