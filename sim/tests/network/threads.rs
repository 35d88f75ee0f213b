//! Results do not depend on the number of threads.

use std::fmt::Debug;

use roce_sim::net::{
    After, Application, Balance, Captured, Collective, Failed, Failure, FlowOperation, FlowSpec,
    HostSettings, LinkSpec, Marking, OperationAlgorithm, OperationKind, PauseMode, PauseStorm, PayloadMode,
    Plan, Results, ScaleUp, Schedule, Settings, Simulation, Task, Threshold, Time, Topology, Transfer,
    Watchdog, all_to_all, incast, permutation, uneven_shares,
};
use roce_transport::congestion::Congestion;
use roce_transport::{Recovery, SelectiveRepeat};

use super::{LINK, flow};

/// A network, its flows and their dependencies.
struct Case {
    topology: Topology,
    flows: Vec<FlowSpec>,
    schedule: Schedule,
    settings: Settings,
}

impl Case {
    /// Returns several flows between all parts of a fat tree with 16 hosts.
    fn fat_tree(settings: Settings) -> Self {
        let mut flows = permutation(16, 150_000, Time::ZERO, settings.seed).unwrap();
        flows.extend(incast(16, 6, 3, 60_000, Time::from_us(5)).unwrap());
        let topology = Topology::fat_tree(4, LINK, LINK).unwrap();
        Self { topology, flows, schedule: Schedule::new(), settings }
    }

    /// Runs the case with `threads` threads, in steps of `step` events.
    fn run(&self, threads: usize, step: u64) -> (Results, Vec<Captured>) {
        let settings = Settings { threads, ..self.settings.clone() };
        let mut simulation =
            Simulation::with_schedule(&self.topology, &self.flows, &self.schedule, settings).unwrap();
        assert_eq!(simulation.threads(), threads);
        let mut captured = Vec::new();
        while simulation.run(step) {
            captured.extend(simulation.take_captured());
        }
        captured.extend(simulation.take_captured());
        (simulation.results(), captured)
    }

    /// Compares runs with one to four threads, and returns the results.
    #[track_caller]
    fn compare(&self) -> (Results, Vec<Captured>) {
        let first = self.run(1, u64::MAX);
        assert!(first.0.events > 1_000, "{} events", first.0.events);
        for threads in 1..=4 {
            // In short steps, all parts run in this thread.
            for step in [u64::MAX, 50_000, 1_000] {
                let again = self.run(threads, step);
                let what = format!("{threads} threads in steps of {step}");
                assert_equal(&again.0.flows, &first.0.flows, &what);
                assert_equal(&again.0.ports, &first.0.ports, &what);
                assert_eq!(again, first, "{what}");
            }
        }
        first
    }
}

/// Checks equality and names the first element that differs.
#[track_caller]
fn assert_equal<T: PartialEq + Debug>(one: &[T], other: &[T], what: &str) {
    for (number, (one, other)) in one.iter().zip(other).enumerate() {
        assert_eq!(one, other, "number {number} with {what}");
    }
}

/// Returns settings with congestion, so that marks, notifications and pauses depend on every order.
fn congested() -> Settings {
    let mut settings = Settings { seed: 7, ..Settings::default() };
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dcqcn:paper").unwrap();
    settings.switch.buffer_bytes = 1_000_000;
    settings.switch.marking[3] = Marking::Red { kmin: 20_000, kmax: 80_000, pmax: 0.1 };
    settings
}

fn sum(results: &Results) -> (u64, u64, u64) {
    (
        results.sum(|port| port.marked),
        results.sum(|port| port.pauses_sent),
        results.flows.iter().map(|flow| flow.counts.retransmitted).sum(),
    )
}

#[test]
fn marks_and_pauses() {
    let (results, _) = Case::fat_tree(congested()).compare();
    let (marked, pauses, _) = sum(&results);
    assert!(marked > 0 && pauses > 0 && results.incomplete() == 0, "{marked} {pauses}");
}

