//! Flows that wait for others, and collective operations compared with their closed forms.

use roce_sim::net::{
    After, Collective, FlowSpec, FlowState, LinkSpec, Operation, OperationAlgorithm, OperationKind,
    PayloadMode, Plan, Results, Schedule, Settings, Simulation, Task, Time, Topology, Transfer,
    uneven_shares,
};

use super::{LINK, assert_complete, flow, longest_queue};

fn run(topology: &Topology, flows: &[FlowSpec], schedule: &Schedule, settings: Settings) -> Results {
    let mut simulation = Simulation::with_schedule(topology, flows, schedule, settings).unwrap();
    simulation.run_to_end();
    simulation.results()
}

fn sends(host: u32, flow: u32, bytes: u64, compute: Time) -> Task {
    Task { host, earliest: Time::ZERO, compute, transfer: Some(Transfer::Flow { flow, bytes }) }
}

/// A question, a computation, an answer: each begins exactly when its inputs are available.
#[test]
fn an_answer_begins_when_the_question_has_arrived_and_the_computation_has_ended() {
    let flows = [flow(0, 1, 1_024), flow(1, 0, 2_048)];
    let mut schedule = Schedule::new();
    let question = schedule.add(sends(0, 0, 1_024, Time::from_us(2)), &[]).unwrap();
    let answer = schedule.add(sends(1, 1, 2_048, Time::from_us(7)), &[After::Arrival(question)]).unwrap();
    let last = Task { host: 0, earliest: Time::from_us(50), compute: Time::from_us(1), transfer: None };
    let last = schedule.add(last, &[After::Arrival(answer), After::Done(question)]).unwrap();
    for payload in [PayloadMode::Real, PayloadMode::Implied] {
        let settings = Settings { payload, ..Settings::default() };
        let results = run(&Topology::point_to_point(LINK), &flows, &schedule, settings);
        assert_complete(&results);
        // One packet with RETH and immediate data, and the link.
        let arrival = Time::from_us(2) + Time::from_ps((1_106 + 16 + 4) * 80) + Time::from_us(1);
        assert_eq!(results.flows[0].spec.start, Time::from_us(2));
        assert_eq!(results.flows[1].spec.start, arrival + Time::from_us(7));
        assert_eq!(
            results.task_ends[last as usize],
            Some(Time::from_us(51)),
            "not before its earliest begin"
        );
        assert_eq!(results.end, Time::from_us(51), "the run ends with the last task");
    }
}

/// If nothing waits for a flow's task, its frames equal those of the flow without a task.
#[test]
fn a_task_alone_changes_no_frame() {
    let (topology, flows) = (Topology::star(3, LINK).unwrap(), [flow(0, 1, 300_000), flow(2, 1, 200_000)]);
    let mut schedule = Schedule::new();
    schedule.add(sends(0, 0, 300_000, Time::ZERO), &[]).unwrap();
    schedule.add(sends(2, 1, 200_000, Time::ZERO), &[]).unwrap();
    let mut settings = Settings::default();
    settings.host.message_bytes = 40_000;
    let with = run(&topology, &flows, &schedule, settings.clone());
    let without = run(&topology, &flows, &Schedule::new(), settings);
    assert_complete(&with);
    assert_eq!(with.trace_hash, without.trace_hash);
}

/// A flow that waits for a failed one never starts, and the run ends at its limit.
#[test]
fn what_waits_for_a_failure_waits_until_the_end() {
    let topology =
        Topology::parse("host a b\nswitch s\nlink a s\nlink b s 100Gbps 1us drop=100%", LINK).unwrap();
    let flows = [flow(0, 1, 1_024), flow(1, 0, 1_024)];
    let mut schedule = Schedule::new();
    let first = schedule.add(sends(0, 0, 1_024, Time::ZERO), &[]).unwrap();
    schedule.add(sends(1, 1, 1_024, Time::ZERO), &[After::Arrival(first)]).unwrap();
    let mut settings = Settings { stop: Time::from_us(3_000), ..Settings::default() };
    (settings.host.timeout, settings.host.retry_cnt) = (4, 1);
    let results = run(&topology, &flows, &schedule, settings);
    assert!(matches!(results.flows[0].state, FlowState::Failed(_)), "{:?}", results.flows[0].state);
    assert_eq!(results.flows[1].state, FlowState::Waiting);
    assert_eq!(results.end, Time::from_us(3_000));
}

pub(crate) fn operate(
    topology: &Topology,
    what: &Collective<'_>,
    settings: Settings,
) -> (Operation, Results) {
    let hosts: Vec<u32> = (0..topology.hosts() as u32).collect();
    let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
    let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO).with_scale_up(topology.scale_up);
    let begins: Vec<_> = hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
    let ends = plan.collective(what, &hosts, &begins).unwrap();
    let operation = Operation {
        name: String::new(),
        iteration: 0,
        kind: what.kind,
        algorithm: Some(what.algorithm),
        bytes: what.bytes,
        hosts: hosts.into(),
        begins,
        ends,
    };
    let results = run(topology, &flows, &schedule, settings);
    assert_complete(&results);
    (operation, results)
}

/// Returns the time of a step without congestion. The frames of the chunk count on the first link, the
/// largest of them on each further link, and the delays on all.
fn step(chunk: u64, links: u64) -> Time {
    let packets = chunk.div_ceil(1_024);
    // The first packet has a RETH, the last one immediate data.
    let all = chunk + packets * 82 + 16 + 4;
    let largest = if packets == 1 { all } else { 1_106 + 16 };
    Time::from_ps((all + (links - 1) * largest) * 80 + links * LINK.delay.as_ps())
}

