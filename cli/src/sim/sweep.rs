//! Sweeps: every combination of values, each a run.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::run::{self, Outcome, Progress};
use super::summary::{Place, print_table};
use super::{Args, common, parse_set, shipped};
use crate::terminal::Output;

/// A name and the values that it is to have, one after the other.
pub(super) type Sweep = (String, Vec<String>);

/// What is swept: what the scenario proposes, if that is asked for and nothing else is said of it, and what the user wants.
pub(super) fn sweeps(args: &Args, source: &shipped::Source) -> anyhow::Result<Vec<Sweep>> {
    if !args.sweeps {
        return Ok(args.sweep.clone());
    }
    let common = common(args);
    let mut sweeps = source.parse(&common)?.sweeps;
    ensure!(
        !sweeps.is_empty(),
        "the scenario proposes no sweep: it has no [[sweep]] table; use --sweep NAME=A,B,C"
    );
    let said = |name: &str| {
        common.iter().any(|(known, _)| known == name) || args.sweep.iter().any(|(known, _)| known == name)
    };
    sweeps.retain(|(name, _)| !said(name));
    sweeps.extend_from_slice(&args.sweep);
    Ok(sweeps)
}

/// One run of a sweep.
#[derive(Clone, Debug)]
pub(super) struct Combination {
    /// Its number, and how many there are.
    pub(super) place: Place,
    /// The values that it sets.
    pub(super) set: Vec<(String, String)>,
}

/// Every combination of the values that are swept, the last one changing fastest.
pub(super) fn combinations(args: &Args, sweeps: &[Sweep]) -> Vec<Combination> {
    let mut all = vec![common(args)];
    for (name, values) in sweeps {
        let longer = all.iter().flat_map(|set| {
            values.iter().map(|value| {
                let mut set = set.clone();
                set.push((name.clone(), value.clone()));
                set
            })
        });
        all = longer.collect();
    }
    let of = all.len();
    let combination = |(index, set)| Combination { place: Place { index, of }, set };
    all.into_iter().enumerate().map(combination).collect()
}

/// Says what is wrong with a combination, before hours are spent on others. Returns the files that the runs will read.
pub(super) fn check(source: &shipped::Source, combinations: &[Combination]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = source.file().map(Path::to_owned).into_iter().collect();
    for Combination { place, set } in combinations {
        let parsed = source.parse_with_files(set);
        let (_, named) = parsed.with_context(|| format!("combination {}", place.index))?;
        files.extend(named.iter().map(|(name, _)| source.path(name)));
        files.sort();
        files.dedup();
    }
    Ok(files)
}

/// Runs what can be run and prints it, whatever becomes of the others.
pub(super) fn run_sweep(
    args: &Args,
    source: &shipped::Source,
    mut combinations: Vec<Combination>,
    output: &mut Output,
) -> anyhow::Result<()> {
    if let Some(index) = args.index {
        ensure!(
            index < combinations.len(),
            "there are {} combinations; --index goes from 0 on",
            combinations.len()
        );
        combinations = vec![combinations.swap_remove(index)];
    }
    check(source, &combinations)?;
    let progress = Progress::new(!args.json);
    let Outcome { summaries, failures } = run::all(source, &combinations, args.out.as_deref(), &progress)?;
    progress.clear();
    if args.json {
        serde_json::to_writer_pretty(&mut *output, &summaries)?;
        writeln!(output)?;
    } else if !summaries.is_empty() {
        print_table(output, &summaries)?;
    }
    ensure!(
        failures.is_empty(),
        "{} of {} runs failed:\n{}",
        failures.len(),
        combinations.len(),
        failures.join("\n")
    );
    Ok(())
}

/// Values are separated by semicolons if there is one, else by commas: those of congestion controls have commas.
pub(super) fn parse_sweep(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = parse_set(text).map_err(|_| "write NAME=A,B,C")?;
    let separator = if values.contains(';') { ';' } else { ',' };
    let values: Vec<String> = values.split(separator).map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) { Err("a value is empty".to_owned()) } else { Ok((name, values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_sweep() {
        let (name, values) = parse_sweep("flows.0.degree=2, 8,16").unwrap();
        assert_eq!((name.as_str(), values.join(" ").as_str()), ("flows.0.degree", "2 8 16"));
        let (_, values) = parse_sweep("host.congestion=dcqcn:paper,rpg_ai_rate=40;none").unwrap();
        assert_eq!(values, ["dcqcn:paper,rpg_ai_rate=40", "none"]);
        assert!(parse_sweep("a=1,,2").is_err() && parse_sweep("a").is_err());
    }
}
