//! Topologies and connection matrices of htsim.

use roce_sim::net::{LinkSpec, Time};

use super::import::{File, pairs, parse, run, start};

const TOPOLOGY: &str = "\
# three tiers
Nodes 16
Tiers 3
Podsize 4

Tier 0
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 500

Tier 1
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000

Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 2000
Switch_Latency_ns 100
Bundle 1
";

const LEAF_SPINE: &str = "\
Nodes 8
Tiers 2
Podsize 8
Tier 0
Downlink_speed_Gbps 200
Radix_Down 4
Radix_Up 4
Queue_Up 100000
Downlink_Latency_ns 600
Oversubscribed 2
Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Bundle 2
Downlink_Latency_ns 1000
";

const CONNECTIONS: &str = "\
Nodes 8
Connections 8
Triggers 3
Failures 0
0->1 id 1 start 0 size 20000 send_done_trigger 1
1->2 id 2 trigger 1 size 3000 recv_done_trigger 2
3->2 id 3 start 1000000.0 size 4000 recv_done_trigger 2
2->4 id 4 trigger 2 size 5000
5->6 id 5 trigger 2 size 6000
6->7 id 6 start 0 size 1000 send_done_trigger 3
6->5 id 7 trigger 3 size 1000 send_done_trigger 3
6->4 id 8 trigger 3 size 1000
trigger id 1 oneshot
trigger id 2 barrier count 2
trigger id 3 multishot
";

const TABLES: &str = "name = \"x\"\n[topology]\nkind = \"htsim\"\nfile = \"x.topo\"\n[[workload]]\nkind = \
                      \"connections\"\nfile = \"x.cm\"\n";

fn files(topology: &str, connections: &str) -> Vec<File> {
    vec![("x.topo".to_owned(), topology.into()), ("x.cm".to_owned(), connections.into())]
}

pub(super) fn topology_sample() -> (String, Vec<File>) {
    let permutation = "[[flows]]\nkind = \"permutation\"\nbytes = 5000\n";
    let text = format!("name = \"x\"\n[topology]\nkind = \"htsim\"\nfile = \"x.topo\"\n{permutation}");
    (text, vec![("x.topo".to_owned(), TOPOLOGY.into())])
}

pub(super) fn connections_sample() -> (String, Vec<File>) {
    let star = "[topology]\nkind = \"star\"\nhosts = 8\n";
    let text = format!("name = \"x\"\n{star}[[workload]]\nkind = \"connections\"\nfile = \"x.cm\"\n");
    (text, vec![("x.cm".to_owned(), CONNECTIONS.into())])
}

#[test]
fn a_fat_tree_of_three_tiers() {
    let (text, files) = topology_sample();
    let scenario = parse(&text, &files).unwrap();
    let topology = &scenario.topology;
    assert_eq!((topology.hosts(), topology.nodes.len(), topology.links.len()), (16, 36, 48));
    let delay = |a: &str, b: &str| {
        let (a, b) = (topology.node_named(a).unwrap(), topology.node_named(b).unwrap());
        let link = topology.links.iter().find(|link| (link.a, link.b) == (a, b))?;
        assert_eq!(link.spec.rate_bps, 100_000_000_000);
        Some(link.spec.delay.as_ns())
    };
    // Half of the latency of each switch at the ends of a link.
    assert_eq!((delay("h3", "tor1"), delay("tor1", "agg1")), (Some(1_250), Some(1_250)));
    assert_eq!(
        (delay("agg1", "core1"), delay("agg1", "core3"), delay("agg1", "core0")),
        (Some(2_050), Some(2_050), None)
    );
    assert_eq!((delay("tor1", "agg2"), delay("agg7", "core3")), (None, Some(2_050)));
    assert_eq!((scenario.flows.len(), scenario.warnings.len()), (16, 0));
    run(&scenario);
}

