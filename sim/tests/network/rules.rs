//! Rules of a program instead of the decisions of switches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use roce_sim::net::{
    Admission, Balance, DropReason, FrameView, Marking, NamedRules, PortView, Results, Settings, SwitchRules,
    Time, Topology, Trimming, incast, permutation,
};

use roce_transport::congestion::parameters;
use roce_transport::congestion::parameters::{NoParameters, ParameterRange::Number};
use roce_transport::congestion::{Congestion, CustomError};

use super::{LINK, assert_complete, run};

/// Returns rules without parameters.
fn rules(make: impl Fn(u32) -> Box<dyn SwitchRules> + Send + Sync + 'static) -> NamedRules {
    NamedRules::new("own", NoParameters, move |_, switch| make(*switch))
}

/// Leaves every decision to the settings.
#[derive(Debug)]
struct Nothing;

impl SwitchRules for Nothing {}

/// Each pair of hosts takes the ports in turn, beginning at one that depends on the switch.
#[derive(Debug)]
struct Turns {
    switch: usize,
    pairs: BTreeMap<(u32, u32), usize>,
}

impl SwitchRules for Turns {
    fn choose(&mut self, _now: Time, frame: &FrameView, ports: &[PortView]) -> Option<usize> {
        assert!(ports.len() > 1, "a single port is no choice");
        let turn = self.pairs.entry((frame.source, frame.destination)).or_insert(self.switch);
        *turn += 1;
        Some(*turn % ports.len())
    }
}

/// A fat tree of 16 hosts with these rules.
fn fat_tree(rules: Option<NamedRules>, balance: Balance, threads: usize) -> Results {
    let mut settings = Settings { threads, ..Settings::default() };
    settings.switch.balance = balance;
    settings.switch.rules = rules;
    let topology = Topology::fat_tree(4, LINK, LINK).unwrap();
    run(&topology, &permutation(16, 300_000, Time::ZERO, 3).unwrap(), settings)
}

#[test]
fn rules_that_decide_nothing_change_nothing() {
    for balance in [Balance::Flow, Balance::Spray, Balance::Flowlet { gap: Time::from_us(5) }] {
        let nothing = rules(|_| Box::new(Nothing));
        assert_eq!(fat_tree(Some(nothing), balance, 1), fat_tree(None, balance, 1), "{balance:?}");
    }
}

#[test]
fn rules_choose_ports_with_equal_results_for_every_number_of_threads() {
    let turns = || rules(|switch| Box::new(Turns { switch: switch as usize, pairs: BTreeMap::new() }));
    let first = fat_tree(Some(turns()), Balance::Flow, 1);
    assert_complete(&first);
    for threads in [2, 4] {
        assert_eq!(fat_tree(Some(turns()), Balance::Flow, threads), first, "{threads} threads");
    }
    assert_ne!(first.trace_hash, fat_tree(None, Balance::Flow, 1).trace_hash);
}

/// What each switch saw of its frames: numbers and rates of ports, and the longest queue.
type Seen = Arc<Mutex<BTreeMap<u32, (Vec<u32>, u64)>>>;

#[derive(Debug)]
struct Watching {
    switch: u32,
    seen: Seen,
    marked: Arc<AtomicUsize>,
}

impl SwitchRules for Watching {
    fn choose(&mut self, _now: Time, frame: &FrameView, ports: &[PortView]) -> Option<usize> {
        assert!(frame.source != frame.destination && frame.source_port >= 0xc000 && !frame.is_trimmed);
        assert_eq!(frame.has_payload, frame.queue_bytes > 100, "data or acknowledgement");
        assert_eq!(frame.wire_bytes, frame.queue_bytes + 20);
        assert!(ports.iter().all(|port| port.rate_bps == LINK.rate_bps));
        let mut seen = self.seen.lock().unwrap();
        let (numbers, longest) = seen.entry(self.switch).or_default();
        let now: Vec<u32> = ports.iter().map(|port| port.number).collect();
        assert!(numbers.is_empty() || *numbers == now, "the same ports for all hosts of other leaves");
        *numbers = now;
        *longest = ports.iter().map(|port| port.queued_bytes).max().unwrap_or(0).max(*longest);
        // All to the last one.
        Some(usize::MAX)
    }

    fn marks(&mut self, _now: Time, frame: &FrameView, port: &PortView) -> Option<bool> {
        assert!(port.own_queue_bytes <= port.queued_bytes && frame.priority < 8);
        let marks = port.own_queue_bytes > 50_000;
        self.marked.fetch_add(usize::from(marks), Ordering::Relaxed);
        Some(marks)
    }
}

