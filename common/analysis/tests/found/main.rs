//! Two engines exchange messages over a link, and events are injected. `analyze` must name these events and
//! no other, whether both ends were captured or one of them, in tunnels, and in truncated captures.
//!
//! ```text
//! A (requester) -- tap A -- the fault happens here -- tap B -- B (responder)
//! ```
//!
//! The tables are in docs/results/injected-events.md and docs/results/explained-failures.md. After a change
//! of the analysis, write them again: `ROCE_WRITE_TABLE=1 cargo test -p roce-analysis --test found`. Other
//! seeds than those of the table: `ROCE_FOUND_SEEDS=1001-1300 cargo test -p roce-analysis --test found
//! injected -- --nocapture`.
//!
//! `planted` makes the captures of docs/lessons/captures.md.

mod bridged;
mod counted;
mod explained;
mod injected;
mod managed;
mod planted;
mod scene;

use std::fmt::Write as _;

use injected::{Injected, KINDS, Kind, PAUSING, Scene, mixed};
use managed::managed;
use roce_analysis::event::{Event, EventKind, events};
use roce_sim::pair::Sent;
use roce_testing::check_table;
use roce_testing::encapsulated::Tunnel;
use scene::{Ending, Fault, Style, Taps, analyze, run, tapped};

/// Number of seeds for each kind and set of taps.
const SEEDS: u64 = 100;
/// Names other seeds, such as `1001-1300`.
const SEEDS_VARIABLE: &str = "ROCE_FOUND_SEEDS";
/// Wrong captures that are known. The number may only decrease.
const KNOWN: usize = 1;

/// Returns whether an event only follows from another: an answer to it, or a repetition because of it.
fn is_consequence(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::SequenceNak
            | EventKind::GoBackN
            | EventKind::Timeout
            | EventKind::ImpliedNak
            | EventKind::Cnp
            | EventKind::CmRepetition
    )
}

