//! Sweeps: every combination of values, each a run.

use anyhow::ensure;

use super::run::{self, Progress};
use super::summary::{Summary, print_table};
use super::{Args, common, parse_set, shipped};
use crate::cli::terminal::Output;

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

/// Every combination of the values that are swept, the last one changing fastest.
pub(super) fn combinations(args: &Args, sweeps: &[Sweep]) -> Vec<Vec<(String, String)>> {
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
    all
}

pub(super) fn run_sweep(
    args: &Args,
    source: &shipped::Source,
    mut sets: Vec<Vec<(String, String)>>,
    output: &mut Output,
) -> anyhow::Result<Vec<Summary>> {
    let first = args.index.unwrap_or(0);
    if let Some(index) = args.index {
        ensure!(index < sets.len(), "there are {} combinations; --index goes from 0 on", sets.len());
        sets = vec![sets.swap_remove(index)];
    }
    // What is wrong with a combination is said before hours are spent on others.
    for set in &sets {
        source.parse(set)?;
    }
    let progress = Progress::new(!args.json);
    let summaries = run::all(source, &sets, args.out.as_deref(), first, &progress)?;
    progress.clear();
    if !args.json {
        print_table(output, &summaries)?;
    }
    Ok(summaries)
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
