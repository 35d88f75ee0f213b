//! Networks of scenarios whose messages an external scheduler sends.

use roce_scenario::Scenario;
use roce_sim::net::{BuildError, Network, NetworkEvent, Time};

use super::{no_files, text};

#[allow(dead_code, reason = "the example is a program of its own")]
#[path = "../../examples/ring_all_reduce.rs"]
mod ring_all_reduce;

const NETWORK: &str = "name = \"x\"\n[topology]\nkind = \"star\"\nhosts = 3\n";

#[test]
fn a_network_needs_no_flows() {
    let error = Scenario::parse(NETWORK, &no_files).unwrap_err().to_string();
    assert!(error.starts_with("nothing is sent: add a [[flows]]"), "{error}");
    let mut network = Scenario::parse_network(NETWORK, &no_files).unwrap().network().unwrap();
    network.receive(2, 0, 1, 1_000).unwrap();
    network.send(2, 0, 1, 1_000).unwrap();
    assert!(matches!(network.next_event(), Ok(Some(NetworkEvent::Received(_)))));
    assert!(network.now() > Time::from_us(2) && network.now() < Time::from_us(3), "{}", network.now());
}

/// Messages have the settings of `[host]`. Those of flows leave with the flows; those of groups must not be
/// ignored without a message.
#[test]
fn flows_are_left_out_and_settings_of_groups_are_refused() {
    let refused = |text: &str| match Scenario::parse_network(text, &no_files).unwrap().network() {
        Err(BuildError::Setting(reason)) => reason,
        _ => panic!("not refused: {text}"),
    };
    let group = format!("{NETWORK}[[group]]\nhosts = [\"h1\"]\nhost = {{ depth = 3 }}\n");
    let flows = "[[flows]]\nkind = \"pair\"\nfrom = \"h0\"\nto = \"h1\"\nbytes = 1\noperation = \"read\"\n";
    for text in [&group, &format!("{group}{flows}")] {
        let reason = refused(text);
        assert!(reason.starts_with("profiles: messages have the settings of `host`"), "{reason}");
    }
    let text = format!("{NETWORK}{flows}");
    assert!(Scenario::parse_network(&text, &no_files).unwrap().network().is_ok());
    // Not even its file is loaded.
    let workload = format!("{NETWORK}[[workload]]\nkind = \"goal\"\nfile = \"missing.goal\"\n");
    assert!(Scenario::parse_network(&workload, &no_files).unwrap().network().is_ok());
    let error = Scenario::parse(&text, &no_files).unwrap().network().err().unwrap().to_string();
    assert!(error.starts_with("flows: an external scheduler sends the messages"), "{error}");
    let polling = format!("{NETWORK}[[group]]\nhosts = [\"h1\"]\napplication = \"polling\"\n");
    let network: Result<Network, _> = Scenario::parse_network(&polling, &no_files).unwrap().network();
    assert!(network.is_ok(), "an application is a setting of a host");
}

/// Both use the same queue pairs for the same parts in the same order, so they agree to the picosecond, also
/// in the second network, which has several paths.
#[test]
fn a_ring_from_outside_takes_the_time_of_the_collective() {
    for (name, bytes) in [("ring-all-reduce", 400_003), ("all-reduce-collisions", 160_000)] {
        let scenario = Scenario::parse_network(&text(name), &no_files).unwrap();
        let outside = ring_all_reduce::all_reduce(&mut scenario.network().unwrap(), bytes).unwrap();
        let built_in = ring_all_reduce::built_in(&scenario, bytes).unwrap();
        println!("{name}: {outside} {built_in}");
        assert_eq!(outside, built_in, "{name}");
    }
}