#[test]
fn two_tiers_with_bundles() {
    let connections = "Nodes 8\nConnections 1\n0->7 start 5000 size 1000\n";
    let scenario = parse(TABLES, &files(LEAF_SPINE, connections)).unwrap();
    let topology = &scenario.topology;
    assert_eq!((topology.hosts(), topology.nodes.len(), topology.links.len()), (8, 8 + 2 + 2, 8 + 8));
    let host = LinkSpec { rate_bps: 200_000_000_000, delay: Time::from_ns(600) };
    assert_eq!(topology.links[0].spec, host);
    assert_eq!(
        scenario.warnings,
        [
            "in the topology: Queue_Up and Queue_Down: the ports of a switch share one buffer; set it with [switch] buffer"
        ]
    );
    assert_eq!(pairs(&scenario), [(0, 7, 1000)]);
    assert!(scenario.schedule.tasks().is_empty(), "a flow with a start needs no task");
    let results = run(&scenario);
    assert_eq!(results.flows[0].slowdown(), Some(1.0));
    assert_eq!(results.flows[0].spec.start, Time::from_ns(5));
}

#[test]
fn connections_start_when_their_triggers_fire() {
    let (text, files) = connections_sample();
    let scenario = parse(&text, &files).unwrap();
    let expected = [
        (0, 1, 20_000),
        (1, 2, 3_000),
        (2, 4, 5_000),
        // Host 2 tells host 5 that the barrier has fired.
        (2, 5, 1),
        (3, 2, 4_000),
        (5, 6, 6_000),
        (6, 4, 1_000),
        (6, 5, 1_000),
        (6, 7, 1_000),
    ];
    assert_eq!(pairs(&scenario), expected);
    assert_eq!(
        scenario.warnings,
        [
            "x.cm: trigger: a host cannot see the end of connections between others, so messages of 1 byte tell it; flows for \
          them: 1"
        ]
    );
    let results = run(&scenario);
    let start = |source, destination| start(&results, source, destination);
    let (first, second) = (start(0, 1), start(1, 2));
    assert_eq!((first, start(3, 2)), (Time::ZERO, Time::from_us(1)));
    // 20,000 bytes take 1.7 µs on the first link and 2 µs of delay.
    assert!(second > Time::from_ns(3_700) && second < Time::from_us(5), "{second}");
    let barrier = start(2, 4);
    assert!(barrier > second + Time::from_us(2) && barrier == start(2, 5), "{barrier}");
    assert!(start(5, 6) > barrier + Time::from_us(2), "{}", start(5, 6));
    let shots = [start(6, 7), start(6, 5), start(6, 4)];
    assert!(shots[0] == Time::ZERO && shots.is_sorted_by(|a, b| *a + Time::from_us(4) < *b), "{shots:?}");
}

#[test]
fn what_is_wrong_with_connections_names_file_and_line() {
    let (text, _) = connections_sample();
    let error = |from: &str, to: &str| {
        assert!(CONNECTIONS.contains(from), "{from}");
        parse(&text, &[("x.cm".to_owned(), CONNECTIONS.replacen(from, to, 1).into())]).unwrap_err()
    };
    for (from, to, reason) in [
        ("Nodes 8", "Nodes 9", "Nodes: the matrix has 9 nodes, and there are 8 hosts; use a larger topology"),
        ("Nodes 8\n", "", "line 4: the number of nodes is unknown; begin the file with Nodes"),
        ("Connections 8", "Connections 7", "the header has Connections 7, and the file has 8"),
        ("0->1 id", "0->8 id", "line 5: node: \"8\" is not a whole number from 0 to 7"),
        ("0->1 id", "1->1 id", "line 5: a node cannot send to itself"),
        (
            "start 0 size",
            "start -1 size",
            "line 5: start: \"-1\" is not a time in picoseconds from 0 to 1e18",
        ),
        ("start 0 size", "size", "line 5: a connection needs start or trigger"),
        (
            "size 20000 ",
            "",
            "line 5: a connection without size never ends, which is not simulated; add size BYTES",
        ),
        ("id 1 start", "id 0 start", "line 5: id: 0 is not allowed"),
        (
            "id 1 start",
            "addon start",
            "line 5: addon is not simulated; a connection has id, start, size, trigger, send_done_trigger, recv_done_trigger and prio",
        ),
        (
            "trigger 1 size",
            "start 0 trigger 1 size",
            "line 6: a connection cannot have both start and trigger",
        ),
        ("id 4 trigger 2", "id 4 trigger 4", "line 8: there is no trigger with id 4"),
        ("barrier count 2", "barrier", "line 14: a barrier needs a count above 0"),
        ("barrier count 2", "barrier count 3", "line 14: trigger 2: activations in the file: 2; needed: 3"),
        ("trigger id 3", "trigger id 2", "line 15: a trigger with id 2 exists above"),
        (
            "multishot",
            "threeshot",
            "line 15: \"threeshot\" is not one of id, oneshot, multishot, barrier and count",
        ),
        (
            "size 1000 send_done_trigger 3\n6->5",
            "size 1000\n6->5",
            "line 15: trigger 3: activations in the file: 1; connections that wait for them: 2",
        ),
        (
            "start 0 size 20000",
            "trigger 1 size 20000",
            "line 5: the connection never starts: it waits for itself through triggers",
        ),
        (
            "trigger id 1",
            "link id 1",
            "line 13: \"link\" is not one of Nodes, Connections, Triggers, Failures, SOURCE->DESTINATION and trigger",
        ),
    ] {
        assert_eq!(error(from, to), format!("line 5: x.cm, {reason}"), "{from} -> {to}");
    }
    let failures = error("Failures 0", "Failures 1");
    assert!(
        failures.starts_with("line 5: x.cm, line 4: failures of links are not read; write [[failure]]"),
        "{failures}"
    );
}

