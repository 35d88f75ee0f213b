//! Finding a scenario: a file, or one of the shipped scenarios.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use roce_scenario::{SHIPPED, Scenario, Whole, contents, shipped};
use serde_json::{Value, json};

use crate::algorithms;
use crate::terminal::{Output, Paint};
use roce_machine::text_file;

/// The name and the text of a file.
pub(super) type NamedText = (String, String);

/// The text of a scenario and the directory of its files.
pub(crate) struct Source {
    name: String,
    pub(crate) text: String,
    dir: PathBuf,
    is_shipped: bool,
}

impl Source {
    /// Finds the file of this name, or else the shipped scenario. Directories are ignored, because a report
    /// often has the name of its scenario.
    pub(crate) fn find(name: &str) -> anyhow::Result<Self> {
        let path = Path::new(name);
        if let Some(text) = shipped(name).filter(|_| !path.is_file()) {
            return Ok(Self {
                name: name.to_owned(),
                text: text.to_owned(),
                dir: PathBuf::new(),
                is_shipped: true,
            });
        }
        let text = text_file::read_text(path).with_context(|| {
            let known = SHIPPED.iter().map(|(known, _)| *known);
            let suggestion = roce_fault::closest(name, known).map(|known| format!("did you mean {known}? "));
            let suggestion = suggestion.unwrap_or_default();
            format!(
                "cannot read the scenario {name}; {suggestion}`roce sim --list` shows the shipped scenarios"
            )
        })?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { name: name.to_owned(), text, dir, is_shipped: false })
    }

    /// Parses the scenario with replaced values.
    pub(super) fn parse(&self, set: &[(String, String)]) -> anyhow::Result<Scenario> {
        Ok(self.parse_with_files(set)?.0)
    }

    /// Parses the scenario with replaced values. Also returns the files that it names, in the order of
    /// reading.
    pub(super) fn parse_with_files(
        &self,
        set: &[(String, String)],
    ) -> anyhow::Result<(Scenario, Vec<NamedText>)> {
        let files = RefCell::new(Vec::new());
        let load = |file: &str| {
            let text = self.load(file)?;
            files.borrow_mut().push((file.to_owned(), text.clone()));
            Ok(text)
        };
        let scenario = Scenario::parse_among(&self.text, set, &load, algorithms::registered())
            .map_err(|error| anyhow!("{}: {error}", self.name))?;
        Ok((scenario, files.into_inner()))
    }

    /// Parses the scenario with replaced values. Also returns one text that contains them and the files.
    pub(super) fn parse_whole(&self, set: &[(String, String)]) -> anyhow::Result<Whole> {
        Scenario::parse_whole_with(&self.text, set, &|file| self.load(file), algorithms::registered())
            .map_err(|error| anyhow!("{}: {error}", self.name))
    }

    /// Returns the path of the scenario, if it is not shipped.
    pub(super) fn file(&self) -> Option<&Path> {
        (!self.is_shipped).then_some(Path::new(&self.name))
    }

    /// Returns the path of a file that the scenario names.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Reads a file that the scenario names.
    pub(crate) fn load(&self, file: &str) -> Result<String, String> {
        let path = self.path(file);
        let bytes = text_file::read(&path);
        bytes.map(contents).map_err(|error| format!("cannot read {}: {error}", path.display()))
    }
}

/// Prints the parts of imported files that have no effect.
pub(super) fn print_warnings(scenario: &Scenario) {
    for warning in &scenario.warnings {
        tracing::warn!("{warning}");
    }
}

/// Prints the names of the shipped scenarios with a line for each, for a call without a scenario.
pub(super) fn list_briefly(output: &mut Output) -> anyhow::Result<()> {
    writeln!(
        output,
        "Scenarios that `roce sim NAME` runs; `roce sim --list` describes them, `roce sim FILE` runs your own:\n"
    )?;
    let widest = SHIPPED.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, text) in SHIPPED {
        let scenario = Scenario::parse(text, &|file| Err(format!("{file} is not shipped")))?;
        let first = scenario.description.split_inclusive(". ").next().unwrap_or_default().trim();
        writeln!(output, "  {}  {first}", output.style.paint(Paint::BOLD, format!("{name:widest$}")))?;
    }
    Ok(())
}

/// Prints the shipped scenarios.
pub(super) fn list(json: bool, output: &mut Output) -> anyhow::Result<()> {
    let mut scenarios = Vec::new();
    for (name, text) in SHIPPED {
        let scenario = Scenario::parse(text, &|file| Err(format!("{file} is not shipped")))?;
        scenarios.push((name, scenario));
    }
    if json {
        let one = |(name, scenario): &(&&str, Scenario)| {
            let sweeps: Vec<Value> = scenario
                .sweeps
                .iter()
                .map(|(name, values)| json!({ "name": name, "values": values }))
                .collect();
            json!({
                "name": name, "description": scenario.description, "expected": scenario.expectation,
                "sweeps": sweeps,
            })
        };
        let scenarios: Vec<Value> = scenarios.iter().map(one).collect();
        crate::document::print(output, "sim-list", &json!({ "scenarios": scenarios }))?;
        return Ok(());
    }
    for (name, scenario) in scenarios {
        writeln!(output, "{}", output.style.paint(Paint::BOLD, name))?;
        writeln!(output, "  {}", scenario.description)?;
        writeln!(output, "  Expected: {}", scenario.expectation)?;
        if !scenario.sweeps.is_empty() {
            let names: Vec<&str> = scenario.sweeps.iter().map(|(name, _)| name.as_str()).collect();
            let runs: usize = scenario.sweeps.iter().map(|(_, values)| values.len()).product();
            writeln!(output, "  --sweeps: {} ({runs} runs)", names.join(", "))?;
        }
    }
    Ok(())
}
