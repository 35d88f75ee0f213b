//! SEND and READ instead of WRITE.

use roce_packet::PathMtu;
use roce_sim::net::{
    After, DropReason, FlowOperation, FlowSpec, FlowState, LinkSpec, PauseMode, PayloadMode, ReceiveLimit,
    Results, Schedule, Settings, Simulation, Task, Threshold, Time, Topology, Transfer, incast,
};
use roce_transport::congestion::Congestion;

use super::{LINK, assert_complete, flow, run};

const SLOW: LinkSpec = LinkSpec { rate_bps: 24_999_999_999, delay: Time::from_ns(1_700) };

fn settings(operation: FlowOperation) -> Settings {
    let mut settings = Settings::default();
    settings.host.operation = operation;
    settings
}

const BOTH: [FlowOperation; 2] = [FlowOperation::Send, FlowOperation::Read];

/// A SEND has no RETH. A READ counts its request, 98 bytes on the wire, and its responses, with an AETH in
/// the first and last one.
#[test]
fn a_flow_alone_takes_as_long_as_it_must() {
    let time = |operation: FlowOperation, bytes: u64| {
        let results = run(&Topology::point_to_point(LINK), &[flow(0, 1, bytes)], settings(operation));
        assert_complete(&results);
        results.flows[0].completion_time.unwrap()
    };
    let wire = |bytes: u64| Time::from_ps(bytes * 80) + Time::from_us(2);
    assert_eq!(time(FlowOperation::Send, 1_024_000), wire(1_000 * 1_106 + 86));
    assert_eq!(time(FlowOperation::Read, 1_024_000), wire(98 + 1_000 * 1_106 + 8));
    assert_eq!(time(FlowOperation::Read, 1_024), wire(98 + 1_106 + 4));
}

#[test]
fn the_closed_form_is_exact() {
    let topology = Topology::leaf_spine(2, 2, 2, SLOW, LINK).unwrap();
    for operation in BOTH {
        for bytes in [1, 3, 1_023, 1_024, 1_025, 2_048, 3_000, 100_001, 5_000_000] {
            let mut several = settings(operation);
            (several.host.message_bytes, several.host.depth) = (3_000, 100);
            let mut slow = settings(operation);
            (slow.host.path_mtu, slow.host.delay) = (PathMtu::Mtu4096, Time::from_ns(777));
            slow.host.receive_limit =
                Some(ReceiveLimit { host: None, rate_bps: 9_000_000_001, xoff_bytes: 1 << 30 });
            for settings in [settings(operation), several, slow] {
                let results = run(&topology, &[flow(0, 3, bytes)], settings);
                let flow = &results.flows[0];
                assert_eq!(flow.completion_time, flow.ideal, "{operation:?} of {bytes} bytes");
                assert_eq!((flow.slowdown(), flow.counts.delivered), (Some(1.0), bytes));
                assert_eq!(flow.counts.retransmitted, 0);
            }
        }
    }
}

/// Regression: the closed form ignored the path MTU, messages and operation of a flow's own profile.
#[test]
fn the_settings_of_a_flow_are_those_of_its_closed_form() {
    let mut settings = Settings::default();
    for operation in BOTH {
        let mut own = settings.host.clone();
        (own.operation, own.path_mtu) = (operation, PathMtu::Mtu256);
        (own.message_bytes, own.depth) = (20_000, 5);
        settings.profiles.push(own);
    }
    settings.flow_profiles = vec![2, 1, 0];
    let start = |flow: FlowSpec, us: u64| FlowSpec { start: Time::from_us(us), ..flow };
    let flows = [flow(0, 1, 100_000), start(flow(2, 1, 100_000), 100), start(flow(1, 0, 100_000), 200)];
    let results = run(&Topology::star(3, LINK).unwrap(), &flows, settings);
    for flow in &results.flows {
        assert_eq!((flow.completion_time, flow.slowdown()), (flow.ideal, Some(1.0)), "{flow:?}");
    }
    let packets: Vec<u64> = results.flows.iter().map(|flow| flow.counts.packets).collect();
    assert_eq!(packets, [5 * 79, 5 * 79, 98]);
}

fn busy(operation: FlowOperation, payload: PayloadMode, plan: &str) -> Results {
    let mut topology = Topology::star(5, LINK).unwrap();
    if !plan.is_empty() {
        topology.links[4].set_faults(plan.parse().unwrap());
    }
    let mut settings = Settings { payload, ..settings(operation) };
    settings.host.message_bytes = 100_000;
    run(&topology, &incast(5, 4, 4, 300_001, Time::ZERO).unwrap(), settings)
}

#[test]
fn every_byte_arrives_through_losses_too() {
    for operation in BOTH {
        for plan in ["", "drop=0.5%;dup=0.5%;reorder=0.5%"] {
            let real = busy(operation, PayloadMode::Real, plan);
            assert_complete(&real);
            assert_eq!(real.checked.1, 0, "{operation:?}: a byte at a wrong place");
            assert!(real.checked.0 >= 4 * 300_001);
            let again: u64 = real.flows.iter().map(|flow| flow.counts.retransmitted).sum();
            assert_eq!(again > 0, !plan.is_empty(), "{operation:?}: {again}");
            let implied = busy(operation, PayloadMode::Implied, plan);
            assert_eq!(Results { checked: (0, 0), ..real }, implied);
        }
    }
}

