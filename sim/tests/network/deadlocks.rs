//! Deadlocks of pauses.

use roce_sim::net::{Deadlock, PauseStep, RouteOverride, WaitEnd};

use super::*;

/// Returns a ring of switches with two hosts each. All hosts send over the next switch to the one after it,
/// except those at switch `broken`.
fn ring(switches: usize, broken: Option<usize>) -> (Topology, Vec<FlowSpec>, Settings) {
    let topology = Topology::ring(switches, 2, LINK, LINK).unwrap();
    let (mut routes, mut flows) = (Vec::new(), Vec::new());
    for at in 0..switches {
        let next = (at + 1) % switches;
        for host in 0..2 {
            let to = 2 * ((at + 2) % switches) + host;
            let to_host = format!("h{to}");
            routes.push(RouteOverride { at: format!("s{at}"), to: to_host, via: vec![format!("s{next}")] });
            if broken != Some(at) {
                flows.push(flow((2 * at + host) as u32, to as u32, 5_000_000));
            }
        }
    }
    let mut settings = Settings { routes, stop: Time::from_us(5_000), ..Settings::default() };
    settings.switch.threshold = Threshold::Static { bytes: 100_000 };
    settings.switch.marking[3] = Marking::Off;
    (topology, flows, settings)
}

fn names(results: &Results, deadlock: &Deadlock) -> Vec<String> {
    deadlock.ports.iter().map(|port| results.ports[*port as usize].name.clone()).collect()
}

#[test]
fn a_cycle_of_four_switches_is_named_in_its_order() {
    let (topology, flows, settings) = ring(4, None);
    let results = run(&topology, &flows, settings.clone());
    let [deadlock] = &results.deadlocks[..] else { panic!("{:?}", results.deadlocks) };
    let named = names(&results, deadlock);
    assert_eq!(named, ["s0->s1", "s1->s2", "s2->s3", "s3->s0"]);
    assert_eq!((deadlock.priority, deadlock.end), (3, None));
    // All its ports are paused from then on.
    for name in &named {
        let (from, to) = name.split_once("->").unwrap();
        let paused = results.port(from, to).unwrap().stats.paused[3];
        assert!(paused >= settings.stop.since(deadlock.begin), "{name}: {paused}");
    }
    // Pauses that take effect at once cause the same cycle.
    let mut instant = settings;
    instant.switch.pause = PauseMode::Instant;
    let results = run(&topology, &flows, instant);
    assert_eq!(names(&results, &results.deadlocks[0]), named);
}

#[test]
fn a_ring_in_which_one_switch_sends_nothing_has_no_deadlock() {
    let (topology, flows, mut settings) = ring(4, Some(2));
    settings.stop = Time::from_us(50_000);
    let results = run(&topology, &flows, settings);
    assert_complete(&results);
    assert_eq!(results.deadlocks, []);
    assert!(results.port("s0", "s1").unwrap().stats.pauses_received > 0, "there are pauses");
}

#[test]
fn a_watchdog_opens_a_deadlock() {
    let (topology, flows, mut settings) = ring(3, None);
    let after = Time::from_us(500);
    settings.switch.watchdog = Some(Watchdog { after, restore: Time::from_us(200) });
    let results = run(&topology, &flows, settings);
    let first = &results.deadlocks[0];
    assert_eq!(names(&results, first), ["s0->s1", "s1->s2", "s2->s0"]);
    let (end, what) = first.end.expect("it opens");
    assert_eq!(what, WaitEnd::Watchdog);
    // The last of its ports was paused when the cycle closed, the others before or at the same time.
    assert!(end > first.begin && end <= first.begin + after, "{} {end}", first.begin);
    assert!(results.pauses.iter().any(|point| point.time == end && point.step == PauseStep::Watchdog));
    for pair in results.deadlocks.windows(2) {
        assert!(pair[0].end.is_some_and(|(end, _)| end <= pair[1].begin), "one after the other");
    }
}

#[test]
fn the_steps_of_pauses_are_those_that_ports_count() {
    let (topology, flows, mut settings) = ring(3, None);
    settings.switch.watchdog = Some(Watchdog { after: Time::from_us(500), restore: Time::from_us(200) });
    let results = run(&topology, &flows, settings.clone());
    assert!(results.pauses.is_sorted_by_key(|point| point.time));
    for (number, port) in (0..).zip(&results.ports) {
        let count = |step| {
            let of = results.pauses.iter().filter(|point| point.port == number && point.step == step);
            of.count() as u64
        };
        assert_eq!(count(PauseStep::Sent), port.stats.xoff_sent, "{}", port.name);
        assert_eq!(count(PauseStep::Begins), port.stats.pauses_received, "{}", port.name);
        assert_eq!(count(PauseStep::Watchdog), port.stats.watchdog, "{}", port.name);
        let ended = count(PauseStep::Resumed) + count(PauseStep::Expired);
        assert!(ended <= count(PauseStep::Begins) && ended + 1 >= count(PauseStep::Begins), "{}", port.name);
    }
    assert_eq!(results.pauses_left_out, 0);
    settings.measure.most_points = 10;
    let few = run(&topology, &flows, settings);
    assert_eq!(few.pauses[..], results.pauses[..10]);
    assert_eq!(few.pauses_left_out, results.pauses.len() as u64 - 10);
    assert_eq!(few.deadlocks, results.deadlocks);
}
