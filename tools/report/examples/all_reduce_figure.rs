//! The figure of `docs/reference/collectives.md`: a ring all-reduce in a leaf-spine network, with one path
//! for each queue pair and with spraying.
//!
//! ```console
//! cargo run --release -p roce-report --example all_reduce_figure -- sim/scenario/shipped/all-reduce-collisions.toml docs/results/all-reduce-collisions.svg
//! ```

use anyhow::{Context as _, ensure};
use roce_plot::{Axes, Axis, Chart, Figure, Line, Width};
use roce_scenario::Scenario;

/// Bytes of the part that each step of the ring sends.
const CHUNKS: [u64; 5] = [12_500, 25_000, 50_000, 100_000, 200_000];
const HOSTS: u64 = 32;
const PLACEMENTS: u64 = 5;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "give the scenario and the file to write";
    let (scenario, out) = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    let text = std::fs::read_to_string(&scenario).with_context(|| format!("cannot read {scenario}"))?;
    let mut lines = vec![line("closed form", |chunk| Ok(bandwidth(chunk, closed_form(chunk))))?];
    for (name, balance, recovery) in [
        ("spraying, selective repeat", "spray", "selective-repeat"),
        ("spraying, go-back-N", "spray", "go-back-n"),
    ] {
        lines.push(line(name, |chunk| middle(&text, chunk, balance, recovery, PLACEMENTS / 2))?);
    }
    for (name, place) in
        [("by hash, best", PLACEMENTS - 1), ("by hash, median", PLACEMENTS / 2), ("by hash, worst", 0)]
    {
        lines.push(line(name, |chunk| middle(&text, chunk, "flow", "go-back-n", place))?);
    }
    println!(
        "| chunk, KB | {} |",
        lines.iter().map(|line| line.name.clone()).collect::<Vec<_>>().join(" | ")
    );
    for (place, chunk) in CHUNKS.iter().enumerate() {
        let row: Vec<String> = lines.iter().map(|line| format!("{:.1}", line.points[place].1)).collect();
        println!("| {:.1} | {} |", *chunk as f64 / 1e3, row.join(" | "));
    }
    let chart = Chart {
        title: format!("Ring all-reduce of {HOSTS} hosts, {PLACEMENTS} random placements"),
        x_label: "bytes that each step of the ring sends, KB".to_owned(),
        y_label: "bus bandwidth, Gb/s".to_owned(),
        lines,
        axes: Axes { x: Axis::Log, y: Axis::Linear },
        ..Chart::default()
    };
    let caption = format!(
        "Best, median and worst of {PLACEMENTS} placements (seeds 1 to {PLACEMENTS} of the order of hosts)."
    );
    let figure = Figure { caption, ..Figure::from(chart) };
    let table = std::path::Path::new(&out).with_extension("tsv");
    std::fs::write(&out, figure.to_svg(Width::Screen)).with_context(|| format!("cannot write {out}"))?;
    std::fs::write(&table, figure.to_table()).with_context(|| format!("cannot write {}", table.display()))
}

fn line(name: &str, of: impl Fn(u64) -> anyhow::Result<f64>) -> anyhow::Result<Line> {
    let points = CHUNKS.iter().map(|chunk| Ok((*chunk as f64 / 1e3, of(*chunk)?)));
    Ok(Line { name: name.to_owned(), points: points.collect::<anyhow::Result<_>>()? })
}

/// The bus bandwidth at one place among those of all placements, in rising order.
fn middle(text: &str, chunk: u64, balance: &str, recovery: &str, place: u64) -> anyhow::Result<f64> {
    let mut all = Vec::new();
    for placement in 1..=PLACEMENTS {
        all.push(run(text, chunk, balance, recovery, placement)?);
    }
    all.sort_by(f64::total_cmp);
    Ok(all[place as usize])
}

fn run(text: &str, chunk: u64, balance: &str, recovery: &str, placement: u64) -> anyhow::Result<f64> {
    let set = [
        ("collective.0.bytes", (chunk * HOSTS).to_string()),
        ("collective.0.shuffle", placement.to_string()),
        ("switch.balance", balance.to_owned()),
        ("host.recovery", recovery.to_owned()),
    ];
    let set = set.map(|(name, value)| (name.to_owned(), value));
    let scenario = Scenario::parse_with(text, &set, &|file| Err(file.to_owned()))?;
    let mut simulation = scenario.simulation()?;
    simulation.run_to_end();
    let results = simulation.results();
    ensure!(results.incomplete() == 0, "{} flows are not complete", results.incomplete());
    let operation = scenario.operations.first().context("the scenario has no operation")?;
    let bus = operation.result(&results.task_ends).bus_bps.context("the operation did not end")?;
    Ok(bus / 1e9)
}

/// Seconds without collisions: `docs/reference/collectives.md`.
fn closed_form(chunk: u64) -> f64 {
    let packets = chunk.div_ceil(1_024) as f64;
    let bytes = chunk as f64 + packets * 82.0 + 20.0 + 3.0 * 1_122.0;
    2.0 * (HOSTS - 1) as f64 * (bytes * 8.0 / 100e9 + 4e-6)
}

fn bandwidth(chunk: u64, seconds: f64) -> f64 {
    let hosts = HOSTS as f64;
    (chunk * HOSTS) as f64 * 8.0 / seconds * 2.0 * (hosts - 1.0) / hosts / 1e9
}
