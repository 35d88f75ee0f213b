//! The report: figures as files, and one page with all of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::conclusions::{CONCLUSIONS, Conclusion, Judgement, Verdict};
use super::figures::{Figure, figures};
use super::grid::{Carrier, Device, Test};
use super::run::{DISTURBED, Ended};
use super::store::{Store, StoreError};
use roce_plot::{Width, dark_style, escape};

/// Maximum number of listed reasons.
const MOST_REASONS: usize = 40;

/// The background of dark pages.
const DARK: &str = "#16181c";
const STYLE: &str = ":root{color-scheme:light dark}\
    body{font-family:Helvetica,Arial,sans-serif;max-width:960px;margin:24px auto;padding:0 16px;color:#222;background:#fff}\
    table{border-collapse:collapse;margin:12px 0}td,th{border:1px solid #ccc;padding:4px 8px;text-align:left;vertical-align:top}\
    th{background:#f4f4f4}.holds{color:#2e7031;font-weight:bold}.does-not-hold{color:#a8321b;font-weight:bold}\
    .not-measured{color:#777}.rule{color:#555;font-size:90%}figure{margin:24px 0}figcaption{color:#555}\
    svg{max-width:100%;height:auto}";

/// Returns the rules for dark pages.
fn dark_rules() -> String {
    format!(
        "@media(prefers-color-scheme:dark){{body{{color:#e4e4e4;background:{DARK}}}th{{background:#26292f}}\
         td,th{{border-color:#3a3d44}}a{{color:#8ab8ff}}.holds{{color:#7ee787}}.does-not-hold{{color:#ff9b8f}}\
         .not-measured,.rule,figcaption{{color:#a0a0a0}}{}}}",
        dark_style(DARK)
    )
}

/// Writes the figures and `report.html` into a directory, and returns the path of the page.
///
/// # Errors
///
/// A file cannot be written; the error contains its path.
pub fn write_report(dir: &Path, store: &Store, ended: &Ended) -> Result<PathBuf, (PathBuf, io::Error)> {
    let figures = figures(store.rows());
    let save = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| (path.clone(), error))?;
        Ok(path)
    };
    for figure in &figures {
        let plot = figure.plot();
        save(&format!("{}.svg", figure.name), &plot.to_svg(Width::Screen))?;
        save(&format!("{}.tsv", figure.name), &plot.to_table())?;
    }
    save("report.html", &page(store, ended, &figures))
}

/// Draws one figure of the rows in a directory for a paper, as SVG, PDF and table, and returns the paths of
/// the files. A figure of a study on another machine can be drawn too.
///
/// # Errors
///
/// The rows cannot be read, they have no figure of this name, or a file cannot be written.
pub fn draw_figure(dir: &Path, name: &str, width: Width) -> Result<Vec<PathBuf>, DrawError> {
    let (identity, rows) = Store::read(dir)?;
    let all = figures(&rows);
    let figure = all.iter().find(|figure| figure.name == name).ok_or_else(|| DrawError::Unknown {
        name: name.to_owned(),
        known: all.iter().map(|figure| figure.name.as_str()).collect::<Vec<_>>().join(", "),
    })?;
    let mut plot = figure.plot();
    // A single chart has its title in the caption.
    let title = plot.charts.first_mut().map(|chart| std::mem::take(&mut chart.title)).unwrap_or_default();
    plot.caption = format!("{title}. {} roce {} on {}.", plot.caption, identity.version, identity.machine);
    let files = [
        ("svg", plot.to_svg(width).into_bytes()),
        ("pdf", plot.to_pdf(width)),
        ("tsv", plot.to_table().into_bytes()),
    ];
    let save = |(ending, bytes): (&str, Vec<u8>)| {
        let path = dir.join(format!("{name}.{ending}"));
        std::fs::write(&path, bytes).map_err(|error| DrawError::Write { path: path.clone(), error })?;
        Ok(path)
    };
    files.into_iter().map(save).collect()
}

/// The reason why a figure cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The rows cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rows have no figure of this name.
    #[error("the measured cells have no figure {name}; they have {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names of all figures.
        known: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

fn page(store: &Store, ended: &Ended, figures: &[Figure]) -> String {
    let mut html = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut html, store, ended, figures);
    html
}

fn write_page(html: &mut String, store: &Store, ended: &Ended, figures: &[Figure]) -> std::fmt::Result {
    let identity = store.identity();
    writeln!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>roce study</title><style>{STYLE}{}</style></head><body>\n\
         <h1>Which conclusions of the RDMA performance study hold for a software NIC</h1>\n\
         <p>The grid of MacArthur and Russell, \"A Performance Study to Guide RDMA Programming Decisions\" (2012), measured with \
         roce {}, {} grid, both sides on one machine: {}. The rows are in <code>study.csv</code>.</p>",
        dark_rules(),
        escape(&identity.version),
        escape(&identity.grid),
        escape(&identity.machine)
    )?;
    let measured = store.rows().values().filter(|outcome| outcome.is_ok()).count();
    writeln!(
        html,
        "<p>{measured} cells were measured, {} could not be measured{}.</p>",
        store.rows().len() - measured,
        {
            if ended.missing == 0 {
                String::new()
            } else {
                format!(", and {} are missing; run the same command to measure them", ended.missing)
            }
        }
    )?;
    let disturbed = disturbed(store);
    if disturbed > 0 {
        writeln!(
            html,
            "<p class=\"does-not-hold\">Other processes used more than {DISTURBED} % of a processor while \
             {disturbed} of the cells were measured, so their numbers are unreliable. The column \
             <code>others_cpu_percent</code> contains the use by other processes.</p>"
        )?;
    }
    write_devices(html, store, ended)?;
    write_verdicts(html, store)?;
    let mut device = None;
    for (index, figure) in figures.iter().enumerate() {
        if index == 0 || figure.device != device {
            device = figure.device;
            let of = device.map_or("all devices", Device::name);
            writeln!(html, "<h2>Figures of {of}</h2>")?;
        }
        writeln!(
            html,
            "<figure id=\"{0}\"><figcaption><b>{0}.svg</b></figcaption>\n{1}</figure>",
            figure.name,
            figure.plot().to_svg(Width::Screen)
        )?;
    }
    write_reasons(html, store)?;
    writeln!(html, "</body></html>")
}

