//! Properties of tables of flows: operations, jitter, periods, parts of the hosts.

use roce_scenario::Scenario;
use roce_sim::net::{FlowOperation, Time};

use super::{assert_lossless, no_files, run_with, text};

const TEXT: &str = r#"
name = "x"
seed = 3
[topology]
kind = "star"
hosts = 8
[[flows]]
name = "a"
kind = "all-to-all"
bytes = "1KB"
hosts = ["h5", "h1..h2"]
operation = "send"
jitter = "10us"
start = "1us"
[[flows]]
kind = "incast"
degree = 2
to = "h7"
bytes = 100
hosts = ["h4..h6"]
operation = "read"
period = "5us"
count = 3
[[flows]]
kind = "incast"
degree = 7
shuffle = 4
bytes = 100
jitter = "10us"
seed = 9
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, &no_files).map_err(|error| error.to_string())
}

#[test]
fn flows_among_some_hosts_with_operations_and_times() {
    let scenario = parse(TEXT).unwrap();
    let ends: Vec<_> = scenario.flows.iter().map(|flow| (flow.source, flow.destination)).collect();
    assert_eq!(ends[..6], [(5, 1), (5, 2), (1, 2), (1, 5), (2, 5), (2, 1)]);
    assert_eq!(ends[6..12], [(4, 7), (5, 7), (4, 7), (5, 7), (4, 7), (5, 7)]);
    let starts: Vec<_> = scenario.flows.iter().map(|flow| flow.start).collect();
    let us = Time::from_us;
    assert!(starts[..6].iter().all(|start| (us(1)..us(11)).contains(start)), "{starts:?}");
    assert!((1..6).all(|flow| starts[flow] != starts[0]));
    assert_eq!(starts[6..12], [us(0), us(0), us(5), us(5), us(10), us(10)]);
    let receiver = ends[12].1;
    assert!(ends[12..].iter().all(|(source, destination)| *destination == receiver && *source != receiver));
    let operations: Vec<_> = (0..13)
        .map(|flow| match scenario.settings.flow_profiles[flow] {
            0 => scenario.settings.host.operation,
            profile => scenario.settings.profiles[usize::from(profile) - 1].operation,
        })
        .collect();
    assert_eq!(operations[..6], [FlowOperation::Send; 6]);
    assert_eq!(operations[6..12], [FlowOperation::Read; 6]);
    assert_eq!(operations[12], FlowOperation::Write);
    let other = parse(&TEXT.replace("seed = 9", "seed = 10")).unwrap();
    assert_eq!(other.flows[..12], scenario.flows[..12]);
    assert_ne!(other.flows[12].start, scenario.flows[12].start);
}

#[test]
fn what_flows_cannot_be() {
    let message = |from: &str, to: &str| {
        assert!(TEXT.contains(from), "{from}");
        parse(&TEXT.replacen(from, to, 1)).unwrap_err()
    };
    let error = message("\"send\"", "\"put\"");
    assert!(
        error.starts_with("line 12: unknown variant `put`, expected one of `write`, `send`, `read`"),
        "{error}"
    );
    assert_eq!(message("count = 3\n", ""), "line 15: a repeated incast needs `period` and `count`");
    assert_eq!(message("to = \"h7\"\n", ""), "line 15: flows of the kind incast need `to`");
    assert_eq!(
        message("degree = 2", "degree = 4"),
        "line 15: an incast of 4 needs at least 4 hosts, there are 3"
    );
    assert_eq!(
        message("[\"h4..h6\"]", "[\"x*\"]"),
        "line 15: hosts: no host has a name like x*; the 8 hosts are h0, h1, h2 and so on, the last one is h7"
    );
    assert_eq!(message("[\"h4..h6\"]", "[]"), "line 15: hosts: the list is empty");
    assert_eq!(
        message(
            "kind = \"all-to-all\"\nbytes = \"1KB\"",
            "kind = \"pair\"\nbytes = \"1KB\"\nfrom = \"h1\"\nto = \"h2\""
        ),
        "line 7: flows of the kind pair have no `hosts`"
    );
    assert_eq!(
        message("jitter = \"10us\"\nseed = 9\n", "seed = 9\n"),
        "line 24: flows of the kind incast have no `seed`"
    );
    let after = message("operation = \"read\"", "operation = \"read\"\nafter = [\"a\"]");
    assert!(after.starts_with("line 15: operation: the sender of a READ does not learn"), "{after}");
    let awaited = message("degree = 7", "degree = 7\nafter = [\"b\"]").to_string();
    assert_eq!(awaited, "line 24: after: no table has the name b");
}

/// Checks the time of a stripe, and the longest queue of the link to the client.
#[test]
fn a_stripe_takes_as_long_as_the_link_to_its_client() {
    // The first request and the last response cross two links; 12 responses of 63 packets cross the last one.
    let line = 12.0 * (64_000.0 + 63.0 * 82.0 + 8.0) * 80e-6 + (98.0 + 1_106.0 + 98.0) * 80e-6 + 4.0;
    let outcome = |jitter: &str| {
        let results = run_with("storage-reads", &[("flows.0.jitter", jitter)]);
        assert_lossless(&results);
        let stripes = results.flows[..240].chunks(12).map(|stripe| {
            let end = stripe.iter().map(|flow| flow.spec.start + flow.completion_time.unwrap()).max();
            end.unwrap().as_secs_f64() * 1e6
        });
        let worst = stripes.zip(0..).map(|(end, round)| end - 200.0 * f64::from(round)).fold(0.0, f64::max);
        (worst, results.port("s0", "h24").unwrap().stats.queue_most)
    };
    let (together, spread) = (outcome("0us"), outcome("100us"));
    println!(
        "line {line:.2} us; together {together:?}, over 20 us {:?}, over 100 us {spread:?}",
        outcome("20us")
    );
    assert!((line..1.1 * line).contains(&together.0), "{} us beside {line}", together.0);
    assert!(spread.1 < together.1 / 2, "{} bytes beside {}", spread.1, together.1);
}

#[test]
fn the_estimated_number_of_packets_is_near_that_of_a_run() {
    let estimate = |name: &str| Scenario::parse(&text(name), &no_files).unwrap().data_packets();
    // Every flow is complete, and nothing is lost.
    let results = run_with("incast", &[]);
    assert_eq!((results.incomplete(), estimate("incast")), (0, results.data_packets));
    // Flows of 1 GB outlast the 60 ms. The estimate ignores the headers, which take 7 % of the link.
    let (estimate, sent) = (estimate("two-to-one"), run_with("two-to-one", &[]).data_packets);
    assert!((sent..sent * 5 / 4).contains(&estimate), "{estimate} and {sent}");
}
