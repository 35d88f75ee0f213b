//! What a program adds to its scenarios: algorithms, policies and rules with parameters.

use std::collections::BTreeSet;

use super::results_of;
use roce_scenario::{Own, Scenario};
use roce_sim::net::{FrameView, NamedRules, PortView, SwitchRules, Time};
use roce_transport::Instant;
use roce_transport::congestion::ParameterRange::Number;
use roce_transport::congestion::{
    Algorithm, CongestionControl, EvenPull, PathPolicy, Policy, Pulls, Rate, parameters,
};

parameters! {
    /// The parameters of all of them.
    pub struct Value {
        /// Gb/s, the number of a path, or that of a port.
        value: u32 = 10, Number(0, 1_000), "", "";
    }
}

/// A rate.
#[derive(Debug)]
struct Fixed(Rate);

impl CongestionControl for Fixed {
    fn rate(&self) -> Rate {
        self.0
    }
}

/// A path.
#[derive(Debug)]
struct Only(u16);

impl PathPolicy for Only {
    fn next(&mut self, _now: Instant) -> u16 {
        self.0
    }
}

/// A port.
#[derive(Debug)]
struct Always(usize);

impl SwitchRules for Always {
    fn choose(&mut self, _now: Time, _frame: &FrameView, _ports: &[PortView]) -> Option<usize> {
        Some(self.0)
    }
}

fn own() -> Own {
    let mut own = Own::from(vec![Algorithm::custom_with("mine", Value::default(), |own, _| {
        Box::new(Fixed(Rate::bits_per_second(u64::from(own.value) * 1_000_000_000)))
    })]);
    own.policies
        .push(Policy::custom_with("only", Value::default(), |own, _| Box::new(Only(own.value as u16))));
    own.pulls.push(Pulls::new("pull", Value::default(), |own, _| {
        Box::new(EvenPull::new(Rate::bits_per_second(u64::from(own.value) * 1_000_000_000), 0))
    }));
    own.rules
        .push(NamedRules::new("always", Value::default(), |own, _| Box::new(Always(own.value as usize))));
    own
}

/// A flow of 1 MB between hosts of two leaves with four spines.
const SCENARIO: &str = r#"
name = "own"
[topology]
kind = "leaf-spine"
leaves = 2
spines = 4
hosts = 1

[switch]
rules = "always:value=2"

[host]
congestion = "mine:value=20"
paths = "only:paths=8,value=5"

[[flows]]
kind = "pair"
from = "h0"
to = "h1"
bytes = "1MB"
"#;

fn read(text: &str, replaced: &[(&str, &str)], own: &Own) -> Result<Scenario, String> {
    let replaced: Vec<_> = replaced.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Scenario::parse_among(text, &replaced, &super::no_files, own).map_err(|error| error.to_string())
}

/// Returns the gigabits per second of the flow, and the name of the port to the spine that its data took.
fn outcome(text: &str, replaced: &[(&str, &str)]) -> (u64, String) {
    let results = results_of(&read(text, replaced, &own()).unwrap());
    assert_eq!(results.incomplete(), 0);
    let uplinks =
        results.ports.iter().filter(|port| port.name.starts_with("leaf0") && port.name.contains("spine"));
    let busiest = uplinks.max_by_key(|port| port.stats.tx_bytes).unwrap();
    let gbps = results.flows[0].goodput_bps() / 1e9;
    (gbps.round() as u64, busiest.name.clone())
}

#[test]
fn parameters_of_own_algorithms_and_rules_have_effects() {
    let (rate, uplink) = outcome(SCENARIO, &[]);
    assert!((17..=20).contains(&rate), "{rate}");
    let (slower, other) =
        outcome(SCENARIO, &[("host.congestion", "mine"), ("switch.rules", "always:value=0")]);
    assert!((8..=10).contains(&slower), "{slower}");
    assert_ne!(uplink, other);
}

#[test]
fn parameters_of_own_policies_have_effects() {
    // Without rules, the path decides.
    let of_path = |path: u32| {
        let paths = format!("only:paths=8,value={path}");
        outcome(SCENARIO, &[("switch.rules", "none"), ("host.paths", &paths)]).1
    };
    let uplinks: BTreeSet<String> = (0..8).map(of_path).collect();
    assert!(uplinks.len() > 1, "{uplinks:?}");
}

#[test]
fn parameters_of_own_receivers_have_effects() {
    let rates = [4, 20].map(|value| {
        let reads = format!("{{ packets = 8, policy = \"pull:value={value}\" }}");
        let replaced =
            [("flows.0.operation", "read"), ("host.congestion", "none"), ("host.reads", reads.as_str())];
        outcome(SCENARIO, &replaced).0
    });
    assert!((3..=4).contains(&rates[0]) && (17..=20).contains(&rates[1]), "{rates:?}");
}

#[test]
fn wrong_names_and_parameters_are_explained() {
    for (key, value, expected) in [
        ("host.congestion", "mine:value=1001", "value is \"1001\" and must be 0 to 1000"),
        ("host.congestion", "mine:other=1", "there is no parameter \"other\"; there are value"),
        ("host.paths", "only:value=x", "value is \"x\""),
        ("host.paths", "others", "there are only, one, round-robin"),
        ("host.reads", "{ policy = \"others\" }", "reads: policy: there is no \"others\"; there are pull"),
        ("host.reads", "{ rate = 1.0, policy = \"pull\" }", "reads: rate and policy exclude each other"),
        ("switch.rules", "others", "rules: there is no \"others\"; there are always"),
        ("switch.rules", "always:value", "is not of the form name=value"),
    ] {
        let error = read(SCENARIO, &[(key, value)], &own()).unwrap_err();
        assert!(error.contains(expected), "{key}={value}: {error}");
    }
    let of_others = [("host.congestion", "none"), ("host.paths", "one")];
    let error = read(SCENARIO, &of_others, &Own::NONE).unwrap_err();
    assert!(error.contains("rules: there is no \"always\"; the program adds none"), "{error}");
}
