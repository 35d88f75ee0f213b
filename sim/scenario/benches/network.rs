//! How many data packets a second does the simulator move on one thread?
//!
//! Throughput is in data packets: events for each of them depend on the way. RC, DCQCN and PFC are on. The
//! scenarios of `sim/scenario/shipped/` are run as they are shipped.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use roce_scenario::Scenario;
use roce_sim::net::{PayloadMode, Results, Simulation};

fn scenario(name: &str, payload: PayloadMode) -> Scenario {
    let path = format!("{}/shipped/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the scenario is shipped");
    let mut scenario = Scenario::parse(&text, &|file| Err(file.to_owned())).expect("the scenario is right");
    scenario.settings.payload = payload;
    scenario
}

fn run(scenario: &Scenario) -> Results {
    let settings = scenario.settings.clone();
    let mut simulation =
        Simulation::new(&scenario.topology, &scenario.flows, settings).expect("it can be built");
    simulation.run_to_end();
    simulation.results()
}

fn networks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("network");
    group.sample_size(10).measurement_time(Duration::from_secs(20)).warm_up_time(Duration::from_millis(1));
    for (id, name, payload) in [
        ("k8 permutation, implied payload", "permutation-k8", PayloadMode::Implied),
        ("k8 permutation, real payload", "permutation-k8", PayloadMode::Real),
        ("1,024 hosts, implied payload", "clos-1000", PayloadMode::Implied),
    ] {
        let scenario = scenario(name, payload);
        let results = run(&scenario);
        let dropped = results.sum(|port| port.drops());
        assert_eq!((results.incomplete(), dropped, results.checked.1), (0, 0, 0), "{id}");
        let packets = results.data_packets;
        group
            .throughput(Throughput::Elements(packets))
            .bench_function(id, |bencher| bencher.iter(|| run(&scenario)));
    }
    group.finish();
}

criterion_group!(benches, networks);
criterion_main!(benches);
