//! Scenarios: TOML files that describe a network and its flows.
//!
//! ```
//! use roce_sim::scenario::Scenario;
//!
//! let text = r#"
//! name = "two to one"
//! [topology]
//! kind = "star"
//! hosts = 3
//! [[flows]]
//! kind = "incast"
//! degree = 2
//! to = "h2"
//! bytes = "1MB"
//! "#;
//! let scenario = Scenario::parse(text, &|name| Err(format!("no files here, not even {name}")))?;
//! let mut simulation = scenario.simulation()?;
//! simulation.run_to_end();
//! assert_eq!(simulation.results().incomplete(), 0);
//!
//! let error = Scenario::parse(&text.replace("degree = 2", "degree = 3"), &|_| Err(String::new())).unwrap_err();
//! assert_eq!(error.to_string(), "line 6: an incast of 3 needs at least 4 hosts, there are 3");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
mod expect;
mod file;
mod flows;
mod hosts;
mod operations;
mod ports;
mod profiles;
mod reading;
mod shipped;
mod topology;
mod values;
mod workload;

use std::cell::RefCell;
use std::ops::Range;

use roce_transport::congestion::Algorithm;

pub use self::expect::{Expect, ExpectedValue, Relation};
pub use self::reading::read_toml;
pub use self::shipped::{SHIPPED, shipped};
use crate::net::{BuildError, FlowSpec, MemoryEstimate, Operation, Schedule, Settings, Simulation, Topology};

/// A network, its settings and its flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The expected result.
    pub expectation: String,
    /// Whether flows are expected to outlast [`Settings::stop`].
    pub open_ended: bool,
    /// The nodes and links.
    pub topology: Topology,
    /// The settings of the network.
    pub settings: Settings,
    /// The flows.
    pub flows: Vec<FlowSpec>,
    /// The tasks of flows that wait for others, and of operations.
    pub schedule: Schedule,
    /// Collective operations and training steps.
    pub operations: Vec<Operation>,
    /// Conditions that a run of the unchanged file should meet.
    pub expect: Vec<Expect>,
    /// The keys that the file proposes to vary, each with its values, in the form of [`Self::parse_with`].
    pub sweeps: Vec<(String, Vec<String>)>,
}

/// A scenario with replaced values, and a self-contained text that describes the scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// The scenario.
    pub scenario: Scenario,
    /// A text that describes the same run: values are replaced, and `[files]` contains the files that other
    /// tables name. Expectations apply to the scenario's own values, so they are left out if a value has
    /// changed.
    pub text: String,
    /// The text without parts that do not affect a run: description, expectations, `open_ended` and sweeps.
    /// Texts with equal values in another form or order have the same input.
    pub input: String,
    /// Whether all replaced values are equal to the original ones.
    pub is_unchanged: bool,
}

/// An error in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct ScenarioError {
    /// The number of the line, from 1, or `None` if the error has no line, for example in a replaced value.
    pub line: Option<usize>,
    /// The reason.
    pub reason: String,
}

impl ScenarioError {
    /// Creates an error at `span`, in bytes of `text`, and computes its line.
    pub fn at(text: &str, span: Option<Range<usize>>, reason: impl Into<String>) -> Self {
        let line = span.map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            before.matches('\n').count() + 1
        });
        Self { line, reason: reason.into() }
    }
}

/// A function that returns the contents of a file that a scenario names, or the reason why it cannot.
pub type Load<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

impl Scenario {
    /// Builds the network with its flows and tasks.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Simulation::with_schedule`].
    pub fn simulation(&self) -> Result<Simulation, BuildError> {
        Simulation::with_schedule(&self.topology, &self.flows, &self.schedule, self.settings.clone())
    }

    /// Estimates the memory that the simulation requires.
    #[must_use]
    pub fn memory(&self) -> MemoryEstimate {
        MemoryEstimate::new(&self.topology, &self.flows, &self.schedule, &self.settings)
    }

    /// Parses a scenario. `load` returns the files that it names.
    ///
    /// # Errors
    ///
    /// Returns the first error with its line.
    pub fn parse(text: &str, load: &Load<'_>) -> Result<Self, ScenarioError> {
        Self::parse_whole(text, load, &[])
    }

    fn parse_whole(text: &str, load: &Load<'_>, own: &[Algorithm]) -> Result<Self, ScenarioError> {
        let mut file: file::File = read_toml(text)?;
        let files = std::mem::take(&mut file.files);
        let load = |name: &str| files.get(name).map_or_else(|| load(name), |text| Ok(text.clone()));
        build::build(text, file, &load, own)
    }

