//! Scale-up networks, and the operations that use them.

use roce_sim::net::{
    After, Collective, OperationAlgorithm, OperationKind, Pipeline, Plan, ScaleUp, Schedule, Settings,
    Simulation, Task, Time, Topology, Transfer, uneven_shares,
};

use super::tasks::operate;
use super::{LINK, assert_complete};

/// 800 Gb/s: 10 ns for a kilobyte.
const SCALE_UP: ScaleUp = ScaleUp { hosts: 4, rate_bps: 800_000_000_000, delay: Time::from_us(1) };

/// Servers of four hosts, each host at a switch of its own.
fn servers(count: usize, spines: usize) -> Topology {
    let mut topology = Topology::rail_optimised(count, 4, spines, LINK, LINK).unwrap();
    topology.scale_up = Some(SCALE_UP);
    topology
}

fn task(host: u32, transfer: Option<(u32, u64)>) -> Task {
    let transfer = transfer.map(|(to, bytes)| Transfer::ScaleUp { to, bytes });
    Task { host, earliest: Time::ZERO, compute: Time::ZERO, transfer }
}

/// Hosts 0 and 3 send a megabyte each to host 1 at the same time, and host 0 then one to host 2.
#[test]
fn transfers_leave_and_arrive_one_after_the_other() {
    let mut schedule = Schedule::new();
    let sent = [(0, 1), (0, 2), (3, 1)]
        .map(|(from, to)| (schedule.add(task(from, Some((to, 1_000_000))), &[]).unwrap(), to));
    let arrived = sent.map(|(task_id, to)| schedule.add(task(to, None), &[After::Arrival(task_id)]).unwrap());
    let mut simulation =
        Simulation::with_schedule(&servers(1, 0), &[], &schedule, Settings::default()).unwrap();
    simulation.run_to_end();
    let results = simulation.results();
    let at = |task: u32| results.task_ends[task as usize].unwrap();
    assert_eq!(sent.map(|(task, _)| at(task)), [10, 20, 10].map(Time::from_us), "they have left");
    let mut at_one = [at(arrived[0]), at(arrived[2])];
    at_one.sort();
    assert_eq!(at_one, [11, 21].map(Time::from_us), "either is first");
    assert_eq!(at(arrived[1]), Time::from_us(21));
    assert_eq!(results.end, Time::from_us(21));
}

#[test]
fn only_hosts_of_a_domain_are_joined() {
    let error = |from, to| {
        let mut schedule = Schedule::new();
        schedule.add(task(from, Some((to, 1))), &[]).unwrap();
        schedule.check(&[], 8, Some(SCALE_UP)).err().map(|error| error.to_string())
    };
    assert_eq!(error(0, 3), None);
    for (from, to) in [(0, 4), (5, 5), (7, 8)] {
        let expected = format!("task 0: no scale-up network joins host {from} to host {to}");
        assert_eq!(error(from, to), Some(expected));
    }
    let refused = |scale_up| {
        let topology = Topology { scale_up: Some(scale_up), ..servers(1, 0) };
        topology.check().unwrap_err().to_string()
    };
    assert_eq!(refused(ScaleUp { hosts: 1, ..SCALE_UP }), "scale_up: a domain has at least 2 hosts");
    assert_eq!(refused(ScaleUp { rate_bps: 0, ..SCALE_UP }), "scale_up: the rate is above 0");
    assert_eq!(refused(ScaleUp { delay: Time::ZERO, ..SCALE_UP }), "scale_up: the delay is above 0");
}

/// Rails that are not linked to each other show that nothing crosses them.
#[test]
fn hierarchical_operations_stay_on_their_rails() {
    use OperationKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
    let topology = servers(4, 0);
    let bytes = 16_000_000;
    let shares = uneven_shares(16, 1.0, 3).unwrap();
    let sent = |kind, shares: Option<&[f64]>, chunk| {
        let what = Collective::of(kind, OperationAlgorithm::Hierarchical, bytes, chunk);
        let (operation, results) = operate(&topology, &Collective { shares, ..what }, Settings::default());
        assert_complete(&results);
        let sent: u64 = results.flows.iter().map(|flow| flow.spec.bytes).sum();
        (operation.result(&results.task_ends).time.unwrap().as_secs_f64() * 1e6, sent)
    };
    // On the links of hosts, with headers and no acknowledgements.
    let link = |bytes: f64| bytes * 1_106.0 / 1_024.0 * 8.0 / 100_000.0;
    let scale_up = |bytes: f64| bytes * 8.0 / 800_000.0 + 1.0;
    let (b, close) = (bytes as f64, |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.02);

    // A sixteenth of the buffer for each round and host.
    let (reduce, all) = (sent(ReduceScatter, None, None), sent(AllReduce, None, None));
    let (gather, chunked) = (sent(AllGather, None, None), sent(AllReduce, None, Some(50_000)));
    println!("{reduce:?} {gather:?} {all:?} {chunked:?}");
    assert_eq!([reduce.1, gather.1, all.1, chunked.1], [3, 3, 6, 6].map(|rounds| rounds * bytes));
    let ring = |rounds: f64| rounds * (link(b / 16.0) + 2.0);
    assert!(close(reduce.0, scale_up(0.75 * b) + ring(3.0)), "{reduce:?}");
    assert!(close(gather.0, ring(3.0) + scale_up(0.75 * b)), "{gather:?}");
    assert!(close(all.0, 2.0 * scale_up(0.75 * b) + ring(6.0)), "{all:?}");
    // Pieces overlap the networks. The ring is the slower one.
    assert!(chunked.0 < 0.8 * all.0 && chunked.0 > ring(6.0), "{chunked:?}");

    // Three of four servers are across the network; what arrives for the first of them leaves while the
    // rest is moved within the server.
    let (even, uneven) = (sent(AllToAll, None, None), sent(AllToAll, Some(&shares), None));
    println!("{even:?} {uneven:?}");
    assert!((even.1 as f64 / (16.0 * b * 0.75) - 1.0).abs() < 1e-5, "{even:?}");
    assert!(close(even.0, scale_up(b * 3.0 / 16.0) + link(0.75 * b) + 2.0), "{even:?}");
    let largest = shares.iter().copied().fold(0.0, f64::max);
    assert!(uneven.0 > link(12.0 * largest * b), "{uneven:?}");
    let expected: f64 = shares.iter().map(|share| 12.0 * share * b).sum();
    assert!((uneven.1 as f64 / expected - 1.0).abs() < 1e-4, "{uneven:?} {expected}");
}