#[test]
fn rules_see_ports_and_queues_and_mark() {
    let (seen, marked) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let mut settings = Settings::default();
    settings.switch.marking = [Marking::Off; 8];
    // Without congestion control, data is not ECN-capable.
    (settings.host.congestion, _) = Congestion::parse("swift").unwrap();
    let (of_rules, counted) = (seen.clone(), marked.clone());
    let make = move |switch| -> Box<dyn SwitchRules> {
        Box::new(Watching { switch, seen: of_rules.clone(), marked: counted.clone() })
    };
    settings.switch.rules = Some(rules(make));
    let topology = Topology::leaf_spine(2, 3, 4, LINK, LINK).unwrap();
    let results = run(&topology, &incast(8, 7, 0, 200_000, Time::ZERO).unwrap(), settings);
    assert_complete(&results);
    let seen = seen.lock().unwrap();
    assert!(seen.values().all(|(numbers, _)| numbers.len() == 3), "{seen:?}");
    // Four flows meet at the last port of the leaf of their senders.
    assert!(seen.values().any(|(_, longest)| *longest > 100_000), "{seen:?}");
    let by_port: u64 = results.ports.iter().map(|port| port.stats.marked).sum();
    assert!(by_port > 0);
    assert!(by_port <= marked.load(Ordering::Relaxed) as u64, "only data can be marked");
}

parameters! {
    /// The parameters of [`Limit`].
    pub struct Limits {
        /// Bytes in a queue above which frames are trimmed
        /// or dropped.
        above: u32 = 20_000, Number(0, 1_000_000), "bytes", "";
        /// Whether they are trimmed.
        trims: bool = true, Number(0, 1), "", "";
    }
}

/// Limits every queue.
#[derive(Debug)]
struct Limit(Limits);

impl SwitchRules for Limit {
    fn admits(&mut self, _now: Time, frame: &FrameView, port: &PortView) -> Option<Admission> {
        let is_long = port.own_queue_bytes + u64::from(frame.queue_bytes) > u64::from(self.0.above);
        let refused = if self.0.trims { Admission::Trim } else { Admission::Drop };
        Some(if is_long && frame.has_payload { refused } else { Admission::Queue })
    }
}

fn limit() -> NamedRules {
    NamedRules::new("limit", Limits::default(), |limits, _| Box::new(Limit(*limits)))
}

/// Eight hosts send to one through switches with these rules.
fn limited(rules: &str, threads: usize) -> Results {
    let mut settings = Settings { threads, ..Settings::default() };
    settings.switch.pfc = 0;
    // The rules take precedence over this threshold.
    settings.switch.trimming = Some(Trimming { above_bytes: Some(1), ..Trimming::default() });
    settings.switch.rules = Some(NamedRules::parse_among(rules, &[limit()]).unwrap());
    settings.host.recovery = "selective-repeat:cap=64".parse().unwrap();
    let topology = Topology::leaf_spine(2, 3, 4, LINK, LINK).unwrap();
    run(&topology, &incast(8, 7, 0, 50_000, Time::ZERO).unwrap(), settings)
}

#[test]
fn rules_with_parameters_limit_queues() {
    let counts = |rules| {
        let results = limited(rules, 1);
        assert_complete(&results);
        assert_eq!(limited(rules, 2), results, "{rules}");
        (
            results.sum(|port| port.trimmed),
            results.dropped(DropReason::Rules),
            results.sum(|port| port.drops()),
        )
    };
    let short = counts("limit");
    let long = counts("limit:above=100000");
    assert!(short.0 > long.0 && long.0 > 0 && (short.1, short.2, long.1, long.2) == (0, 0, 0, 0));
    let dropping = counts("limit:above=100000,trims=0");
    assert!(dropping.0 == 0 && dropping.1 > 0 && dropping.1 == dropping.2, "{dropping:?}");
    // The first burst of 8 flows has 400 KB.
    assert_eq!(counts("limit:above=1000000"), (0, 0, 0));
}

#[test]
fn texts_of_rules_are_read_and_written() {
    let own = [limit()];
    let read = |text| NamedRules::parse_among(text, &own);
    assert_eq!(read("limit").unwrap(), own[0]);
    let changed = read("limit:above=7,trims=0").unwrap();
    assert_eq!(changed.to_string(), "limit:above=7,trims=0");
    assert_ne!(changed, own[0]);
    assert_ne!(limit(), own[0], "another function");
    let meaning = "Bytes in a queue above which frames are trimmed or dropped.";
    assert_eq!(own[0].table()[0].meaning, meaning);
    assert!(matches!(read("other"), Err(CustomError::Unknown { .. })));
    for wrong in ["limit:above", "limit:above=x", "limit:above=1000001", "limit:below=1"] {
        assert!(matches!(read(wrong), Err(CustomError::Parameter { .. })), "{wrong}");
    }
}
