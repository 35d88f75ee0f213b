//! The result of a run.

use roce_packet::Path;
use roce_transport::Instant;

use crate::script::Place;

/// A packet of the exchange.
#[derive(Clone, Debug)]
pub struct Record {
    /// The time.
    pub at: Instant,
    /// Whether the script sent it.
    pub is_sent: bool,
    /// The addresses.
    pub path: Path,
    /// The IPv4 Identification.
    pub identification: u16,
    /// The bytes from BTH to ICRC.
    pub bytes: Vec<u8>,
    /// The line that sent it, or during which it arrived.
    pub place: Option<Place>,
    /// The packet in the words of scripts.
    pub text: String,
}

/// A failed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line; `None` after the last one.
    pub place: Option<Place>,
    /// The text of the line.
    pub text: String,
    /// The rule that the step checks.
    pub rule: String,
    /// The expectation, with its values.
    pub expected: String,
    /// What was found instead.
    pub found: String,
}

/// The outcome of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step passed.
    Passed,
    /// A step failed.
    Failed(Failure),
    /// The NIC or the connection does not offer what the script needs.
    Inapplicable(String),
}

/// The result of a script.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the script.
    pub script: String,
    /// What the script shows.
    pub title: String,
    /// The rules that it names.
    pub rules: Vec<String>,
    /// The number of steps that passed, each round of a loop counted.
    pub steps: usize,
    /// The number of checks that the NIC did not offer: of memory, counters, completions and states.
    pub unchecked: usize,
    /// The time from the first to the last step, in nanoseconds.
    pub elapsed_ns: u64,
    /// The packets in order.
    pub records: Vec<Record>,
    /// The outcome.
    pub outcome: Outcome,
}

impl Report {
    /// Returns whether the script passed.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.outcome == Outcome::Passed
    }
}
