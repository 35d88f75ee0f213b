//! The shipped scenarios do what they say.

use roce_sim::net::{DropReason, FlowState, Results, Simulation, Time};
use roce_sim::scenario::Scenario;

fn text(name: &str) -> String {
    let path = format!("{}/../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn run_with(name: &str, replaced: &[(&str, &str)]) -> Results {
    let replaced: Vec<_> = replaced.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let scenario =
        Scenario::parse_with(&text(name), &replaced, &|file| Err(format!("{file} is not shipped")));
    let scenario = scenario.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut simulation = Simulation::new(&scenario.topology, &scenario.flows, scenario.settings).unwrap();
    simulation.run_to_end();
    simulation.results()
}

fn run(name: &str) -> Results {
    run_with(name, &[])
}

fn assert_lossless(results: &Results) {
    assert_eq!((results.incomplete(), results.sum(|port| port.drops())), (0, 0));
}

#[test]
fn all_of_them_can_be_read() {
    let folder = format!("{}/../scenarios", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let scenario = Scenario::parse(&text, &|file| Err(format!("{file} is not shipped")));
        let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!scenario.expectation.is_empty() && !scenario.description.is_empty(), "{}", path.display());
        Simulation::new(&scenario.topology, &scenario.flows, scenario.settings).unwrap();
        count += 1;
    }
    assert!(count >= 11, "{count}");
}

#[test]
fn two_to_one_converges() {
    let results = run("two-to-one");
    assert_eq!(results.sum(|port| port.drops()), 0);
    let mean = |flow: u32| {
        let late = results.rates.iter().filter(|p| p.flow == flow && p.time > Time::from_us(30_000));
        let (sum, count) = late.fold((0.0, 0), |(sum, count), p| (sum + p.goodput_bps, count + 1));
        sum / f64::from(count)
    };
    let fair = 40e9 * 1_024.0 / 1_106.0 / 2.0;
    for flow in 0..2 {
        println!("flow {flow}: {:.2} Gb/s of {:.2}", mean(flow) / 1e9, fair / 1e9);
        assert!((mean(flow) / fair - 1.0).abs() < 0.05, "flow {flow}: {} of {fair}", mean(flow));
    }
    let alone = results.rates.iter().filter(|p| p.flow == 0 && p.time < Time::from_us(9_000));
    assert!(alone.filter(|p| p.goodput_bps > 1.9 * fair).count() > 80, "it has the line for itself at first");
}

/// The same at a two-hundredth of the speed, as `roce bridge` has it; there `tests/bridge` looks at it.
#[test]
fn two_to_one_converges_at_the_speed_of_a_bridge_too() {
    let results = run("two-to-one-bridge");
    assert_eq!(results.sum(|port| port.drops()), 0);
    let fair = 200e6 * 1_024.0 / 1_106.0 / 2.0;
    for flow in 0..2 {
        let late = results.rates.iter().filter(|p| p.flow == flow && p.time > Time::from_us(15_000_000));
        let (sum, count) = late.fold((0.0, 0), |(sum, count), p| (sum + p.goodput_bps, count + 1));
        let mean = sum / f64::from(count);
        println!("flow {flow}: {:.1} Mb/s of {:.1}", mean / 1e6, fair / 1e6);
        assert!((mean / fair - 1.0).abs() < 0.05, "flow {flow}: {mean} of {fair}");
    }
    let counts = |flow: usize| &results.flows[flow].counts;
    assert!((0..2).all(|flow| counts(flow).cnps_sent > 100 && counts(flow).retransmitted == 0));
}

#[test]
fn incast_fills_the_line() {
    for degree in ["2", "8", "16", "20", "32"] {
        let results = run_with("incast", &[("flows.0.degree", degree)]);
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
fn pfc_has_a_victim_and_dcqcn_helps_it() {
    let victim = |results: &Results| results.flows[8].completion_time.unwrap().as_secs_f64() * 1e3;
    let (pfc, dcqcn) = (run("victim-pfc"), run("victim-dcqcn"));
    assert_lossless(&pfc);
    assert_lossless(&dcqcn);
    let alone = 10e6 * 1_106.0 / 1_024.0 * 8.0 / 40e9 * 1e3;
    println!("victim: alone {alone:.3} ms, PFC {:.3}, DCQCN {:.3}", victim(&pfc), victim(&dcqcn));
    assert!(victim(&pfc) > 2.0 * alone, "{}", victim(&pfc));
    assert!(victim(&dcqcn) < victim(&pfc), "{}", victim(&dcqcn));
}

#[test]
fn buffers_in_a_circle_stand_still() {
    let results = run("pfc-deadlock");
    assert_eq!(results.incomplete(), 6);
    assert!(results.port("s0", "s1").unwrap().stats.paused[3] > Time::from_us(15_000));
}

#[test]
fn a_storm_reaches_those_who_never_come_near() {
    let results = run("pause-storm");
    assert!(results.flows[1].completion_time.unwrap() > Time::from_us(9_000));
}

#[test]
fn loss_costs_go_back_n_dearly() {
    let time = |plan: &str| {
        let results = run_with("loss", &[("topology.faults.0.plan", plan)]);
        assert_eq!(results.flows[0].state, FlowState::Complete, "{plan}");
        results.flows[0].completion_time.unwrap().as_secs_f64() * 1e3
    };
    let none = time("drop=0%");
    for plan in ["drop=0.01%", "drop=0.1%", "drop=1%", "drop=5%"] {
        println!("{plan}: {:.2} times as long", time(plan) / none);
    }
    assert!(time("drop=1%") > 1.3 * none && time("drop=5%") > 10.0 * none);
    assert!(run("loss").dropped(DropReason::Link) > 0);
}
