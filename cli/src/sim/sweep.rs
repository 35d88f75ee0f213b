//! Sweeps, which run every combination of values once.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::memory::Budget;
use super::run::{self, Limits, Outcome, Progress};
use super::summary::{RunIndex, print_table};
use super::{Args, common, failures, groups, overview, parse_set, shipped};
use crate::terminal::Output;
use crate::trace::TraceFile;

/// A name and its values.
pub(super) type Sweep = (String, Vec<String>);

/// Returns the sweeps of the command line. With --sweeps, it adds the sweeps of the scenario whose names are
/// not set otherwise.
pub(super) fn sweeps(args: &Args, source: &shipped::Source) -> anyhow::Result<Vec<Sweep>> {
    let seeds = seeds(args, source)?;
    if !args.sweeps {
        return Ok(args.sweep.iter().cloned().chain(seeds).collect());
    }
    let common = common(args);
    let mut sweeps = source.parse(&common)?.sweeps;
    ensure!(!sweeps.is_empty(), "the scenario has no [[sweep]] table; use --sweep NAME=A,B,C");
    let is_set = |name: &str| {
        common.iter().any(|(known, _)| known == name) || args.sweep.iter().any(|(known, _)| known == name)
    };
    sweeps.retain(|(name, _)| !is_set(name) && (name != "seed" || seeds.is_none()));
    sweeps.extend_from_slice(&args.sweep);
    sweeps.extend(seeds);
    Ok(sweeps)
}

/// Returns the seeds of --seeds. They change fastest, so that the runs of a group are adjacent.
fn seeds(args: &Args, source: &shipped::Source) -> anyhow::Result<Option<Sweep>> {
    let Some(count) = args.seeds else { return Ok(None) };
    ensure!(
        args.sweep.iter().all(|(name, _)| name != "seed"),
        "--seeds and --sweep seed=… cannot be used together"
    );
    let first = match args.seed {
        Some(seed) => seed,
        None => source.parse(&common(args))?.settings.seed,
    };
    let last = first.saturating_add(count - 1);
    ensure!(last <= super::MAX_SEED, "the last seed would be {last}; the largest is {}", super::MAX_SEED);
    Ok(Some(("seed".to_owned(), (first..=last).map(|seed| seed.to_string()).collect())))
}

/// One run of a sweep.
#[derive(Clone, Debug)]
pub(super) struct Combination {
    /// The index of the combination, and the number of combinations.
    pub(super) place: RunIndex,
    /// The values to set.
    pub(super) set: Vec<(String, String)>,
}

/// Maximum number of combinations: more than a cluster runs, and few enough to store and to check.
const MOST_COMBINATIONS: usize = 100_000;

/// Returns every combination of the swept values. The last name changes fastest.
pub(super) fn combinations(args: &Args, sweeps: &[Sweep]) -> anyhow::Result<Vec<Combination>> {
    let count = sweeps.iter().try_fold(1_usize, |count, (_, values)| count.checked_mul(values.len()));
    ensure!(
        count.is_some_and(|count| count <= MOST_COMBINATIONS),
        "the sweep has more than {MOST_COMBINATIONS} combinations; sweep fewer names or fewer values of each"
    );
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
    let combination = |(index, set)| Combination { place: RunIndex { index, of }, set };
    Ok(all.into_iter().enumerate().map(combination).collect())
}

/// The result of the check of all combinations before the first run.
pub(super) struct Checked {
    /// The files that the runs read.
    pub(super) files: Vec<PathBuf>,
    /// The minimum memory of the largest run.
    pub(super) largest: u64,
}

/// Checks all combinations before the first run.
pub(super) fn check(source: &shipped::Source, combinations: &[Combination]) -> anyhow::Result<Checked> {
    let mut largest = 0;
    let mut files: Vec<PathBuf> = source.file().map(Path::to_owned).into_iter().collect();
    for Combination { place, set } in combinations {
        let parsed = source.parse_with_files(set);
        let (scenario, named) = parsed.with_context(|| format!("combination {}", place.index))?;
        largest = largest.max(scenario.memory().least());
        files.extend(named.iter().map(|(name, _)| source.path(name)));
        files.sort();
        files.dedup();
    }
    Ok(Checked { files, largest })
}

/// Runs the combinations and prints the completed runs, even if others fail.
pub(super) fn run_sweep(
    args: &Args,
    source: &shipped::Source,
    mut combinations: Vec<Combination>,
    trace: Option<&TraceFile>,
    output: &mut Output,
) -> anyhow::Result<()> {
    if let Some(index) = args.index {
        ensure!(
            index < combinations.len(),
            "--index is out of range: there are {} combinations, starting at 0",
            combinations.len()
        );
        combinations = vec![combinations.swap_remove(index)];
    }
    let Checked { largest, .. } = check(source, &combinations)?;
    let limits = Limits { threads: args.threads, budget: Budget::new(args.memory), largest };
    let progress = Progress::new(!args.json);
    let Outcome { summaries, failures } =
        run::all(source, &combinations, (args.out.as_deref(), trace), limits, &progress)?;
    progress.clear();
    if let Some(out) = args.out.as_deref().filter(|_| args.index.is_none() && !summaries.is_empty()) {
        overview::write(out, &summaries)?;
    }
    if args.json {
        crate::document::print(output, "sim-sweep", &groups::document(&summaries))?;
    } else if !summaries.is_empty() {
        print_table(output, &summaries)?;
        groups::print_seeds(output, &summaries)?;
    }
    ensure!(
        failures.is_empty(),
        "{} of {} runs failed:\n{}",
        failures.len(),
        combinations.len(),
        failures.join("\n")
    );
    failures::ensure_none_of(&summaries)
}

/// Parses a sweep. Values are separated by semicolons if there is one, otherwise by commas. The values of
/// congestion control contain commas.
pub(super) fn parse_sweep(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = parse_set(text).map_err(|_| "expected NAME=A,B,C")?;
    let separator = if values.contains(';') { ';' } else { ',' };
    let values: Vec<String> = values.split(separator).map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) { Err("a value is empty".to_owned()) } else { Ok((name, values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_split_at_semicolons_or_commas() {
        let (name, values) = parse_sweep("flows.0.degree=2, 8,16").unwrap();
        assert_eq!((name.as_str(), values.join(" ").as_str()), ("flows.0.degree", "2 8 16"));
        let (_, values) = parse_sweep("host.congestion=dcqcn:paper,rpg_ai_rate=40;none").unwrap();
        assert_eq!(values, ["dcqcn:paper,rpg_ai_rate=40", "none"]);
        assert!(parse_sweep("a=1,,2").is_err() && parse_sweep("a").is_err());
    }
}
