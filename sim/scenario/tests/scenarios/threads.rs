//! Results of every shipped scenario do not depend on the number of threads.

use roce_scenario::Scenario;
use roce_sim::net::Simulation;

use super::{no_files, text};

/// Settings that shorten a run.
const SHORT: &[(&str, &[(&str, &str)])] = &[
    ("clos-1000", &[("flows.0.bytes", "10KB")]),
    ("mixture-of-experts", &[("training.0.bytes", "256KB"), ("training.0.gradients", "256KB")]),
    ("permutation-k8", &[("flows.0.bytes", "50KB")]),
    ("permutation-8192", &[("topology.k", "8"), ("flows.0.bytes", "20KB")]),
    ("two-to-one-bridge", &[("stop", "200ms")]),
];

#[test]
fn shipped_scenarios_are_the_same_for_any_number_of_threads() {
    let folder = format!("{}/shipped", env!("CARGO_MANIFEST_DIR"));
    let (mut divided, mut count) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let short =
            SHORT.iter().find(|(known, _)| *known == name).map_or(&[("stop", "2ms")][..], |(_, set)| set);
        let set: Vec<_> = short.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let scenario = Scenario::parse_with(&text(name), &set, &no_files);
        let mut scenario = scenario.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut run = |threads| {
            scenario.settings.threads = threads;
            let mut simulation: Simulation = scenario.simulation().unwrap();
            divided += usize::from(simulation.threads() > 1);
            simulation.run_to_end();
            simulation.results()
        };
        let first = run(1);
        for threads in 2..=4 {
            assert_eq!(run(threads), first, "{name} with {threads} threads");
        }
        count += 1;
    }
    assert!(count >= 24 && divided >= 3 * 8, "{divided} runs of {count} scenarios had several threads");
}
