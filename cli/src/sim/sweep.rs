//! Sweeps, which run every combination of values once, on all cores.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use roce_report::{RunIndex, Series, Summary, assignments, remove_summary, sweep_document, write_sweep};

use super::args::{Args, MAX_SEED, Sweep};
use super::failures;
use super::figure::FigureFile;
use super::memory::Budget;
use super::print::{print_seeds, print_table};
use super::run::{Job, Next, Progress, Ran, STRIDE, write_report};
use super::shipped::{Source, print_warnings};
use crate::terminal::Output;
use crate::trace::TraceFile;

/// Returns the sweeps of the command line. With --sweeps, it adds the sweeps of the scenario whose names are
/// not set otherwise.
pub(super) fn sweeps(args: &Args, source: &Source) -> anyhow::Result<Vec<Sweep>> {
    let seeds = seeds(args, source)?;
    if !args.sweeps {
        return Ok(args.sweep.iter().cloned().chain(seeds).collect());
    }
    let common = args.common();
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
fn seeds(args: &Args, source: &Source) -> anyhow::Result<Option<Sweep>> {
    let Some(count) = args.seeds else { return Ok(None) };
    ensure!(
        args.sweep.iter().all(|(name, _)| name != "seed"),
        "--seeds and --sweep seed=… cannot be used together"
    );
    let first = match args.seed {
        Some(seed) => seed,
        None => source.parse(&args.common())?.settings.seed,
    };
    let last = first.saturating_add(count - 1);
    ensure!(last <= MAX_SEED, "the last seed would be {last}; the largest is {MAX_SEED}");
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
    let mut all = vec![args.common()];
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
pub(super) fn check(source: &Source, combinations: &[Combination]) -> anyhow::Result<Checked> {
    let mut largest = 0;
    let mut files: Vec<PathBuf> = source.file().map(Path::to_owned).into_iter().collect();
    for Combination { place, set } in combinations {
        let parsed = source.parse_with_files(set);
        let (scenario, named) = parsed.with_context(|| format!("combination {}", place.index))?;
        if largest == 0 {
            print_warnings(&scenario);
        }
        largest = largest.max(scenario.memory().least());
        files.extend(named.iter().map(|(name, _)| source.path(name)));
        files.sort();
        files.dedup();
    }
    Ok(Checked { files, largest })
}

/// The results of a sweep.
#[derive(Debug, Default)]
struct Outcome {
    /// Summaries of the completed runs, in the order of the combinations.
    summaries: Vec<Summary>,
    /// The failed runs and their errors.
    failures: Vec<String>,
    /// The points of the completed runs that a figure needs, by the index of the combination.
    points: BTreeMap<usize, Vec<(f64, f64)>>,
}

/// The results that the runs of a sweep keep.
#[derive(Clone, Copy)]
struct Kept<'a> {
    /// The parent directory of the runs' directories.
    out: Option<&'a Path>,
    /// The file for the trace events of a single combination.
    trace: Option<&'a TraceFile>,
    /// The points that a figure needs.
    series: Option<Series>,
}

/// A completed run of a sweep, and the points that a figure needs of it.
type Ended = (Summary, Vec<(f64, f64)>);

/// The limits of the runs of a sweep.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Threads of each run.
    threads: usize,
    /// The memory of all runs together.
    budget: Budget,
    /// The minimum memory of the largest run.
    largest: u64,
}

/// Runs every combination. The number of simultaneous runs depends on cores and memory. A failed run does not
/// affect the others.
fn run_all(
    source: &Source,
    combinations: &[Combination],
    kept: Kept<'_>,
    limits: Limits,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<anyhow::Result<Ended>>>> =
        Mutex::new(combinations.iter().map(|_| None).collect());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = (cores / limits.threads.max(1)).clamp(1, combinations.len().max(1));
    let at_once = limits.budget.runs_at_once(limits.largest, at_once);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let number = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(combination) = combinations.get(number)
                {
                    let result = run_one(source, combination, kept, limits);
                    if let Ok(mut results) = results.lock()
                        && let Some(place) = results.get_mut(number)
                    {
                        *place = Some(result);
                    }
                    progress.show_runs(ended.fetch_add(1, Ordering::Relaxed) + 1, combinations.len());
                }
            });
        }
    });
    let results = results.into_inner().ok().context("a run panicked")?;
    let mut outcome = Outcome::default();
    for (Combination { place, set }, result) in combinations.iter().zip(results) {
        match result.context("the run did not end").and_then(|result| result) {
            Ok((summary, points)) => {
                outcome.summaries.push(summary);
                outcome.points.insert(place.index, points);
            }
            Err(error) => {
                outcome.failures.push(format!(
                    "combination {}, {}: {error:#}",
                    place.index,
                    assignments(set)
                ));
            }
        }
    }
    Ok(outcome)
}

/// Runs one combination into its directory.
fn run_one(
    source: &Source,
    combination: &Combination,
    Kept { out, trace, series }: Kept<'_>,
    Limits { threads, budget, .. }: Limits,
) -> anyhow::Result<Ended> {
    let (set, trace) = (combination.set.clone(), trace.cloned());
    let job = Job { set, capture: Vec::new(), dir: None, ladder: None, trace, threads, budget };
    let dir = out.map(|out| out.join(format!("{:05}", combination.place.index)));
    if let Some(dir) = &dir {
        remove_summary(dir)?;
    }
    let Ran { mut completed, .. } = job.run(source, &mut |_, _| Ok(Next::Events(STRIDE)))?;
    completed.summary.combination = Some(combination.place);
    if let Some(dir) = &dir {
        write_report(dir, &completed)?;
    }
    let points = series.map(|series| series.of(&completed.results)).unwrap_or_default();
    Ok((completed.summary, points))
}

/// Runs the combinations and prints the completed runs, even if others fail.
pub(super) fn run_sweep(
    args: &Args,
    source: &Source,
    mut combinations: Vec<Combination>,
    (trace, figure): (Option<&TraceFile>, Option<&FigureFile<'_>>),
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
    let out = args.out.as_deref().filter(|_| figure.is_none());
    let kept = Kept { out, trace, series: figure.and_then(|file| file.kind.series()) };
    let Outcome { summaries, failures, points } = run_all(source, &combinations, kept, limits, &progress)?;
    progress.clear();
    if let Some(out) = out.filter(|_| args.index.is_none() && !summaries.is_empty()) {
        write_sweep(out, &summaries)?;
    }
    if args.json {
        crate::document::print(output, "sim-sweep", &sweep_document(&summaries))?;
    } else if !summaries.is_empty() {
        print_table(output, &summaries)?;
        print_seeds(output, &summaries)?;
    }
    if let Some(file) = figure.filter(|_| !summaries.is_empty()) {
        let of = |run: &Summary, _: Series| {
            run.combination.and_then(|place| points.get(&place.index)).cloned().unwrap_or_default()
        };
        file.write(&file.kind.of_runs(&summaries, &of)?)?;
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