#[test]
fn priorities_and_the_order_of_several_shots_are_ignored_with_a_warning() {
    let (text, _) = connections_sample();
    let connections = CONNECTIONS.replacen("id 1 start 0", "id 1 prio 5 start 0", 1).replacen(
        "id 7 trigger 3",
        "id 7 start 0",
        1,
    );
    let scenario = parse(&text, &[("x.cm".to_owned(), connections.into())]).unwrap();
    let warnings = scenario.warnings.join("\n");
    assert!(warnings.starts_with("x.cm: prio: all connections have the priority"), "{warnings}");
    assert!(
        warnings.contains("x.cm: trigger 3: connections of a multishot trigger start in the order"),
        "{warnings}"
    );
    run(&scenario);
}

#[test]
fn what_is_wrong_with_a_topology_names_its_line() {
    let (text, _) = topology_sample();
    let error = |from: &str, to: &str| {
        assert!(TOPOLOGY.contains(from), "{from}");
        parse(&text, &[("x.topo".to_owned(), TOPOLOGY.replacen(from, to, 1).into())]).unwrap_err()
    };
    for (from, to, reason) in [
        ("Nodes 16\n", "", "line 1: Nodes is missing or 0"),
        ("Nodes 16", "Nodes 17", "line 1: Nodes over Podsize: 17 is not a multiple of 4"),
        ("Nodes 16", "Nodes 8", "line 19: Radix_Down of tier 2 is 4, but the other numbers need 2"),
        ("Tiers 3", "Tiers 1", "line 1: Tiers must be 2 or 3; use [topology] kind = \"star\" for one switch"),
        ("Tiers 3", "Tiers 4", "line 3: Tiers: \"4\" is not a whole number from 0 to 3"),
        ("Tier 1", "Tier 0", "line 13: tier 0 is described above"),
        ("Tier 2", "Tier 3", "line 19: Tier: \"3\" is not a whole number from 0 to 2"),
        (
            "Radix_Down 2",
            "Radix_Dawn 2",
            "line 8: \"Radix_Dawn\" is not one of Downlink_speed_Gbps, Radix_Up, Radix_Down, Queue_Up, Queue_Down, Oversubscribed, Bundle, Switch_Latency_ns and Downlink_Latency_ns",
        ),
        ("Radix_Down 2\n", "", "line 6: Tier 0 needs Radix_Down above 0"),
        ("Radix_Down 2\n", "Radix_Down 2\nRadix_Down 2\n", "line 9: Radix_Down has a value above"),
        (
            "Downlink_speed_Gbps 100",
            "Downlink_speed_Gbps 50",
            "line 6: Oversubscribed is 1, but ports and speeds of the links down and up give 0.500",
        ),
        ("Bundle 1", "Bundle 2", "line 19: Radix_Down of tier 2 is 4, but the other numbers need 8"),
        ("Podsize 4", "Podsize 3", "line 1: Nodes over Podsize: 16 is not a multiple of 3"),
        ("Radix_Down 4", "Radix_Down 4 5", "line 21: \"5\" is not expected here"),
    ] {
        assert_eq!(error(from, to), format!("line 2: in the topology, {reason}"), "{from} -> {to}");
    }
}
