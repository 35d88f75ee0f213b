//! The adversary: a run of two engines over a faulty link, derived from one seed and checked byte by byte.
//!
//! [`run`] derives everything from its seed: path MTU, first PSNs, timeouts, queue depths, the faults of each
//! direction, and the actions of the applications at both ends on several queue pairs. During the run, every
//! packet and every completion is checked. At the end, every byte of every region is compared with the
//! expected one. The following properties are checked:
//!
//! - RC: every request takes effect exactly once and in order, even if it fails halfway; completions come in
//!   order with the correct content; atomics take effect once; data is complete when its completion is.
//! - UC: messages that arrive are complete, in order and never duplicated. UD: messages that arrive are
//!   complete.
//! - Nothing outside the targeted ranges changes, and no damaged packet is handled.
//! - A request fails only because of faults on the link. When the faults stop, every request ends within
//!   `(retry_cnt + 1) * 4 * timeout`, plus allowances for RNR pauses and the time on the link.
//!
//! The same seed gives the same run, packet for packet, and the same [`Report::hash`].

mod check;
mod completion;
mod link;
mod packet;
mod plan;
mod post;
mod work;
mod world;

use std::fmt;

use roce_transport::Counters;

pub use plan::{Mode, PairPlan, Plan};
pub use work::{Flow, Kind, Op, Piece, Receive, Zone};

use world::World;

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

/// Runs the plan of a seed.
///
/// # Errors
///
/// Returns the first failed check.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    run_plan(&Plan::new(seed))
}

/// Runs a plan, which the caller can have changed.
///
/// # Errors
///
/// Returns the first failed check.
pub fn run_plan(plan: &Plan) -> Result<Report, Box<Failure>> {
    let mut world = World::new(plan);
    match world.run() {
        Ok(()) => Ok(world.report()),
        Err(message) => {
            let ladder = world.ladder();
            Err(Box::new(Failure { seed: plan.seed, message, ladder }))
        }
    }
}