#[track_caller]
fn assert_ring_takes_its_time(hosts: usize, chunk: u64) {
    let what = Collective::of(OperationKind::AllReduce, OperationAlgorithm::Ring, chunk * hosts as u64, None);
    let (operation, results) = operate(&Topology::star(hosts, LINK).unwrap(), &what, Settings::default());
    let result = operation.result(&results.task_ends);
    let steps = 2 * (hosts as u64 - 1);
    // From the second step on, the acknowledgement of the previous step leaves first; that of the last step
    // ends the operation.
    let acknowledgements = (steps - 1) * 86 * 80 + 2 * (86 * 80 + LINK.delay.as_ps());
    let expected = Time::from_ps(steps * step(chunk, 2).as_ps() + acknowledgements);
    assert_eq!(result.time, Some(expected));
}

#[test]
fn a_ring_all_reduce_of_8_hosts_takes_its_closed_form() {
    assert_ring_takes_its_time(8, 1 << 20);
    assert_ring_takes_its_time(8, 32_768);
}

#[test]
fn a_ring_all_reduce_of_64_hosts_takes_its_closed_form() {
    assert_ring_takes_its_time(64, 100_000);
}

/// Eight million data packets.
#[test]
#[ignore = "takes a minute: cargo test -p roce-sim --release --test network -- --ignored 512"]
fn a_ring_all_reduce_of_512_hosts_takes_its_closed_form() {
    assert_ring_takes_its_time(512, 16_384);
}

/// Every algorithm completes with repeatable events, and with every byte checked.
#[test]
fn collectives_repeat_and_deliver_what_was_sent() {
    use OperationAlgorithm::{Direct, DoubleTree, HalvingDoubling, Pairwise, Ring, Tree};
    let topology = Topology::leaf_spine(2, 2, 4, LINK, LinkSpec { delay: Time::from_us(2), ..LINK }).unwrap();
    for algorithm in [Ring, Tree, DoubleTree, HalvingDoubling, Pairwise, Direct] {
        let chunk = matches!(algorithm, Ring | Tree | DoubleTree).then_some(10_000);
        let what = Collective::of(OperationKind::AllReduce, algorithm, 200_000, chunk);
        let real = Settings { payload: PayloadMode::Real, ..Settings::default() };
        let (operation, first) = operate(&topology, &what, Settings::default());
        let (_, again) = operate(&topology, &what, real);
        assert_eq!((first.trace_hash, &first.task_ends), (again.trace_hash, &again.task_ends));
        let sent: u64 = first.flows.iter().map(|flow| flow.spec.bytes).sum();
        assert_eq!(again.checked, (sent, 0), "{}", algorithm.name());
        let result = operation.result(&first.task_ends);
        // Each link carries at least the bus bandwidth, so that is below the link's rate without headers.
        assert!(result.bus_bps.unwrap() < 92.6e9, "{}: {result:?}", algorithm.name());
    }
}

/// Half of the data goes to few hosts, as to popular experts. Prints the table of
/// docs/reference/collectives.md.
#[test]
fn receivers_admit_an_uneven_all_to_all() {
    let topology = Topology::star(16, LINK).unwrap();
    let shares = uneven_shares(16, 1.0, 1).unwrap();
    let all = [None, Some(8), Some(4), Some(2), Some(1)].map(|clear_to_send| {
        let what = Collective::of(OperationKind::AllToAll, OperationAlgorithm::Direct, 2_000_000, None);
        let what = Collective { clear_to_send, shares: Some(&shares), ..what };
        let (_, results) = operate(&topology, &what, Settings::default());
        let (queue, time) = (longest_queue(&results), results.end.as_secs_f64() * 1e6);
        println!("{clear_to_send:?}: {time:.1} us, longest queue {queue} bytes");
        (queue, time)
    });
    let largest = shares.iter().copied().fold(0.0, f64::max);
    let ideal = 15.0 * largest * 2e6 * 1_106.0 / 1_024.0 * 8.0 / 100_000.0;
    println!("{ideal} us");
    for (pair, most) in all.windows(2).zip([8, 4, 2, 1]) {
        assert!(pair[1].0 < pair[0].0, "{all:?}: fewer at a time, shorter queues");
        // Each sender but the one that fills the link of the receiver can fill the queue with its part.
        assert!(pair[1].0 as f64 <= f64::from(most) * largest * 2e6 * 1.1, "{all:?}");
    }
    assert!(all[3].1 < 1.03 * ideal && all[4].1 < 1.3 * ideal, "{all:?}, {ideal}");
}

/// A ring whose pieces take turns on four queue pairs takes as long as on one, where paths do not differ.
#[test]
fn pieces_take_turns_on_queue_pairs() {
    let topology = Topology::star(8, LINK).unwrap();
    let [one, four] = [1, 4].map(|queue_pairs| {
        let what =
            Collective::of(OperationKind::AllReduce, OperationAlgorithm::Ring, 8_000_000, Some(100_000));
        let (_, results) = operate(&topology, &Collective { queue_pairs, ..what }, Settings::default());
        let bytes: u64 = results.flows.iter().map(|flow| flow.spec.bytes).sum();
        (results.flows.len(), bytes, results.end.as_secs_f64() * 1e6)
    });
    println!("{one:?} {four:?}");
    assert_eq!((one.0, four.0, one.1), (8, 32, four.1));
    assert!((four.2 / one.2 - 1.0).abs() < 0.05);
}
