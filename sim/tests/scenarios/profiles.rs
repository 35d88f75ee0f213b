//! Settings of some flows, hosts and ports, and files of other simulators.

use roce_sim::net::{Marking, MarkingRule, Results, Time};
use roce_sim::scenario::Scenario;

use super::{no_files, run, run_with, text};

/// The share of the first flow while both run.
fn share(results: &Results) -> f64 {
    let until = Time::from_us(1_500);
    let of = |flow: u32| -> f64 {
        let points = results.rates.iter().filter(|point| point.flow == flow);
        points.filter(|it| it.time > Time::from_us(100) && it.time <= until).map(|it| it.goodput_bps).sum()
    };
    of(0) / (of(0) + of(1))
}

#[test]
fn weights_and_strict_queues_divide_a_link() {
    let weighted = run("two-classes");
    assert_eq!(weighted.incomplete(), 0);
    assert!((share(&weighted) - 0.75).abs() < 0.01, "{}", share(&weighted));
    let even = run_with("two-classes", &[("switch.queue.0.weight", "1")]);
    assert!((share(&even) - 0.5).abs() < 0.01, "{}", share(&even));
    let text = text("two-classes").replace("weight = 3\n", "");
    let strict = Scenario::parse(&text, &no_files).unwrap();
    let mut simulation = strict.simulation().unwrap();
    simulation.run_to_end();
    let strict = simulation.results();
    assert_eq!(strict.incomplete(), 0);
    assert!(share(&strict) > 0.97, "{}", share(&strict));
}

const GROUPS: &str = r#"
name = "groups"
[topology]
kind = "star"
hosts = 5
[host]
message = "1MB"
[[group]]
hosts = ["h1..h2"]
host = { path_mtu = 4096, recovery = "selective-repeat" }
[[group]]
hosts = ["h2"]
host = { congestion = "dcqcn" }
[[flows]]
kind = "incast"
degree = 4
to = "h4"
bytes = "100KB"
[[flows]]
kind = "pair"
from = "h1"
to = "h0"
bytes = "100KB"
host = { depth = 7 }
[[switch.port]]
rate = "100Gbps"
marking = { step = "7KB" }
[[switch.port]]
switch = "s0"
priority = 2
marking = { off = true }
"#;

#[test]
fn groups_tables_and_ports_have_settings_of_their_own() {
    let scenario = Scenario::parse(GROUPS, &no_files).unwrap();
    let settings = &scenario.settings;
    assert_eq!(settings.flow_profiles, [0, 1, 2, 0, 3]);
    let [first, second, third] = &settings.profiles[..] else { panic!("{:?}", settings.profiles) };
    assert_eq!((first.path_mtu.bytes(), first.depth, first.message_bytes), (4_096, 2, 1_000_000));
    // The last group counts, and begins with [host].
    assert_eq!((second.path_mtu.bytes(), second.congestion != first.congestion), (1_024, true));
    assert_eq!((third.path_mtu.bytes(), third.depth, third.recovery), (4_096, 7, first.recovery));
    let step = Marking::Step { bytes: 7_000 };
    let rules = [
        MarkingRule { switch: None, rate_bps: Some(100_000_000_000), priority: 3, marking: step },
        MarkingRule { switch: Some(0), rate_bps: None, priority: 2, marking: Marking::Off },
    ];
    assert_eq!(settings.switch.marking_rules, rules);
    let mut simulation = scenario.simulation().unwrap();
    simulation.run_to_end();
    let results = simulation.results();
    assert_eq!(results.incomplete(), 0);
    let packets: Vec<u64> = results.flows.iter().map(|flow| flow.counts.packets).collect();
    assert_eq!((packets[0], packets[4]), (98, 25), "of 1,024 and of 4,096 bytes");
    assert!(results.flows[2].counts.marked > 0, "only flows with congestion control can be marked");
    assert_eq!(results.flows[0].counts.marked, 0);
}

#[test]
fn wrong_names_and_types_say_what_would_be_right() {
    let message = |from: &str, to: &str| {
        assert!(GROUPS.contains(from), "{from}");
        Scenario::parse(&GROUPS.replacen(from, to, 1), &no_files).unwrap_err().to_string()
    };
    assert_eq!(message("to = \"h4\"", "to = \"H44\""), "line 14: there is no host H44; near names are h4");
    assert_eq!(
        message("switch = \"s0\"", "switch = \"s1\""),
        "line 28: there is no switch s1; near names are s0"
    );
    assert_eq!(
        message("rate = \"100Gbps\"", "rate = \"25Gbps\""),
        "line 25: rate: no link of the topology has this rate"
    );
    assert_eq!(
        message("host = { depth = 7 }", "host = { depth = 0 }"),
        "line 19: depth: it must be 1 to 4096 WRITEs"
    );
    let error = message("host = { depth = 7 }", "host = 7");
    assert!(error.contains("expected a table for host, such as { congestion"), "{error}");
    let error = message("[host]\n", "[switch]\nwatchdog = 5\n[host]\n");
    assert!(error.contains("expected a table for watchdog, such as { after"), "{error}");
}

/// Topology and flows as HPCC's simulator has them: node 0 is the switch, and flows name nodes.
#[test]
fn the_files_of_hpcc_are_read_as_they_are() {
    let text = r#"
name = "hpcc"
stop = "3s"
[topology]
kind = "hpcc"
file = "topology.txt"
[measure]
interval = "1ms"
[[flows]]
kind = "trace"
file = "flow.txt"
"#;
    let load = |name: &str| match name {
        "topology.txt" => {
            Ok("4 1 3\n0\n1 0 100Gbps 1us 0\n2 0 100Gbps 1us 0\n3 0 100Gbps 1us 0\n".to_owned())
        }
        "flow.txt" => Ok("2\n1 3 3 100 20000 2\n3 2 3 100 1000 2.0005\n\nsrc dst\n".to_owned()),
        _ => Err(format!("no file {name}")),
    };
    let scenario = Scenario::parse(text, &load).unwrap();
    let ends: Vec<_> =
        scenario.flows.iter().map(|flow| (flow.source, flow.destination, flow.bytes)).collect();
    assert_eq!(ends, [(0, 2, 20_000), (2, 1, 1_000)]);
    assert_eq!(scenario.flows[1].start, Time::from_us(2_000_500));
    let mut simulation = scenario.simulation().unwrap();
    simulation.run_to_end();
    assert_eq!(simulation.results().incomplete(), 0);
    let switch = |name: &str| load(name).map(|text| text.replace("1 3 3 100", "0 3 3 100"));
    let error = Scenario::parse(text, &switch).unwrap_err().to_string();
    assert!(error.ends_with("flow.txt, line 2: there is no host 0"), "{error}");
}
