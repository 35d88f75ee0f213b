//! Settings of some flows, hosts and ports, and files of other simulators.

use roce_scenario::Scenario;
use roce_sim::net::{
    Application, Balance, Class, Headroom, Marking, NodeKind, PortChanges, PortRule, Results, SwitchSettings,
    Threshold, Time, Trimming, Watchdog,
};

use super::{no_files, results_of, run, run_with, text};

/// A group gives its hosts an application, settings of their flows, or both; the last group with one counts.
#[test]
fn groups_have_applications_of_their_own() {
    let text = r#"
name = "applications"
[topology]
kind = "star"
hosts = 4
[host]
application = "polling"
wake_up_time = "5us"
[[group]]
hosts = ["h1..h3"]
host = { depth = 7 }
application = "events:2us"
[[group]]
hosts = ["h3"]
application = "immediate"
[[flows]]
kind = "pair"
from = "h3"
to = "h1"
bytes = "100KB"
"#;
    let scenario = Scenario::parse(text, &no_files).unwrap();
    let settings = &scenario.settings;
    let events = Application::Events { spin: Time::from_us(2) };
    let expected = [Application::Polling, events, events, Application::Immediate];
    assert_eq!((&settings.applications[..], settings.host.wake_up_time), (&expected[..], Time::from_us(5)));
    assert_eq!(settings.profiles[0].depth, 7, "the second group changes no flow");
    let results = results_of(&scenario);
    let hosts: Vec<&str> = results.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!((results.incomplete(), hosts), (0, vec!["h0", "h1", "h2"]));
    assert!(results.hosts[1].waits.count() > 90 && results.hosts[2].waits.count() == 0);
}

/// Regression: parameters of notifications were accepted in a group or a table of flows, and had no effect.
#[test]
fn parameters_of_notifications_belong_to_all_flows_of_a_host() {
    for (group, flows) in [("min_time_between_cnps=50", ""), ("", "np_cnp_dscp=10")] {
        let congestion = |parameter: &str| match parameter {
            "" => "dcqcn".to_owned(),
            parameter => format!("dcqcn:rpg_ai_rate=10,{parameter}"),
        };
        let text = format!(
            r#"
name = "notifications"
[topology]
kind = "star"
hosts = 2
[[group]]
hosts = ["h0"]
host = {{ congestion = "{}" }}
[[flows]]
kind = "pair"
from = "h0"
to = "h1"
bytes = "100KB"
host = {{ congestion = "{}" }}
"#,
            congestion(group),
            congestion(flows)
        );
        let error = Scenario::parse(&text, &no_files).unwrap_err().to_string();
        assert!(error.contains("set it in [host]") && error.contains("line"), "{error}");
    }
}

/// Returns the share of the first flow while both run.
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
    let strict = results_of(&strict);
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
    let marks = |priority: usize, marking: Marking| {
        let mut changes = PortChanges::default();
        changes.marking[priority] = Some(marking);
        changes
    };
    let [fast, at_switch] = &settings.switch.port_rules[..] else {
        panic!("{:?}", settings.switch.port_rules)
    };
    let rate_bps = Some(100_000_000_000);
    let changes = marks(3, Marking::Step { bytes: 7_000 });
    assert_eq!(*fast, PortRule { rate_bps, changes, ..PortRule::default() });
    let changes = marks(2, Marking::Off);
    assert_eq!(*at_switch, PortRule { switches: Some(vec![0]), changes, ..PortRule::default() });
    let results = results_of(&scenario);
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

/// Topology and flows in the format of HPCC's simulator: node 0 is the switch, and flows name nodes.
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
    assert_eq!(results_of(&scenario).incomplete(), 0);
    let switch = |name: &str| load(name).map(|text| text.replace("1 3 3 100", "0 3 3 100"));
    let error = Scenario::parse(text, &switch).unwrap_err().to_string();
    assert!(error.contains("flow.txt, line 2: there is no host 0; near names are "), "{error}");
}

/// Parses a leaf-spine with one table of `[[switch.port]]`, and returns the result.
fn with_port(keys: &str) -> Result<Scenario, String> {
    let text = format!(
        "name = \"ports\"\n[topology]\nkind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts = 2\nfabric_rate = \"400Gbps\"\n\
         [switch]\npfc = [3]\n[[switch.port]]\n{keys}\n[[flows]]\nkind = \"pair\"\nfrom = \"h0\"\nto = \"h2\"\nbytes = 1\n"
    );
    Scenario::parse(&text, &no_files).map_err(|error| error.to_string())
}