fn describe(events: &[Event]) -> String {
    let lines = events.iter().map(|event| {
        let at: Vec<String> = event.at.iter().map(ToString::to_string).collect();
        format!("  {} psn {:?} at {}: {}", event.kind.key(), event.psn, at.join(", "), event.summary)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns whether an event is the one that was injected.
fn is_same(event: &Event, injected: &Injected, taps: Taps) -> bool {
    let (kinds, may_be_missing) = injected.kind.expected(taps);
    // A timeout begins with the oldest packet without an answer, and the last one may be lost.
    let is_start = event.kind == EventKind::RequestOrAnswerLost && event.psn < injected.psn;
    // Behind the tap, a doubled request shows in its answers.
    let is_indirect = matches!(injected.kind, Kind::Network(Fault::Duplicate, _)) && may_be_missing
        || event.kind == EventKind::CmRepetition;
    let is_there = injected.psn.is_none() || event.psn == injected.psn;
    let names_port = event.kind != EventKind::Pause || event.summary.starts_with(&PAUSING.to_string());
    kinds.contains(&event.kind) && (is_there || is_start || is_indirect) && names_port
}

/// The injected events of one or more captures, counted by result.
#[derive(Default)]
struct Row {
    captures: usize,
    packets: usize,
    injected: usize,
    /// Injected events that are named.
    named: usize,
    /// Injected events that are not named although the packets show them.
    overlooked: usize,
    /// Events that nobody injected.
    invented: usize,
    wrong: Vec<String>,
}

impl Row {
    fn add(&mut self, scene: &Scene, style: Style, about: &str) {
        let analysis = analyze(&scene.taps, style);
        let found = events(&analysis);
        let mut left: Vec<&Injected> = scene.injected.iter().collect();
        let mut invented = 0;
        for event in &found {
            let exact = left
                .iter()
                .position(|injected| injected.psn == event.psn && is_same(event, injected, style.taps));
            let same = || left.iter().position(|injected| is_same(event, injected, style.taps));
            match exact.or_else(same) {
                Some(position) => drop(left.swap_remove(position)),
                None => invented += usize::from(!is_consequence(event.kind)),
            }
        }
        let named = scene.injected.len() - left.len();
        left.retain(|injected| !injected.kind.expected(style.taps).1);
        if invented > 0 || !left.is_empty() {
            let events = describe(&found);
            let injected = &scene.injected;
            self.wrong.push(format!("{about}, {style:?}: {injected:?} gives\n{events}"));
        }
        self.captures += 1;
        self.packets += analysis.records.len();
        self.injected += scene.injected.len();
        self.named += named;
        self.overlooked += left.len();
        self.invented += invented;
    }

    /// Adds the captures of a scene at some places, each in another tunnel.
    fn add_all(&mut self, scene: &Scene, places: &[Taps], seed: u64, is_truncated: bool) {
        for (number, taps) in places.iter().copied().enumerate() {
            let tunnel = Tunnel::ALL[(seed as usize + number) % Tunnel::ALL.len()];
            self.add(scene, Style { taps, tunnel, is_truncated }, &format!("seed {seed}"));
        }
    }

    /// Returns the row of whole captures, and the one of truncated ones if there is one.
    fn of(
        scene: impl Fn(u64, &[Sent]) -> Option<Scene>,
        plain: &[(u64, Vec<Sent>)],
        places: &[Taps],
        has_truncated: bool,
    ) -> (Self, Option<Self>) {
        let (mut whole, mut truncated) = (Self::default(), has_truncated.then(Self::default));
        for &(seed, ref plain) in plain {
            let Some(scene) = scene(seed, plain) else { continue };
            whole.add_all(&scene, places, seed, false);
            if let Some(truncated) = &mut truncated {
                truncated.add_all(&scene, places, seed, true);
            }
        }
        (whole, truncated)
    }
}

/// Returns the seeds that the environment names.
fn other_seeds() -> Option<std::ops::RangeInclusive<u64>> {
    let text = std::env::var(SEEDS_VARIABLE).ok()?;
    let range = text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    Some(range.unwrap_or_else(|| panic!("{SEEDS_VARIABLE} is {text:?}, not a range such as 1001-1300")))
}

/// Returns the rows of the table.
fn rows(seeds: std::ops::RangeInclusive<u64>) -> Vec<(String, Row)> {
    let plain: Vec<(u64, Vec<Sent>)> = seeds.map(|seed| (seed, run(seed, &[], Ending::Good))).collect();
    let plain = plain.as_slice();
    let of_kind = |(name, kind): (&'static str, Kind)| {
        let scene = |seed, plain: &[Sent]| kind.scene(seed, plain);
        (name.to_owned(), Row::of(scene, plain, kind.places(), kind.shows_in_headers()))
    };
    // Two threads, which take the kinds by turns.
    let halves = [0, 1].map(|half| KINDS.into_iter().skip(half).step_by(2));
    let [even, odd] = std::thread::scope(|scope| {
        let running = halves.map(|kinds| scope.spawn(move || kinds.map(of_kind).collect::<Vec<_>>()));
        running.map(|half| half.join().expect("no scene panics"))
    });
    let (mut even, mut odd) = (even.into_iter(), odd.into_iter());
    let in_order = std::iter::from_fn(|| {
        std::mem::swap(&mut even, &mut odd);
        odd.next()
    });
    let (mut rows, mut of_truncated) = (Vec::new(), Vec::new());
    for (name, (whole, truncated)) in in_order {
        of_truncated.extend(truncated.map(|row| (format!("{name}, truncated"), row)));
        rows.push((name, whole));
    }
    let (mixed, _) = Row::of(mixed, plain, &Taps::ALL, false);
    rows.push(("two faults of the network".to_owned(), mixed));
    rows.extend(of_truncated);
    rows
}

fn table(rows: &[(String, Row)]) -> String {
    let mut text =
        "| injected | captures | packets | named | overlooked | invented |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let mut total = Row::default();
    let line = |text: &mut String, name: &str, row: &Row| {
        let Row { captures, packets, injected, named, overlooked, invented, .. } = row;
        let _ = writeln!(
            text,
            "| {name} | {captures} | {packets} | {named} of {injected} | {overlooked} | {invented} |"
        );
    };
    for (name, row) in rows {
        line(&mut text, name, row);
        total.captures += row.captures;
        total.packets += row.packets;
        total.injected += row.injected;
        total.named += row.named;
        total.overlooked += row.overlooked;
        total.invented += row.invented;
    }
    line(&mut text, "all", &total);
    text
}

#[test]
fn injected_events_are_named_and_no_others() {
    let seeds = other_seeds();
    let rows = rows(seeds.clone().unwrap_or(1..=SEEDS));
    let table = table(&rows);
    let wrong: Vec<&String> = rows.iter().flat_map(|(_, row)| &row.wrong).collect();
    if let Some(seeds) = seeds {
        let sum = |count: fn(&Row) -> usize| rows.iter().map(|(_, row)| count(row)).sum::<usize>();
        let (packets, invented) = (sum(|row| row.packets), sum(|row| row.invented));
        wrong.iter().take(8).for_each(|text| println!("{text}"));
        println!("{table}seeds {seeds:?}: {} captures are wrong", wrong.len());
        assert!(invented * 100_000 < packets, "{invented} events are invented in {packets} packets");
        return;
    }
    let first: Vec<&str> = wrong.iter().take(8).map(|text| text.as_str()).collect();
    assert!(
        wrong.len() <= KNOWN,
        "{} captures, {KNOWN} are known:\n{}\n{table}",
        wrong.len(),
        first.join("\n")
    );
    assert_eq!(wrong.len(), KNOWN, "fewer are wrong: lower the limit");
    let (head, rows) = table.split_at(table.match_indices('\n').nth(1).expect("a head").0 + 1);
    check_table("injected-events.md", head.lines().next().expect("a head"), rows);
}

#[test]
fn without_events_nothing_is_found() {
    let styles = Tunnel::ALL.into_iter().flat_map(|tunnel| [(tunnel, false), (tunnel, true)]);
    for seed in 1..=SEEDS {
        let plain = run(seed, &[], Ending::Good);
        // Half of the captures have the connection management, too.
        let taps = tapped(&if seed % 2 == 0 { managed(&plain, None, false).0 } else { plain });
        for ((tunnel, is_truncated), place) in
            styles.clone().flat_map(|style| Taps::ALL.map(|taps| (style, taps)))
        {
            let style = Style { taps: place, tunnel, is_truncated };
            let found = events(&analyze(&taps, style));
            assert!(found.is_empty(), "seed {seed}, {style:?}:\n{}", describe(&found));
        }
    }
}
