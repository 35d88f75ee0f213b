//! Tests that the shipped scenarios do what their descriptions say.

mod claims;
mod collectives;
mod embedding;
mod import;
mod import_chakra;
mod import_goal;
mod import_htsim;
mod import_simai;
mod own;
mod profiles;
mod refused;
mod threads;
mod workloads;

use roce_scenario::Scenario;
use roce_sim::net::{DropReason, Results, Time};
use roce_transport::{Recovery, SelectiveRepeat};

fn no_files(name: &str) -> Result<String, String> {
    Err(format!("{name} is not shipped"))
}

fn text(name: &str) -> String {
    let path = format!("{}/shipped/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a scenario to its end.
#[track_caller]
fn results_of(scenario: &Scenario) -> Results {
    let mut simulation = scenario.simulation().unwrap();
    simulation.run_to_end();
    simulation.results()
}

#[track_caller]
fn run_with(name: &str, replaced: &[(&str, &str)]) -> Results {
    let replaced: Vec<_> = replaced.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let scenario = Scenario::parse_with(&text(name), &replaced, &no_files);
    let scenario = scenario.unwrap_or_else(|error| panic!("{name}: {error}"));
    let results = results_of(&scenario);
    assert!(results.deadlocks.is_empty() || name == "pfc-deadlock", "{name}: {:?}", results.deadlocks);
    results
}

fn run(name: &str) -> Results {
    run_with(name, &[])
}

fn assert_lossless(results: &Results) {
    assert_eq!((results.incomplete(), results.sum(|port| port.drops())), (0, 0));
}

#[test]
fn all_of_them_can_be_read() {
    let folder = format!("{}/shipped", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let scenario = Scenario::parse(&text, &no_files);
        let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!scenario.expectation.is_empty() && !scenario.description.is_empty(), "{}", path.display());
        let small = [("topology.k".to_owned(), "8".to_owned())];
        let is_large = scenario.topology.hosts() > 2_000;
        let built =
            if is_large { Scenario::parse_with(&text, &small, &no_files).unwrap() } else { scenario.clone() };
        built.simulation().unwrap();
        count += 1;
        for (name, value) in
            scenario.sweeps.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one)))
        {
            let set = [(name.clone(), value.clone())];
            let swept = Scenario::parse_with(&text, &set, &no_files);
            assert!(swept.is_ok(), "{}, {name} = {value}: {swept:?}", path.display());
        }
    }
    assert!(count >= 16, "{count}");
}

#[test]
fn no_other_shipped_scenario_has_a_deadlock() {
    let folder = format!("{}/shipped", env!("CARGO_MANIFEST_DIR"));
    let mut paused = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        // Other tests run the long scenarios in parts and check them as well.
        if ["pfc-deadlock", "permutation-k8", "clos-1000", "permutation-8192", "mixture-of-experts"]
            .contains(&name)
        {
            continue;
        }
        paused += run(name).sum(|port| port.pauses_sent);
    }
    assert!(paused > 1_000, "{paused}");
}

/// Runs a part of the bytes of each flow; the benchmark of networks runs all of them.
#[test]
fn large_networks_lose_nothing() {
    for name in ["permutation-k8", "clos-1000"] {
        let results = run_with(name, &[("flows.0.bytes", "100KB")]);
        assert_lossless(&results);
        assert!(results.flows.len() >= 128, "{name}: {}", results.flows.len());
    }
}

/// Returns the values that a shipped scenario proposes for a setting.
fn proposed(scenario: &str, setting: &str) -> Vec<String> {
    let scenario = Scenario::parse(&text(scenario), &no_files).unwrap();
    let sweep = scenario.sweeps.into_iter().find(|(name, _)| name == setting);
    sweep.unwrap_or_else(|| panic!("{} does not propose {setting}", scenario.name)).1
}

#[test]
fn two_to_one_converges() {
    let fair = 40e9 * 1_024.0 / 1_106.0 / 2.0;
    let mut apart = Vec::new();
    for seed in proposed("two-to-one", "seed") {
        let results = run_with("two-to-one", &[("seed", &seed)]);
        assert_eq!(results.sum(|port| port.drops()), 0);
        let rates = [0, 1].map(|flow| results.goodput_after(flow, Time::from_us(30_000)).unwrap());
        println!("seed {seed}: {:.2} and {:.2} Gb/s of {:.2}", rates[0] / 1e9, rates[1] / 1e9, fair / 1e9);
        apart.push(rates.map(|rate| (rate / fair - 1.0).abs()).into_iter().fold(0.0, f64::max));
        let alone = results.rates.iter().filter(|p| p.flow == 0 && p.time < Time::from_us(9_000));
        assert!(
            alone.filter(|p| p.goodput_bps > 1.9 * fair).count() > 80,
            "it has the line for itself at first"
        );
    }
    apart.sort_unstable_by(f64::total_cmp);
    assert!(apart.len() >= 5 && apart[apart.len() / 2] < 0.05, "{apart:?}");
}