/// The threads of all applications, and hosts without one.
#[test]
fn threads_of_applications() {
    let applications = [
        Application::Polling,
        Application::Events { spin: Time::ZERO },
        Application::Events { spin: Time::from_us(5) },
        Application::Computing { time: Time::from_us(20) },
        Application::Immediate,
    ];
    for operation in [FlowOperation::Write, FlowOperation::Send, FlowOperation::Read] {
        let mut settings = congested();
        settings.applications = applications.into_iter().cycle().take(16).collect();
        settings.host.operation = operation;
        settings.host.message_bytes = 10_000;
        let (results, _) = Case::fat_tree(settings).compare();
        assert_eq!((results.incomplete(), results.hosts.len()), (0, 13), "{operation:?}");
        assert!(results.hosts.iter().all(|host| host.waits.count() > 0 && host.polls > 0));
    }
}

#[test]
fn every_way_to_choose_a_path_and_telemetry() {
    for balance in
        [Balance::Weighted, Balance::Spray, Balance::Adaptive, Balance::Flowlet { gap: Time::from_us(5) }]
    {
        let mut settings = congested();
        settings.switch.balance = balance;
        settings.host.recovery =
            Recovery::SelectiveRepeat(SelectiveRepeat { cap: 1024, ..SelectiveRepeat::default() });
        (settings.host.congestion, settings.host.notification) = Congestion::parse("hpcc").unwrap();
        let (results, _) = Case::fat_tree(settings).compare();
        assert_eq!(results.incomplete(), 0, "{balance:?}");
    }
}

#[test]
fn losses_with_real_payload_and_captures() {
    let mut settings = Settings { payload: PayloadMode::Real, ..congested() };
    settings.switch.pfc = 0;
    settings.switch.buffer_bytes = 100_000;
    let mut case = Case::fat_tree(settings);
    for (number, link) in case.topology.links.iter_mut().enumerate() {
        if number % 3 == 0 {
            link.set_faults("drop=0.2%;corrupt=0.2%;dup=0.5%;reorder=2%".parse().unwrap());
        }
    }
    case.settings.measure.capture = vec![0, 7, 40, 41, 60];
    let (results, captured) = case.compare();
    assert!(results.checked.0 > 0 && results.checked.1 == 0);
    let ports: std::collections::BTreeSet<u32> = captured.iter().map(|frame| frame.port).collect();
    assert!(ports.len() >= 4 && captured.is_sorted_by_key(|frame| frame.time), "{ports:?}");
    assert!(sum(&results).2 > 0);
}

#[test]
fn failures_storms_and_the_watchdog() {
    let mut settings = congested();
    let failure = |what, at, until| Failure {
        what,
        at: Time::from_us(at),
        until: Time::from_us(until),
        reroute_after: Time::from_us(3),
    };
    settings.failures = vec![
        failure(Failed::Switch("core1".into()), 4, 20),
        failure(Failed::Links("edge0".into(), "agg0".into()), 8, 30),
    ];
    settings.storms =
        vec![PauseStorm { host: 3, priority: 3, start: Time::from_us(2), end: Time::from_us(400) }];
    settings.switch.watchdog = Some(Watchdog { after: Time::from_us(20), restore: Time::from_us(30) });
    settings.stop = Time::from_us(900);
    settings.host.timeout = 3;
    let (results, _) = Case::fat_tree(settings).compare();
    assert!(results.sum(|port| port.watchdog) > 0 && results.sum(|port| port.drops()) > 0);
}

#[test]
fn sends_reads_and_flows_that_fail() {
    let mut settings = congested();
    settings.host.message_bytes = 10_000;
    let read = HostSettings { operation: FlowOperation::Read, ..settings.host.clone() };
    let send = HostSettings { operation: FlowOperation::Send, ..settings.host.clone() };
    let lost = HostSettings { timeout: 1, retry_cnt: 1, ..settings.host.clone() };
    settings.profiles = vec![read, send, lost];
    settings.flow_profiles = (0..22).map(|flow| flow % 4).collect();
    let mut case = Case::fat_tree(settings);
    // All frames from the sender of a flow of the third profile are dropped.
    let port = case.topology.port_named(&format!("h{}", case.flows[3].source)).unwrap();
    case.topology.links[port as usize / 2].set_faults("drop=100%".parse().unwrap());
    case.settings.stop = Time::from_us(3_000);
    let (results, _) = case.compare();
    let failed = results.flows.iter().filter(|flow| flow.state.name().ends_with("ERR")).count();
    assert!(failed > 0, "{:?}", results.flows.iter().map(|flow| flow.state).collect::<Vec<_>>());
}

