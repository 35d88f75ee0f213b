//! Rules of a program instead of the decisions of switches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use roce_sim::net::{
    Balance, FrameView, MakeRules, Marking, PortView, Results, Settings, SwitchRules, Time, Topology, incast,
    permutation,
};

use roce_transport::congestion::Congestion;

use super::{LINK, assert_complete, run};

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
fn fat_tree(rules: Option<MakeRules>, balance: Balance, threads: usize) -> Results {
    let mut settings = Settings { threads, ..Settings::default() };
    settings.switch.balance = balance;
    settings.switch.rules = rules;
    let topology = Topology::fat_tree(4, LINK, LINK).unwrap();
    run(&topology, &permutation(16, 300_000, Time::ZERO, 3).unwrap(), settings)
}

#[test]
fn rules_that_decide_nothing_change_nothing() {
    for balance in [Balance::Flow, Balance::Spray, Balance::Flowlet { gap: Time::from_us(5) }] {
        let rules = MakeRules::new(|_| Box::new(Nothing));
        assert_eq!(fat_tree(Some(rules), balance, 1), fat_tree(None, balance, 1), "{balance:?}");
    }
}

#[test]
fn rules_choose_ports_with_equal_results_for_every_number_of_threads() {
    let turns =
        || MakeRules::new(|switch| Box::new(Turns { switch: switch as usize, pairs: BTreeMap::new() }));
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
    settings.switch.rules = Some(MakeRules::new(make));
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