/// Two stages of four hosts, on a server each. One micro-batch goes there and back; then two pipelines
/// add their gradients along the rails.
#[test]
fn stages_of_several_hosts_add_each_half_of_a_layer() {
    let topology = servers(4, 0);
    let hosts: Vec<u32> = (0..16).collect();
    let pipeline = Pipeline {
        stages: 2,
        tensor: 4,
        layers: 3,
        microbatches: 1,
        forward: Time::from_us(60),
        backward: Time::from_us(120),
        bytes: 4_000_000,
        gradients: 8_000_000,
        algorithm: OperationAlgorithm::Ring,
        chunk: None,
        steps: 1,
    };
    let run = |what: &Pipeline| {
        let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
        let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO).with_scale_up(topology.scale_up);
        let begins: Vec<_> = hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
        let operations = plan.pipeline("p", what, &hosts, &begins).unwrap();
        let mut simulation =
            Simulation::with_schedule(&topology, &flows, &schedule, Settings::default()).unwrap();
        simulation.run_to_end();
        let results = simulation.results();
        assert_complete(&results);
        let times =
            operations.iter().map(|it| it.result(&results.task_ends).time.unwrap().as_secs_f64() * 1e6);
        times.collect::<Vec<_>>()
    };
    let link = |bytes: f64| bytes * 1_106.0 / 1_024.0 * 8.0 / 100_000.0 + 2.0;
    // Three quarters of the bytes leave a host for each half of an all-reduce.
    let sum = 2.0 * (0.75 * 4e6 * 8.0 / 800_000.0 + 1.0);
    let there_and_back = 2.0 * (60.0 + 120.0 + 12.0 * sum) + 2.0 * link(1e6);
    let found = run(&Pipeline { gradients: 0, ..pipeline });
    assert!((found[0] / there_and_back - 1.0).abs() < 0.01, "{found:?} {there_and_back}");
    let found = run(&pipeline);
    println!("{found:?}");
    assert_eq!(found.len(), 1 + 8);
    // A ring of two hosts: two rounds with half of the bytes. That of the second stage shares its link
    // with what goes back to the first one, so each waits for the other.
    let (ring, other) = (2.0 * link(4e6), link(1e6) - 2.0);
    let of_stages = [(&found[1..5], ring), (&found[5..], ring + other)];
    for (found, expected) in of_stages {
        assert!(found.iter().all(|sum| (sum / expected - 1.0).abs() < 0.01), "{found:?} {expected}");
    }
    assert!((found[0] / (there_and_back + other + ring) - 1.0).abs() < 0.01, "{found:?}");
}

#[test]
fn hierarchical_operations_need_equal_domains() {
    let refused = |topology: &Topology, hosts: &[u32]| {
        let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
        let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO).with_scale_up(topology.scale_up);
        let begins: Vec<_> = hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
        let what =
            Collective::of(OperationKind::AllReduce, OperationAlgorithm::Hierarchical, 1_000_000, None);
        plan.collective(&what, hosts, &begins).err().map(|error| error.to_string())
    };
    let topology = servers(3, 0);
    assert_eq!(refused(&topology, &[0, 1, 4, 5]), None);
    assert_eq!(refused(&topology, &[5, 1, 4, 0]), None, "in any order");
    let reason = "hierarchical needs the same places of each scale-up domain";
    for hosts in [&[0, 1, 4, 6][..], &[0, 1, 2, 4, 5], &[0, 5]] {
        assert_eq!(refused(&topology, hosts).as_deref(), Some(reason), "{hosts:?}");
    }
    let without = Topology { scale_up: None, ..topology };
    assert_eq!(refused(&without, &[0, 1]).as_deref(), Some("hierarchical needs a scale-up network"));
}
