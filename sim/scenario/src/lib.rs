//! Scenarios: TOML files that describe a network of `roce-sim` and its flows.
//!
//! This crate reads no files: the caller passes their texts. It has no clock and no randomness of its own.
//!
//! ```
//! use roce_scenario::Scenario;
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
#![forbid(unsafe_code)]

mod build;
mod contents;
mod expect;
mod file;
mod flows;
mod hosts;
mod import;
mod operations;
mod own;
mod parse;
mod ports;
mod profile;
mod profiles;
mod reading;
mod shipped;
mod switches;
mod topology;
mod values;
mod workload;

use std::ops::Range;

pub use self::contents::contents;
pub use self::expect::{Expect, ExpectedValue, Relation};
pub use self::own::Own;
pub use self::reading::read_toml;
pub use self::shipped::{SHIPPED, shipped};
use roce_sim::net::{
    BuildError, FlowSpec, MemoryEstimate, Network, Operation, Schedule, Settings, Simulation, Topology,
    data_packets,
};

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
    /// The tables of flows, collectives and training, in the order of their flows.
    pub tables: Vec<Traffic>,
    /// Conditions that a run of the unchanged file should meet.
    pub expect: Vec<Expect>,
    /// Parts of imported files that have no effect, each with the name of the file.
    pub warnings: Vec<String>,
    /// The keys that the file proposes to vary, each with its values, in the form of [`Self::parse_with`].
    pub sweeps: Vec<(String, Vec<String>)>,
}

/// The flows of a table of a scenario: `[[flows]]`, `[[collective]]`, `[[training]]` or `[[workload]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The name of the table. A table without a name has its key in the file, such as `flows.0`.
    pub name: String,
    /// The kind of the table, such as `incast`, `all-reduce` or `pipeline`.
    pub kind: &'static str,
    /// The name of its operations in results: of a collective, or of the steps of training. `None` for a
    /// table of flows.
    pub collective: Option<String>,
    /// The numbers of its flows.
    pub flows: Range<usize>,
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

/// The reason of an error, without its line.
type Wrong = String;

/// A function that returns the contents of a file that a scenario names, or the reason why it cannot.
/// [`contents`] makes them from the bytes of a file.
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

    /// Returns the table of a flow.
    #[must_use]
    pub fn table_of(&self, flow: usize) -> Option<&Traffic> {
        let place = self.tables.partition_point(|table| table.flows.end <= flow);
        self.tables.get(place).filter(|table| table.flows.contains(&flow))
    }

    /// Builds the network for an external scheduler that sends the messages, from a scenario of
    /// [`parse_network`](Self::parse_network).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Network::new`], or an error if the scenario has flows, which would not start.
    pub fn network(&self) -> Result<Network, BuildError> {
        if self.sends() {
            let reason = "flows: an external scheduler sends the messages; `parse_network` leaves flows out";
            return Err(BuildError::Setting(reason.to_owned()));
        }
        Network::new(&self.topology, self.settings.clone())
    }

    /// Returns whether anything is sent, through either network.
    fn sends(&self) -> bool {
        !self.flows.is_empty() || self.schedule.tasks().iter().any(|task| task.transfer.is_some())
    }

    /// Estimates the memory that the simulation requires.
    #[must_use]
    pub fn memory(&self) -> MemoryEstimate {
        MemoryEstimate::new(&self.topology, &self.flows, &self.schedule, &self.settings)
    }

    /// Estimates the number of data packets of the simulation, which determines how long it takes.
    #[must_use]
    pub fn data_packets(&self) -> u64 {
        data_packets(&self.topology, &self.flows, &self.settings)
    }
}
