//! The reports of a run.

use std::fmt;

use roce_transport::Counters;

/// The report of a run without errors.
#[derive(Clone, Debug)]
pub struct Report {
    /// A hash of every packet and every completion, with their times.
    pub hash: u64,
    /// The number of sent packets.
    pub packets: usize,
    /// The number of completed requests.
    pub completed: usize,
    /// The number of flows that failed because of faults. Each direction of a queue pair is a flow.
    pub failed: usize,
    /// The counters of A and of B.
    pub counters: [Counters; 2],
}

/// The error that a run found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The error.
    pub message: String,
    /// The last packets, oldest first, one per line.
    pub ladder: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.message)?;
        for line in &self.ladder {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
