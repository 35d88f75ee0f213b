//! `--merge`: runs of one sweep that were made one by one.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::Args;
use super::summary::{Place, Summary, print_table};
use crate::terminal::Output;

pub(super) fn merge(args: &Args, dir: &Path, output: &mut Output) -> anyhow::Result<ExitCode> {
    let runs = read(dir)?;
    for doubt in missing(&runs).into_iter().chain(differences(&runs)) {
        tracing::warn!("{}: {doubt}", dir.display());
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *output, &runs)?;
        writeln!(output)?;
    } else {
        print_table(output, &runs)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The runs in a directory, in the order of their sweep.
fn read(dir: &Path) -> anyhow::Result<Vec<Summary>> {
    let reading = || format!("reading the directory {}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(reading)? {
        files.push(entry.with_context(reading)?.path().join("summary.json"));
    }
    files.retain(|file| file.is_file());
    files.sort();
    if files.is_empty() {
        bail!("no run lies in {}: each is a directory with a summary.json", dir.display());
    }
    let mut runs = files.iter().map(|file| read_one(file)).collect::<anyhow::Result<Vec<_>>>()?;
    runs.sort_by_key(|run| run.combination.map(|place| place.index));
    Ok(runs)
}

fn read_one(file: &Path) -> anyhow::Result<Summary> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no summary of a run", file.display()))
}

/// What there should be of a sweep and is not. Nothing is known of runs that do not say which they are.
fn missing(runs: &[Summary]) -> Vec<String> {
    let places: Vec<Place> = runs.iter().filter_map(|run| run.combination).collect();
    let Some(of) = places.iter().map(|place| place.of).max() else { return Vec::new() };
    let indexes: BTreeSet<usize> = places.iter().map(|place| place.index).collect();
    let mut doubts = Vec::new();
    // A list of them all may be as long as the sweep.
    let some: Vec<String> = (0..of)
        .filter(|index| !indexes.contains(index))
        .take(MOST_NAMED)
        .map(|index| index.to_string())
        .collect();
    if !some.is_empty() {
        let count = of - indexes.range(..of).count();
        let more = if count > some.len() { ", …" } else { "" };
        doubts.push(format!("{count} of {of} runs are missing: --index {}{more}", some.join(", ")));
    }
    if indexes.len() < places.len() {
        doubts.push("some runs are there twice".to_owned());
    }
    let silent = runs.len() - places.len();
    if silent > 0 {
        doubts.push(format!("{silent} runs do not say which combination of a sweep they are"));
    }
    doubts
}

/// The most missing runs that are named.
const MOST_NAMED: usize = 20;

/// Something about a run, if it says so.
type Property = fn(&Summary) -> Option<String>;

/// In what the runs differ although all runs of a sweep have it in common.
fn differences(runs: &[Summary]) -> Vec<String> {
    let table: [(&str, Property); 5] = [
        ("scenario", |run| Some(run.scenario.clone())),
        ("text of the scenario (hash)", |run| run.scenario_hash.clone()),
        ("version", |run| Some(run.version.clone())),
        ("what is set", |run| Some(names(&run.set))),
        ("number of combinations", |run| Some(run.combination?.of.to_string())),
    ];
    let mut doubts = Vec::new();
    for (what, of) in table {
        let values: BTreeSet<String> = runs.iter().filter_map(of).collect();
        if values.len() > 1 {
            let values: Vec<String> = values.into_iter().collect();
            doubts
                .push(format!("the runs are not of one sweep, they differ in {what}: {}", values.join("; ")));
        }
    }
    doubts
}

/// Which values are set, whatever they are.
fn names(set: &[(String, String)]) -> String {
    set.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
}
