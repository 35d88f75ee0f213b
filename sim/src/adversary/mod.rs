//! The adversary: a run of two engines over a faulty link, derived from one seed and checked byte by byte.
//!
//! [`run`] derives everything from its seed: path MTU, first PSNs, timeouts, queue depths, the faults of
//! each direction, and what the applications at both ends do on several queue pairs. While it runs, every
//! packet and every completion is checked; at the end every byte of every region is compared with the expected one. It
//! checks these properties:
//!
//! - RC: every request takes effect exactly once and in order, also if it fails halfway; completions come
//!   in order with the right content; atomics take effect once; data is complete when its completion is.
//! - UC: messages that arrive are complete, in order and never duplicated. UD: messages that arrive are complete.
//! - Nothing outside the targeted ranges changes, and no damaged packet is handled.
//! - A request fails only because of faults on the link, and once the faults stop, every request ends within
//!   `(retry_cnt + 1) * 4 * timeout`.
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
    /// Packets that were sent.
    pub packets: usize,
    /// Requests that completed, and directions of queue pairs that failed because of faults.
    pub completed: usize,
    /// See `completed`.
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
/// The first error.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    run_plan(&Plan::new(seed))
}

/// Runs a plan, which the caller may have changed.
///
/// # Errors
///
/// The first error.
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