/// Returns how many cells were measured while other processes used more than `DISTURBED` percent of a
/// processor.
#[must_use]
pub fn disturbed(store: &Store) -> usize {
    let rows = store.rows().values().filter_map(|outcome| outcome.as_ref().ok());
    rows.filter(|measured| measured.others_cpu.is_some_and(|others| others > DISTURBED)).count()
}

/// Writes which devices were used, their limits, and why the others were not.
fn write_devices(html: &mut String, store: &Store, ended: &Ended) -> std::fmt::Result {
    writeln!(
        html,
        "<h2>Devices</h2>\n<table><tr><th>device</th><th>limit, 4 KiB frames</th><th>limit, half a round trip</th>\
         <th>WRITE, 64 KiB</th><th>SEND, 8 bytes</th></tr>"
    )?;
    for device in Device::ALL {
        if let Some(reason) = ended.unusable.get(&device) {
            writeln!(
                html,
                "<tr><td>{}</td><td colspan=\"4\">cannot be used: {}</td></tr>",
                device.name(),
                escape(reason)
            )?;
            continue;
        }
        if !store.devices().contains(&device) {
            continue;
        }
        let get = |test, carrier, size| {
            let cell = super::grid::Cell::new(device, test, carrier, size);
            store.rows().get(&cell).and_then(|outcome| outcome.as_ref().ok())
        };
        let speed = |carrier, size| {
            let found = get(Test::Blast, carrier, size);
            found.map_or_else(|| "–".to_owned(), |measured| format!("{:.1} Gb/s", measured.gigabits_per_s))
        };
        let time = |carrier, size| {
            let found = get(Test::Ping, carrier, size).and_then(super::measured::Measured::median);
            found.map_or_else(|| "–".to_owned(), |median| format!("{median:.1} µs"))
        };
        writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            device.name(),
            speed(Carrier::Limit, 4 << 10),
            time(Carrier::Limit, 16),
            speed(Carrier::Write, 64 << 10),
            time(Carrier::Send, 8)
        )?;
    }
    writeln!(html, "</table>")
}

/// Writes the verdict of each conclusion on each device.
fn write_verdicts(html: &mut String, store: &Store) -> std::fmt::Result {
    writeln!(html, "<h2>Conclusions</h2>")?;
    write_overview(html, store)?;
    for conclusion in &CONCLUSIONS {
        writeln!(
            html,
            "<h3 id=\"{}\">{}</h3>\n<p class=\"rule\">Rule: {} <a href=\"#{figure}\">{figure}</a></p>\n<table>",
            conclusion.id,
            escape(conclusion.claim),
            escape(conclusion.rule),
            figure = conclusion.figure
        )?;
        for (device, judgement) in judgements(conclusion, store) {
            writeln!(
                html,
                "<tr><td>{}</td><td class=\"{}\">{}</td><td>{}</td></tr>",
                device.name(),
                class_of(judgement.verdict),
                judgement.verdict.text(),
                escape(&judgement.numbers)
            )?;
        }
        writeln!(html, "</table>")?;
    }
    Ok(())
}

/// Writes all verdicts in one table.
fn write_overview(html: &mut String, store: &Store) -> std::fmt::Result {
    let devices = store.devices();
    write!(html, "<table><tr><th>conclusion</th>")?;
    for device in &devices {
        write!(html, "<th>{}</th>", device.name())?;
    }
    writeln!(html, "</tr>")?;
    for conclusion in &CONCLUSIONS {
        write!(html, "<tr><td><a href=\"#{}\">{}</a></td>", conclusion.id, escape(conclusion.claim))?;
        for device in &devices {
            let verdict = conclusion.judge(store.rows(), *device).verdict;
            let text = if verdict == Verdict::NotMeasured { "–" } else { verdict.text() };
            write!(html, "<td class=\"{}\">{text}</td>", class_of(verdict))?;
        }
        writeln!(html, "</tr>")?;
    }
    writeln!(html, "</table>")
}

/// Returns the class of a cell with a verdict in [`STYLE`].
fn class_of(verdict: Verdict) -> String {
    verdict.text().replace(' ', "-")
}

/// Returns the judgements of the first device, and of the other devices that have numbers.
fn judgements(conclusion: &Conclusion, store: &Store) -> Vec<(Device, Judgement)> {
    let devices = store.devices();
    let all = devices.iter().map(|device| (*device, conclusion.judge(store.rows(), *device)));
    all.enumerate()
        .filter(|(index, (_, judgement))| *index == 0 || judgement.verdict != Verdict::NotMeasured)
        .map(|(_, pair)| pair)
        .collect()
}

/// Writes the reasons why cells have no numbers, grouped by reason.
fn write_reasons(html: &mut String, store: &Store) -> std::fmt::Result {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (cell, outcome) in store.rows() {
        if let Err(reason) = outcome {
            reasons.entry(reason).or_default().push(cell.key());
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    writeln!(html, "<h2>Cells without numbers</h2>\n<table><tr><th>reason</th><th>cells</th></tr>")?;
    for (reason, cells) in reasons.iter().take(MOST_REASONS) {
        writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(reason), escape(&cells.join(", ")))?;
    }
    writeln!(html, "</table>")
}