#[test]
fn tasks_and_many_starts() {
    let hosts = 8;
    let mut flows = all_to_all(hosts, 20_000, Time::ZERO).unwrap();
    let mut schedule = Schedule::new();
    let mut last = None;
    for (number, flow) in (0..).zip(&mut flows) {
        if number % 3 != 0 {
            flow.start = Time::from_ns(u64::from(number) * 300);
            continue;
        }
        let transfer = Some(Transfer::Flow { flow: number, bytes: 20_000 });
        let (earliest, compute) = (Time::ZERO, Time::from_ns(500));
        let task = Task { host: flow.source, earliest, compute, transfer };
        let after: Vec<After> = last
            .filter(|(_, destination)| *destination == flow.source)
            .map(|(task, _)| After::Arrival(task))
            .into_iter()
            .collect();
        last = Some((schedule.add(task, &after).unwrap(), flow.destination));
        schedule.add(Task { host: flow.source, earliest, compute, transfer: None }, &[]).unwrap();
    }
    let far = LinkSpec { delay: Time::from_us(3), ..LINK };
    let topology = Topology::ring(4, 2, LINK, far).unwrap();
    let (results, _) = Case { topology, flows, schedule, settings: congested() }.compare();
    assert!(results.incomplete() == 0 && results.task_ends.iter().all(Option::is_some));
}

/// Transfers of a scale-up network cross parts, because the hosts of a server are at different rails.
#[test]
fn scale_up_networks_between_parts() {
    let shares = uneven_shares(16, 1.0, 3).unwrap();
    let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
    let mut topology = Topology::rail_optimised(4, 4, 2, LINK, LINK).unwrap();
    // Shorter than the links, and slow enough for queues.
    let (hosts, rate_bps) = (4, 200_000_000_000);
    topology.scale_up = Some(ScaleUp { hosts, rate_bps, delay: Time::from_ns(300) });
    let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO).with_scale_up(topology.scale_up);
    let hosts: Vec<u32> = (0..16).collect();
    let mut begins: Vec<_> = hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
    for (kind, shares, bytes) in
        [(OperationKind::AllToAll, Some(&shares[..]), 400_000), (OperationKind::AllReduce, None, 200_000)]
    {
        let what = Collective::of(kind, OperationAlgorithm::Hierarchical, bytes, None);
        begins = plan.collective(&Collective { shares, ..what }, &hosts, &begins).unwrap();
    }
    let (results, _) = Case { topology, flows, schedule, settings: congested() }.compare();
    assert!(results.incomplete() == 0 && results.task_ends.iter().all(Option::is_some));
}

#[test]
fn a_deadlock_that_ends_at_the_stop_time() {
    let topology = Topology::ring(4, 2, LINK, LINK).unwrap();
    let flows: Vec<FlowSpec> = (0..8).map(|host| flow(host, (host + 4) % 8, 2_000_000)).collect();
    let mut settings = Settings { stop: Time::from_us(500), ..Settings::default() };
    settings.switch.threshold = Threshold::Static { bytes: 20_000 };
    settings.switch.marking[3] = Marking::Off;
    let (results, _) = Case { topology, flows, schedule: Schedule::new(), settings }.compare();
    assert!(results.incomplete() > 0 && results.end == Time::from_us(500), "{}", results.end);
}

/// A network that cannot be divided has one part, and the results of one thread.
#[test]
fn what_cannot_be_divided() {
    let flows = incast(5, 4, 0, 50_000, Time::ZERO).unwrap();
    let star = Topology::star(5, LINK).unwrap();
    let tree = Topology::fat_tree(4, LINK, LINK).unwrap();
    let mut instant = congested();
    instant.switch.pause = PauseMode::Instant;
    for (topology, settings) in [(star, congested()), (tree, instant)] {
        let results = [1, 4].map(|threads| {
            let settings = Settings { threads, ..settings.clone() };
            let mut simulation = Simulation::new(&topology, &flows, settings).unwrap();
            assert_eq!(simulation.threads(), 1);
            simulation.run_to_end();
            simulation.results()
        });
        assert_eq!(results[0], results[1]);
    }
}