/// The scenario of `roce bridge` runs at a two-hundredth of the speed; `tests/bridge` also tests it there.
#[test]
fn two_to_one_converges_at_the_speed_of_a_bridge_too() {
    let results = run("two-to-one-bridge");
    assert_eq!(results.sum(|port| port.drops()), 0);
    let fair = 200e6 * 1_024.0 / 1_106.0 / 2.0;
    for flow in 0..2 {
        let mean = results.goodput_after(flow, Time::from_us(15_000_000)).unwrap();
        println!("flow {flow}: {:.1} Mb/s of {:.1}", mean / 1e6, fair / 1e6);
        assert!((mean / fair - 1.0).abs() < 0.05, "flow {flow}: {mean} of {fair}");
    }
    let counts = |flow: usize| &results.flows[flow].counts;
    assert!((0..2).all(|flow| counts(flow).cnps_sent > 100 && counts(flow).retransmitted == 0));
}

#[test]
fn incast_fills_the_line() {
    let degrees = proposed("incast", "flows.0.degree");
    assert_eq!(degrees, ["2", "8", "16", "20", "32"]);
    for degree in degrees {
        let results = run_with("incast", &[("flows.0.degree", &degree)]);
        assert_lossless(&results);
        let bytes = 20e6 * degree.parse::<f64>().unwrap();
        let ideal = bytes * 1_106.0 / 1_024.0 * 8.0 / 100e9;
        let part = results.end.as_secs_f64() / ideal;
        println!("{degree}:1 takes {part:.3} of the ideal, Jain {:.4}", results.jain());
        assert!(part < 1.25, "{degree}: {part}");
    }
}

#[test]
fn pfc_alone_is_unfair_and_dcqcn_is_not() {
    let pfc = run("unfairness-pfc");
    assert_lossless(&pfc);
    let rates: Vec<f64> = pfc.flows.iter().map(|flow| flow.goodput_bps() / 1e9).collect();
    println!("PFC: {rates:.2?}");
    assert!(rates[..3].iter().all(|rate| rates[3] > 1.2 * rate), "{rates:?}");
    let dcqcn = run("fairness-dcqcn");
    assert_lossless(&dcqcn);
    let rates: Vec<f64> = dcqcn.flows.iter().map(|flow| flow.goodput_bps() / 1e9).collect();
    println!("DCQCN: {rates:.2?}");
    let mean = rates.iter().sum::<f64>() / 4.0;
    assert!(rates.iter().all(|rate| (rate / mean - 1.0).abs() < 0.15), "{rates:?}");
}

#[test]
fn buffers_in_a_circle_stand_still() {
    let results = run("pfc-deadlock");
    assert_eq!(results.incomplete(), 6);
    assert!(results.port("s0", "s1").unwrap().stats.paused[3] > Time::from_us(15_000));
    let [deadlock] = &results.deadlocks[..] else { panic!("{:?}", results.deadlocks) };
    let names: Vec<&str> =
        deadlock.ports.iter().map(|port| results.ports[*port as usize].name.as_str()).collect();
    assert_eq!(names, ["s0->s1", "s1->s2", "s2->s0"]);
    assert!(deadlock.begin < Time::from_us(200) && deadlock.end.is_none(), "{deadlock:?}");
    let freed =
        run_with("pfc-deadlock", &[("switch.watchdog", "{ after = \"500us\", restore = \"200us\" }")]);
    assert!(freed.deadlocks[0].end.is_some(), "{:?}", freed.deadlocks);
}

#[test]
fn a_storm_reaches_those_who_never_come_near() {
    let results = run("pause-storm");
    assert!(results.flows[1].completion_time.unwrap() > Time::from_us(9_000));
}

