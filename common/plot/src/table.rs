//! The points of a figure as a table.

use std::fmt::Write as _;

use crate::chart::{Chart, Figure, MOST_LINES};
use crate::series::{band_parts, is_shown, parts};

/// Returns the table: a line for each point that the figure draws.
pub(crate) fn text(figure: &Figure) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, figure);
    text
}

fn write(text: &mut String, figure: &Figure) -> std::fmt::Result {
    if !figure.caption.is_empty() {
        writeln!(text, "# {}", one_line(&figure.caption))?;
    }
    for (number, chart) in (1..).zip(&figure.charts) {
        let [title, x, y] = [&chart.title, &chart.x_label, &chart.y_label].map(|label| one_line(label));
        writeln!(text, "# chart {number}: {title}; x: {x}; y: {y}")?;
    }
    writeln!(text, "chart\tseries\tx\ty\tlow\thigh")?;
    for (number, chart) in (1..).zip(&figure.charts) {
        write_chart(text, number, chart)?;
    }
    Ok(())
}

fn write_chart(text: &mut String, number: usize, chart: &Chart) -> std::fmt::Result {
    for (index, line) in chart.lines.iter().take(MOST_LINES).enumerate() {
        let band = chart.bands.get(index).map_or(&[][..], |band| &band.points);
        let spread = |x: f64| band.iter().find(|(at, low, high)| *at == x && !low.is_nan() && !high.is_nan());
        for (x, y) in parts(&line.points, chart.axes).concat() {
            let name = one_line(&line.name);
            write!(text, "{number}\t{name}\t{}\t{}\t", value(x), value(y))?;
            match spread(x) {
                Some((_, low, high)) => writeln!(text, "{}\t{}", value(*low), value(*high))?,
                None => writeln!(text, "\t")?,
            }
        }
    }
    for (index, band) in chart.bands.iter().enumerate() {
        let line = chart.lines.get(index).map_or(&[][..], |line| &line.points);
        // The others stand beside the points of the line.
        let alone = |(x, ..): &&(f64, f64, f64)| !line.iter().any(|(at, y)| at == x && !y.is_nan());
        let name = match (&band.name, chart.rows.get(index)) {
            (name, Some(row)) if name.is_empty() => row,
            (name, _) => name,
        };
        for (x, low, high) in band_parts(&band.points, chart.axes).concat().iter().filter(alone) {
            writeln!(
                text,
                "{number}\t{}\t{}\t\t{}\t{}",
                one_line(name),
                value(*x),
                value(*low),
                value(*high)
            )?;
        }
    }
    for dots in &chart.dots {
        for (x, y) in dots.points.iter().filter(|point| is_shown(**point, chart.axes)) {
            writeln!(text, "{number}\t{}\t{}\t{}\t\t", one_line(&dots.name), value(*x), value(*y))?;
        }
    }
    Ok(())
}

/// Replaces characters that would end a field or a line.
fn one_line(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

/// Formats a value with nine digits.
fn value(value: f64) -> String {
    format!("{value:.8e}").parse::<f64>().unwrap_or(value).to_string()
}
