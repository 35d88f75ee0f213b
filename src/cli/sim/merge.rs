//! `--merge`: runs of one sweep that were made one by one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::Args;
use super::summary::{Summary, print_table};
use crate::cli::terminal::Output;

pub(super) fn merge(args: &Args, dir: &Path, output: &mut Output) -> anyhow::Result<ExitCode> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("reading the directory {}", dir.display()))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path().join("summary.json"))).collect();
    files.retain(|file| file.is_file());
    files.sort();
    if files.is_empty() {
        bail!("no run lies in {}: each is a directory with a summary.json", dir.display());
    }
    let mut summaries = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let summary: Summary = serde_json::from_str(&text)
            .with_context(|| format!("{} is no summary of a run", file.display()))?;
        summaries.push(summary);
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *output, &summaries)?;
        writeln!(output)?;
    } else {
        print_table(output, &summaries)?;
    }
    Ok(ExitCode::SUCCESS)
}