#[test]
fn a_port_has_every_setting_that_makes_sense_there() {
    let keys = "switch = \"leaf1\"\nto = \"spine*\"\npriority = 5\nmarking = { step = \"7KB\" }\nweight = 3\nreserve = \"1KB\"\n\
                headroom = \"2KB\"\nthreshold = { bytes = \"3KB\" }\nxon_offset = \"1KB\"\nlossy_alpha = 0.5\npfc = []\n\
                watchdog = { after = \"1ms\", restore = \"2ms\" }\ntrimming = { above = \"9KB\" }";
    let scenario = with_port(keys).unwrap();
    let (topology, switch) = (&scenario.topology, &scenario.settings.switch);
    let node = |name: &str| topology.node_named(name).unwrap();
    let number = |name: &str| {
        let switches = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch);
        (0..).zip(switches).find(|(_, node)| node.name == name).unwrap().0
    };
    let usual = SwitchSettings { port_rules: Vec::new(), ..switch.clone() };
    let mut expected = SwitchSettings {
        reserve_bytes: 1_000,
        headroom: Headroom::Bytes(2_000),
        threshold: Threshold::Static { bytes: 3_000 },
        xon_offset_bytes: 1_000,
        lossy_alpha: 0.5,
        pfc: 0,
        watchdog: Some(Watchdog { after: Time::from_us(1_000), restore: Time::from_us(2_000) }),
        trimming: Some(Trimming { above_bytes: Some(9_000), ..Trimming::default() }),
        ..usual.clone()
    };
    (expected.marking[5], expected.scheduling[5]) = (Marking::Step { bytes: 7_000 }, Class::Weighted(3));
    let of_port = |from: &str, to: &str| switch.of_port(number(from), node(to), 400_000_000_000);
    assert_eq!(of_port("leaf1", "spine0"), expected);
    assert_eq!(of_port("leaf1", "spine1"), expected);
    assert_eq!(of_port("leaf0", "spine0"), usual, "another switch");
    assert_eq!(of_port("leaf1", "h2"), usual, "another port");

    let off =
        with_port("to = \"h1\"\nwatchdog = { off = true }\ntrimming = { off = true }\nweight = \"strict\"")
            .unwrap();
    let changes = &off.settings.switch.port_rules[0].changes;
    assert_eq!(
        (changes.watchdog, changes.trimming, changes.scheduling[3]),
        (Some(None), Some(None), Some(Class::Strict))
    );
    let whole =
        with_port("switch = \"spine*\"\nbuffer = \"9MB\"\nbalance = \"flowlet\"\nflowlet_gap = \"7us\"")
            .unwrap();
    let spine = whole.settings.switch.of_switch(number("spine1"));
    assert_eq!((spine.buffer_bytes, spine.balance), (9_000_000, Balance::Flowlet { gap: Time::from_us(7) }));
    assert_eq!(whole.settings.switch.of_switch(number("leaf0")), usual);
}

#[test]
fn what_a_port_cannot_have_is_said() {
    let alone = "a switch applies this setting before a frame has a port, so it cannot belong to one port";
    let shared = "all ports of a switch share this setting, so it cannot belong to one port";
    for (keys, expected) in [
        ("switch = \"leef1\"\npfc = []", "there is no switch leef1; near names are leaf1"),
        ("to = \"spin1\"\npfc = []", "there is no host or switch spin1; near names are spine1"),
        ("switch = \"tor*\"\npfc = []", "switch: no switch has a name like tor*"),
        ("to = \"tor*\"\npfc = []", "to: no host or switch has a name like tor*"),
        ("switch = \"leaf0\"\nto = \"leaf1\"\npfc = []", "no port of a switch matches switch, to and rate"),
        ("switch = \"leaf0\"", "a [[switch.port]] needs a setting besides switch, to, rate and priority"),
        ("priority = 8\nweight = 1", "priority 8 is not 0 to 7"),
        ("priority = 4\npfc = []", "priority: only marking and weight can be set for a priority"),
        ("weight = 0", "weight: it must be 1 to 65535"),
        ("lossy_alpha = -1.0", "lossy_alpha: it must be a number from 0 up"),
        ("pfc = [9]", "pfc: priority 9 is not 0 to 7"),
        ("watchdog = { after = \"1ms\" }", "watchdog needs after and restore, or off = true"),
        ("trimming = { dscp = 26 }", "trimming: the priority of its dscp is lossless"),
        ("flowlet_gap = \"1us\"", "flowlet_gap: balance is not \"flowlet\""),
    ] {
        assert_eq!(with_port(keys).unwrap_err(), format!("line 10: {expected}"), "{keys}");
    }
    for place in ["to = \"h1\"", "rate = \"400Gbps\""] {
        let wrong = |keys: &str| with_port(&format!("{place}\n{keys}")).unwrap_err();
        assert_eq!(wrong("buffer = \"9MB\""), format!("line 10: buffer: {shared}"));
        assert_eq!(wrong("balance = \"spray\""), format!("line 10: balance: {alone}"));
    }
    assert!(with_port("pause = \"instant\"").unwrap_err().contains("unknown field `pause`"));
}