/// Regression: the port of a paused host took READ responses without limit, because they are answers.
#[test]
fn a_paused_host_holds_back_its_read_responses() {
    for pause in [PauseMode::Frames, PauseMode::Instant] {
        let mut settings = settings(FlowOperation::Read);
        settings.switch.pause = pause;
        settings.switch.threshold = Threshold::Static { bytes: 20_000 };
        let flows = incast(9, 8, 8, 2_000_000, Time::ZERO).unwrap();
        let results = run(&Topology::star(9, LINK).unwrap(), &flows, settings);
        assert_complete(&results);
        assert!(results.sum(|port| port.pauses_received) > 8);
        for host in 0..8 {
            let most = results.port(&format!("h{host}"), "s0").unwrap().stats.queue_most;
            assert!(most <= 8 * 1_100, "{most} bytes wait in the port of h{host}");
        }
        assert_eq!(results.sum(|port| port.drops()), 0);
    }
}

/// CNPs slow down the end that answers READs.
#[test]
fn congestion_control_holds_for_read_responses() {
    let outcome = |congestion: &str| {
        let mut settings = settings(FlowOperation::Read);
        (settings.host.congestion, settings.host.notification) = Congestion::parse(congestion).unwrap();
        let results = run(
            &Topology::star(9, LINK).unwrap(),
            &incast(9, 8, 8, 5_000_000, Time::ZERO).unwrap(),
            settings,
        );
        assert_complete(&results);
        let handled: u64 = results.flows.iter().map(|flow| flow.counts.cnps_handled).sum();
        (results.sum(|port| port.pauses_received), handled)
    };
    let (without, none) = outcome("none");
    let (with, handled) = outcome("dcqcn:hpcc");
    assert!(none == 0 && handled > 0 && with < without / 2, "{with} pauses, {without} without");
}

#[test]
fn a_read_that_ends_early_has_delivered_a_part() {
    let settings = Settings { stop: Time::from_us(100), ..settings(FlowOperation::Read) };
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 100_000_000)], settings);
    let flow = &results.flows[0];
    assert_eq!((flow.state, flow.slowdown()), (FlowState::Running, None));
    // The request takes two links, and the first response two more; then there is a response each 88.48 ns.
    let packets = (100_000_000_u64 - 4_000_000 - 2 * 7_840 - 2 * 88_480) / 88_480;
    let delivered = flow.counts.delivered / 1_024;
    assert!(delivered.abs_diff(packets) <= 1, "{delivered} {packets}");
}

#[test]
fn an_unreachable_sender_fails_a_read() {
    let mut topology = Topology::star(2, LINK).unwrap();
    topology.links[0].set_faults("drop=100%".parse().unwrap());
    let mut settings = settings(FlowOperation::Read);
    (settings.host.timeout, settings.host.retry_cnt) = (4, 1);
    let results = run(&topology, &[flow(0, 1, 5_000)], settings);
    assert!(matches!(results.flows[0].state, FlowState::Failed(_)), "{:?}", results.flows[0].state);
    assert!(results.flows[0].counts.timeouts > 0 && results.dropped(DropReason::Link) > 0);
}

fn schedule_of(parts: &[u64], compute: Time) -> Schedule {
    let mut schedule = Schedule::new();
    let mut last = None;
    for bytes in parts {
        let transfer = Some(Transfer::Flow { flow: 0, bytes: *bytes });
        let task = Task { host: 0, earliest: Time::ZERO, compute, transfer };
        let after: Vec<After> = last.map(After::Done).into_iter().collect();
        last = Some(schedule.add(task, &after).unwrap());
    }
    let end = Task { host: 1, earliest: Time::ZERO, compute, transfer: None };
    schedule.add(end, &last.map(After::Arrival).into_iter().collect::<Vec<_>>()).unwrap();
    schedule
}

/// A flow that waits counts from its first post. A flow of several transfers has no slowdown, because it
/// waits between them.
#[test]
fn the_slowdown_of_a_flow_that_waits() {
    let topology = Topology::star(2, LINK).unwrap();
    let outcome = |parts: &[u64], operation: FlowOperation| {
        let flows = [flow(0, 1, parts.iter().sum())];
        let schedule = schedule_of(parts, Time::from_us(50));
        let mut simulation = Simulation::with_schedule(&topology, &flows, &schedule, settings(operation))?;
        simulation.run_to_end();
        let results = simulation.results();
        assert_complete(&results);
        Ok::<_, roce_sim::net::BuildError>((results.flows[0].slowdown(), results.flows[0].spec.start))
    };
    for operation in [FlowOperation::Write, FlowOperation::Send] {
        // The last packet has 4 bytes of immediate data.
        assert_eq!(outcome(&[100_000], operation).unwrap(), (Some(1.0), Time::from_us(50)), "{operation:?}");
    }
    assert_eq!(outcome(&[1_000, 2_000], FlowOperation::Write).unwrap().0, None);
    let message = |parts: &[u64], operation| outcome(parts, operation).unwrap_err().to_string();
    assert_eq!(
        message(&[1_000, 2_000], FlowOperation::Send),
        "flow 0: its receiver does not learn where its transfers end, so they cannot be SENDs"
    );
    assert_eq!(
        message(&[1_000], FlowOperation::Read),
        "flow 0: its sender does not learn when it ends, so it cannot be the READ of a task"
    );
}