/// The cost of a failed spine depends on how frames choose their path, until the leaves know of the failure.
#[test]
fn a_failed_spine_costs_what_is_sent_to_it_for_50_us() {
    let outcome = |balance: &str, recovery: &str| {
        let set = [("switch.balance", balance), ("host.recovery", recovery)];
        let results = run_with("link-failure", &set);
        let lost = results.dropped(DropReason::LinkDown);
        assert_eq!((results.incomplete(), results.sum(|port| port.drops()) - lost), (0, 0), "{balance}");
        let retransmitted: u64 = results.flows.iter().map(|flow| flow.counts.retransmitted).sum();
        (lost, retransmitted, results.completion_quantile(1.0).unwrap())
    };
    let tolerant = "selective-repeat:cap=1024,reorder=256";
    let [flow, weighted, flowlet, adaptive, spray] =
        ["flow", "weighted", "flowlet", "adaptive", "spray"].map(|balance| outcome(balance, tolerant));
    assert_eq!(flow, weighted, "all links have the same rate");
    assert!(flow.0 > 500, "{flow:?}");
    assert!(flowlet.0 < 100, "flows whose acknowledgements stop make a gap and go elsewhere: {flowlet:?}");
    // Up to 1.6 Tb/s cross the fabric, a quarter of it over this spine: 2,260 frames in 50 us, and their
    // acknowledgements.
    for sprayed in [adaptive, spray] {
        assert!((2_000..4_500).contains(&sprayed.0), "{sprayed:?}");
        assert!(sprayed.2 < flow.2 && sprayed.2 < flowlet.2, "{sprayed:?} beside {flow:?} and {flowlet:?}");
    }
    // If a receiver reports each early packet, the sender retransmits it, unless it takes account of the
    // paths.
    let (_, retransmitted, slowest) = outcome("spray", "selective-repeat:cap=1024");
    assert!(retransmitted > 4 * spray.1 && slowest > spray.2, "{retransmitted} {slowest} beside {spray:?}");
}

/// A server with two ports has two NICs; traffic over the other port is unaffected by the failure.
#[test]
fn a_failed_port_of_two_costs_the_flows_of_that_port() {
    let results = run("dual-homed");
    assert_eq!(results.incomplete(), 0);
    let slowdowns: Vec<f64> = results.flows.iter().map(|flow| flow.slowdown().unwrap()).collect();
    let (first, second) = slowdowns.split_at(8);
    // Only their last acknowledgement waits for the end of a packet of the other direction.
    assert!(second.iter().all(|slowdown| (1.0..1.0002).contains(slowdown)), "{second:?}");
    let disturbed: Vec<usize> = (0..8).filter(|flow| first[*flow] > 1.0002).collect();
    let of_h0 =
        |flow: &usize| [results.flows[*flow].spec.source, results.flows[*flow].spec.destination].contains(&0);
    assert!(disturbed.len() == 2 && disturbed.iter().all(of_h0), "{slowdowns:?}");
    assert!(results.dropped(DropReason::LinkDown) > 100);
}

/// The responses of an incast of READs are trimmed many times before the oldest one arrives. No request gives
/// up: trimmed packets use up no retry, and restart the timer.
#[test]
fn reads_whose_responses_are_trimmed_again_and_again_complete() {
    let text = r#"
name = "reads"
stop = "200ms"
[topology]
kind = "star"
hosts = 65
rate = "100Gbps"
[switch]
buffer = "4MB"
pfc = []
trimming = { above = "100KB" }
[host]
recovery = "selective-repeat"
congestion = "none"
[[flows]]
kind = "incast"
degree = 64
to = "h0"
bytes = "200KB"
operation = "read"
"#;
    assert_eq!(results_of(&Scenario::parse(text, &no_files).unwrap()).incomplete(), 0);
}