    /// Like [`parse_among`](Self::parse_among), but returns a [`Whole`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse_with`].
    pub fn parse_whole_with(
        text: &str,
        replaced: &[(String, String)],
        load: &Load<'_>,
        own: &[Algorithm],
    ) -> Result<Whole, ScenarioError> {
        let named = RefCell::new(toml::Table::new());
        let kept = |name: &str| {
            let text = load(name)?;
            named.borrow_mut().insert(name.to_owned(), toml::Value::String(text.clone()));
            Ok(text)
        };
        let scenario = Self::parse_among(text, replaced, &kept, own)?;
        let is_unchanged = replaced.is_empty()
            || Self::parse_whole(text, load, own).is_ok_and(|unchanged| unchanged == scenario);
        let mut table = replaced_table(text, replaced)?;
        if !is_unchanged {
            table.remove("expect");
            table.remove("expectation");
        }
        if !named.borrow().is_empty() {
            let files = table.entry("files").or_insert_with(|| toml::Table::new().into());
            if let toml::Value::Table(files) = files {
                files.extend(named.into_inner());
            }
        }
        let text = text_of(&table)?;
        for key in ["description", "expectation", "open_ended", "expect", "sweep"] {
            table.remove(key);
        }
        Ok(Whole { scenario, text, input: text_of(&table)?, is_unchanged })
    }

    /// Like [`parse`](Self::parse), with values replaced: `("host.congestion", "dcqcn:paper")`. A name is the
    /// path of tables to the key, with the index of an element for lists (`flows.0.bytes`). A value that is
    /// not valid TOML is used as a string.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse`]. Errors after the replacement have no line.
    pub fn parse_with(
        text: &str,
        replaced: &[(String, String)],
        load: &Load<'_>,
    ) -> Result<Self, ScenarioError> {
        Self::parse_among(text, replaced, load, &[])
    }

    /// Like [`parse_with`](Self::parse_with), but `host.congestion` can also name one of the algorithms in
    /// `own`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse_with`].
    pub fn parse_among(
        text: &str,
        replaced: &[(String, String)],
        load: &Load<'_>,
        own: &[Algorithm],
    ) -> Result<Self, ScenarioError> {
        if replaced.is_empty() {
            return Self::parse_whole(text, load, own);
        }
        let table = replaced_table(text, replaced)?;
        let whole = text_of(&table)?;
        Self::parse_whole(&whole, load, own).map_err(|error| {
            let values: Vec<String> =
                replaced.iter().map(|(name, value)| format!("{name}={value}")).collect();
            ScenarioError { line: None, reason: format!("with {}: {}", values.join(" "), error.reason) }
        })
    }
}

fn text_of(table: &toml::Table) -> Result<String, ScenarioError> {
    toml::to_string(table).map_err(|error| ScenarioError { line: None, reason: error.to_string() })
}

/// Returns the tables of a scenario with values replaced. Errors before the replacement have a line.
fn replaced_table(text: &str, replaced: &[(String, String)]) -> Result<toml::Table, ScenarioError> {
    let mut table: toml::Table = read_toml(text)?;
    for (name, value) in replaced {
        let reason = |reason: String| ScenarioError { line: None, reason: format!("{name}: {reason}") };
        replace(&mut table, name, value).map_err(reason)?;
    }
    Ok(table)
}

/// Sets one value by its path.
fn replace(table: &mut toml::Table, name: &str, value: &str) -> Result<(), String> {
    let parts: Vec<&str> = name.split('.').collect();
    let Some((last, path)) = parts.split_last() else { return Err("a name is missing".to_owned()) };
    let mut root = toml::Value::Table(std::mem::take(table));
    let mut at = &mut root;
    for part in path {
        at = child(at, part)?;
    }
    let value = parse_value(value);
    match at {
        toml::Value::Table(inner) => {
            inner.insert((*last).to_owned(), value);
        }
        toml::Value::Array(list) => {
            let index: usize = last.parse().map_err(|_| format!("{last} is not the number of an element"))?;
            *list.get_mut(index).ok_or_else(|| format!("there is no element {index}"))? = value;
        }
        _ => return Err(format!("{last} is not in a table")),
    }
    if let toml::Value::Table(changed) = root {
        *table = changed;
    }
    Ok(())
}

fn child<'a>(value: &'a mut toml::Value, part: &str) -> Result<&'a mut toml::Value, String> {
    match value {
        toml::Value::Table(table) => {
            Ok(table.entry(part.to_owned()).or_insert_with(|| toml::Value::Table(toml::Table::new())))
        }
        toml::Value::Array(list) => {
            let index: usize = part.parse().map_err(|_| format!("{part} is not the number of an element"))?;
            list.get_mut(index).ok_or_else(|| format!("there is no element {index}"))
        }
        _ => Err(format!("{part} is not in a table")),
    }
}

fn parse_value(text: &str) -> toml::Value {
    toml::from_str::<toml::Table>(&format!("value = {text}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(text.to_owned()))
}
