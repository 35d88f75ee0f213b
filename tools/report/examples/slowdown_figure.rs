//! The slowdown figure of `docs/results/simulator-validation.md`, from its data. `bench/slowdown` makes both.
//!
//! ```console
//! cargo run -p roce-report --example slowdown_figure -- docs/results/slowdown.tsv docs/results/slowdown.svg
//! ```

use anyhow::{Context as _, ensure};
use roce_plot::{Axes, Axis, Band, Chart, Figure, Line, Width};

/// The first column with a tenth of the flows.
const TENTHS: usize = 7;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "give the data and the file to write, SVG or PDF";
    let (data, out) = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    let text = std::fs::read_to_string(&data).with_context(|| format!("cannot read {data}"))?;
    let mut charts: Vec<Chart> = Vec::new();
    for (number, row) in text.lines().enumerate().skip(1) {
        add(&mut charts, row).with_context(|| format!("{data}, line {}", number + 1))?;
    }
    let caption = "Leaf-spine of 32 hosts, seeds 1 to 5. A point is the 99th percentile of the slowdown of a tenth of the \
                   flows by size, all seeds together; it stands at the largest size of the tenth. Tenths that end at \
                   the same size are one point. Bars: from the least to the largest of single seeds. n: flows of all \
                   seeds, so a tenth has n/10.";
    let figure = Figure { charts, columns: 4, caption: caption.to_owned() };
    let bytes = match out.ends_with(".pdf") {
        true => figure.to_pdf(Width::Page),
        false => figure.to_svg(Width::Screen).into_bytes(),
    };
    std::fs::write(&out, bytes).with_context(|| format!("cannot write {out}"))
}

/// Adds the line of a row to the chart of its workload and load, which may be new.
fn add(charts: &mut Vec<Chart>, row: &str) -> anyhow::Result<()> {
    let cells: Vec<&str> = row.split('\t').collect();
    ensure!(cells.len() > TENTHS, "a row has more than {TENTHS} columns");
    let load: f64 = cells[1].parse()?;
    let title = format!("{}, load {:.0} %, n = {}", cells[0], 100.0 * load, cells[3]);
    let (mut points, mut range) = (Vec::new(), Vec::new());
    for cell in &cells[TENTHS..] {
        let values: Vec<f64> = cell.split(':').map(str::parse).collect::<Result<_, _>>()?;
        let [value, least, most, size] = values[..] else { anyhow::bail!("{cell} has not four values") };
        points.push((size, value));
        range.push((size, least, most));
    }
    if charts.last().is_none_or(|chart| chart.title != title) {
        charts.push(Chart {
            title,
            x_label: "size of flows up to, bytes".to_owned(),
            y_label: "99th percentile of the slowdown".to_owned(),
            axes: Axes { x: Axis::Sizes, y: Axis::Log },
            ..Chart::default()
        });
    }
    let is_first = charts.len() == 1;
    if let Some(chart) = charts.last_mut() {
        let name = if is_first && chart.bands.is_empty() { "range of single seeds" } else { "" };
        chart.lines.push(Line { name: cells[2].to_owned(), points });
        chart.bands.push(Band { name: name.to_owned(), points: range, spread: roce_plot::Spread::Bars });
    }
    Ok(())
}