/// The gain of trimming in an incast, which does not replace congestion control.
#[test]
fn trimming_needs_half_of_the_time() {
    let outcome = |trimming: &str, congestion: &str| {
        let results = run_with("trimming", &[("switch.trimming", trimming), ("host.congestion", congestion)]);
        assert_eq!(results.incomplete(), 0, "{trimming} {congestion}");
        let timeouts: u64 = results.flows.iter().map(|flow| flow.counts.timeouts).sum();
        let retransmitted: u64 = results.flows.iter().map(|flow| flow.counts.retransmitted).sum();
        let trimmed = results.sum(|port| port.trimmed);
        let drops = results.sum(|port| port.drops());
        (results.completion_quantile(1.0).unwrap(), retransmitted, trimmed, drops, timeouts)
    };
    let (on, off) = ("{ above = \"100KB\" }", "{ off = true }");
    for (congestion, gain) in [("dctcp", 2.5), ("swift", 1.7)] {
        let (with, without) = (outcome(on, congestion), outcome(off, congestion));
        let (slowest, retransmitted, trimmed, drops, timeouts) = with;
        assert_eq!((drops, timeouts, retransmitted), (0, 0, trimmed), "{congestion}");
        assert!(slowest < Time::from_us(700), "{congestion}: {slowest}");
        let found = without.0.as_secs_f64() / slowest.as_secs_f64();
        assert!(found > gain && without.4 > 0, "{congestion}: {found} {without:?}");
    }
    // DCQCN does not react to losses, so its flows are trimmed until marks slow them down, and nothing is
    // won.
    let (with, without) = (outcome(on, "dcqcn:hpcc").0, outcome(off, "dcqcn:hpcc").0);
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    assert!((0.8..1.2).contains(&ratio), "{with} {without}");
    let nothing = outcome(on, "none");
    assert!(nothing.0 > outcome(off, "none").0, "headers take the place of data: {nothing:?}");
}

const SMALL: &str = r#"
name = "small"
[topology]
kind = "star"
hosts = 2
[host]
recovery = "selective-repeat"
[[flows]]
kind = "pair"
from = "h0"
to = "h1"
bytes = "1MB"
[[sweep]]
name = "flows.0.bytes"
values = ["1MB", 2000]
"#;

#[test]
fn recovery_and_sweeps_are_read() {
    let parse = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        Scenario::parse(&SMALL.replace(from, to), &|file| Err(file.to_owned()))
    };
    let recovery = |text: &str| parse("\"selective-repeat\"", text).unwrap().settings.host.recovery;
    assert_eq!(recovery("\"go-back-n\""), Recovery::GoBackN);
    let selective = SelectiveRepeat::default();
    assert_eq!(recovery("\"selective-repeat\""), Recovery::SelectiveRepeat(selective));
    let own = SelectiveRepeat { cap: 7, ..selective };
    assert_eq!(recovery("\"selective-repeat:cap=7\""), Recovery::SelectiveRepeat(own));
    let scaled = parse("[host]", "[switch]\nmarking_rate = \"25Gbps\"\n[host]").unwrap().settings.switch;
    assert_eq!(scaled.marking_rate_bps, Some(25_000_000_000));
    let sweeps = parse("small", "small").unwrap().sweeps;
    assert_eq!(sweeps, [("flows.0.bytes".to_owned(), vec!["1MB".to_owned(), "2000".to_owned()])]);

    let error = |from: &str, to: &str| parse(from, to).unwrap_err().to_string();
    let known = "line 7: there is no loss recovery \"selective\"; there are go-back-n and selective-repeat";
    assert_eq!(error("\"selective-repeat\"", "\"selective\""), known);
    let cap = "line 7: invalid parameter of selective-repeat: cap is \"0\" and must be 1 to 4096 packets";
    assert_eq!(error("\"selective-repeat\"", "\"selective-repeat:cap=0\""), cap);
    let empty = error("[\"1MB\", 2000]", "[]");
    assert_eq!(empty, "line 13: the sweep of flows.0.bytes has no values");
}

/// Regression: an error in flows named the line in which the table begins.
#[test]
fn what_is_wrong_with_flows_is_told_with_its_own_line() {
    let text = "name = \"x\"\n[topology]\nkind = \"star\"\nhosts = 3\n[[flows]]\nkind = \"incast\"\ndegree = 2\n\
                to = \"h2\"\nbytes = \"1MB\"\n";
    let error = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Scenario::parse(&text.replace(from, to), &|file| Err(file.to_owned())).unwrap_err().to_string()
    };
    assert_eq!(error("degree", "degre"), "line 7: unknown field `degre`, did you mean `degree`?");
    assert_eq!(
        error("\"1MB\"", "\"1XB\""),
        "line 9: \"1XB\" is not a size; write for example 64K, 400KB or 9MiB"
    );
    assert!(error("\"incast\"", "\"incst\"").starts_with("line 6: unknown variant `incst`"));
    // Errors of the table as a whole name the line of its head.
    assert_eq!(error("degree = 2\n", ""), "line 5: flows of the kind incast need `degree`");
    let seed = error("degree = 2", "degree = 2\nseed = 4");
    assert_eq!(seed, "line 5: flows of the kind incast have no `seed`");
}
