//! The figure of `docs/results/simulator-experiments.md`: a training step of a mixture of experts, in which a
//! link fails.
//!
//! ```console
//! cargo run --release -p roce-report --example experts_figure -- sim/scenario/shipped/mixture-of-experts.toml docs/results/mixture-of-experts.svg
//! ```

use anyhow::{Context as _, ensure};
use roce_plot::{Chart, Figure, Line, Width};
use roce_scenario::Scenario;
use roce_sim::net::OperationKind;

/// The name of each line, and what it changes in the scenario.
const CASES: [(&str, &[(&str, &str)]); 8] = [
    ("a path by hash", &[]),
    ("a path by hash, no failure", &[("failure", "[]")]),
    ("flowlets", &[("switch.balance", "flowlet")]),
    ("switches: adaptive", &[("switch.balance", "adaptive")]),
    ("switches: spraying", &[("switch.balance", "spray")]),
    ("senders: recycled paths", &[("host.paths", "recycle")]),
    (
        "spraying, reorder=512",
        &[("switch.balance", "spray"), ("host.recovery", "selective-repeat:cap=1024,reorder=512")],
    ),
    ("spraying, no failure", &[("switch.balance", "spray"), ("failure", "[]")]),
];

/// The figures of a run.
struct Step {
    /// Microseconds of each exchange, in the order of time.
    exchanges: Vec<f64>,
    gradients: f64,
    whole: f64,
    lost: u64,
    timeouts: u64,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "give the scenario and the file to write";
    let (scenario, out) = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    let text = std::fs::read_to_string(&scenario).with_context(|| format!("cannot read {scenario}"))?;
    let mut steps = Vec::new();
    // Two at a time: each takes some hundreds of megabytes.
    for pair in CASES.chunks(2) {
        let ended: Vec<anyhow::Result<Step>> = std::thread::scope(|scope| {
            let threads: Vec<_> = pair.iter().map(|(_, set)| scope.spawn(|| run(&text, set))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the run ends")).collect()
        });
        for step in ended {
            steps.push(step?);
        }
        eprintln!("{} of {} runs", steps.len(), CASES.len());
    }
    println!(
        "| | slowest exchange, µs | all exchanges, µs | gradients, µs | step, ms | frames lost | timeouts |"
    );
    for ((name, _), step) in CASES.iter().zip(&steps) {
        let slowest = step.exchanges.iter().copied().fold(0.0, f64::max);
        let all: f64 = step.exchanges.iter().sum();
        let Step { gradients, whole, lost, timeouts, .. } = step;
        println!(
            "| {name} | {slowest:.0} | {all:.0} | {gradients:.0} | {:.2} | {lost} | {timeouts} |",
            whole / 1e3
        );
    }
    let lines = CASES.iter().zip(&steps).map(|((name, _), step)| Line {
        name: (*name).to_owned(),
        points: (1..).zip(&step.exchanges).map(|(number, us)| (f64::from(number), *us)).collect(),
    });
    let chart = Chart {
        title: "A step of a mixture of experts on 256 GPUs, in which a link fails".to_owned(),
        x_label: "exchange of tokens, in the order of the step".to_owned(),
        y_label: "time, µs".to_owned(),
        lines: lines.collect(),
        ..Chart::default()
    };
    let caption =
        "32 servers of 8 GPUs on 8 rails, links of 400 Gb/s, NSCC. One of 256 links between switches \
                   fails from 350 to 650 µs. Seed 1."
            .to_owned();
    let figure = Figure { caption, ..Figure::from(chart) };
    let table = std::path::Path::new(&out).with_extension("tsv");
    std::fs::write(&out, figure.to_svg(Width::Screen)).with_context(|| format!("cannot write {out}"))?;
    std::fs::write(&table, figure.to_table()).with_context(|| format!("cannot write {}", table.display()))
}

fn run(text: &str, set: &[(&str, &str)]) -> anyhow::Result<Step> {
    let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let scenario = Scenario::parse_with(text, &set, &|file| Err(file.to_owned()))?;
    let mut simulation = scenario.simulation()?;
    simulation.run_to_end();
    let results = simulation.results();
    ensure!(results.incomplete() == 0, "{} flows are not complete", results.incomplete());
    let mut step = Step {
        exchanges: Vec::new(),
        gradients: 0.0,
        whole: 0.0,
        lost: 0,
        timeouts: results.flows.iter().map(|flow| flow.counts.timeouts).sum(),
    };
    step.lost = results.sum(|port| port.drops());
    for operation in &scenario.operations {
        let time = operation.result(&results.task_ends).time.context("an operation did not end")?;
        let us = time.as_secs_f64() * 1e6;
        match operation.kind {
            OperationKind::AllToAll => step.exchanges.push(us),
            OperationKind::AllReduce => step.gradients = us,
            _ => step.whole = us,
        }
    }
    Ok(step)
}
