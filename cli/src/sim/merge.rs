//! `--merge`: combines the runs of a sweep that were executed separately.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use roce_machine::text_file;
use roce_report::{RunIndex, Series, Summary, points_in, sweep_document, write_sweep};

use super::args::Args;
use super::failures;
use super::figure::FigureFile;
use super::print::{print_seeds, print_table};
use crate::terminal::Output;

pub(super) fn merge(args: &Args, dir: &Path, output: &mut Output) -> anyhow::Result<ExitCode> {
    let figure = FigureFile::of(args)?;
    let runs = read(dir)?;
    for warning in missing(&runs).into_iter().chain(differences(&runs)) {
        tracing::warn!("{}: {warning}", dir.display());
    }
    // The table is printed even if nothing can be written.
    if figure.is_none()
        && let Err(error) = write_sweep(dir, &runs).map_err(anyhow::Error::from)
    {
        tracing::warn!("the report of all runs is missing: {error:#}");
    }
    if args.json {
        crate::document::print(output, "sim-sweep", &sweep_document(&runs))?;
    } else {
        print_table(output, &runs)?;
        print_seeds(output, &runs)?;
    }
    if let Some(file) = figure {
        let read = |run: &Summary, series: Series| points_in(dir, run, series);
        file.write(&file.kind.of_runs(&runs, &read)?)?;
    }
    failures::ensure_none_of(&runs)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the runs in a directory, in the order of the sweep.
fn read(dir: &Path) -> anyhow::Result<Vec<Summary>> {
    let reading = || format!("cannot read the directory {}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(reading)? {
        files.push(entry.with_context(reading)?.path().join("summary.json"));
    }
    files.retain(|file| file.is_file());
    files.sort();
    if files.is_empty() {
        bail!("{} contains no runs; a run is a directory with a summary.json", dir.display());
    }
    let mut runs = files.iter().map(|file| read_one(file)).collect::<anyhow::Result<Vec<_>>>()?;
    runs.sort_by_key(|run| run.combination.map(|place| place.index));
    Ok(runs)
}

fn read_one(file: &Path) -> anyhow::Result<Summary> {
    let text = text_file::read_text(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not the summary of a run", file.display()))
}

/// Returns warnings about missing, duplicate and unidentified runs of a sweep.
fn missing(runs: &[Summary]) -> Vec<String> {
    let places: Vec<RunIndex> = runs.iter().filter_map(|run| run.combination).collect();
    let Some(of) = places.iter().map(|place| place.of).max() else { return Vec::new() };
    let indexes: BTreeSet<usize> = places.iter().map(|place| place.index).collect();
    let mut warnings = Vec::new();
    // The list is limited, because it could be as long as the sweep.
    let some: Vec<String> = (0..of)
        .filter(|index| !indexes.contains(index))
        .take(MAX_NAMED)
        .map(|index| index.to_string())
        .collect();
    if !some.is_empty() {
        let count = of - indexes.range(..of).count();
        let more = if count > some.len() { ", …" } else { "" };
        warnings.push(format!("{count} of {of} runs are missing: --index {}{more}", some.join(", ")));
    }
    if indexes.len() < places.len() {
        warnings.push("some runs occur twice".to_owned());
    }
    let unidentified = runs.len() - places.len();
    if unidentified > 0 {
        warnings.push(format!("{unidentified} runs have no combination index"));
    }
    warnings
}

/// Maximum number of missing runs that are listed.
const MAX_NAMED: usize = 20;

/// A property of a run, if its summary has it.
type Property = fn(&Summary) -> Option<String>;

/// Returns warnings about properties that differ, although all runs of a sweep share them.
fn differences(runs: &[Summary]) -> Vec<String> {
    let table: [(&str, Property); 5] = [
        ("scenario", |run| Some(run.scenario.clone())),
        ("text of the scenario (hash)", |run| run.scenario_hash.clone()),
        ("version", |run| Some(run.version.clone())),
        ("names of the set values", |run| Some(names(&run.set))),
        ("number of combinations", |run| Some(run.combination?.of.to_string())),
    ];
    let mut warnings = Vec::new();
    for (what, of) in table {
        let values: BTreeSet<String> = runs.iter().filter_map(of).collect();
        if values.len() > 1 {
            let values: Vec<String> = values.into_iter().collect();
            warnings.push(format!(
                "the runs belong to different sweeps; they differ in {what}: {}",
                values.join("; ")
            ));
        }
    }
    warnings
}

/// Returns the names of the set values.
fn names(set: &[(String, String)]) -> String {
    set.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
}
