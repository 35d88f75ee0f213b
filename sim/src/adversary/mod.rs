//! The adversary: from one number a whole run of two engines over the worst of links, checked byte by byte.
//!
//! [`run`] derives everything from its seed: path MTU, first PSNs, timeouts, queue depths, the faults of
//! each direction, and what the applications at both ends do on several queue pairs. While it runs, every
//! packet and every completion is checked; at the end every byte of every region is compared with what must
//! be there. What it holds the engines to:
//!
//! - RC: every request takes effect exactly once and in order, also when it fails half-way; completions come
//!   in order with the right content; atomics are counted once; data is there when a completion says so.
//! - UC: what arrives is whole, in order and never twice. UD: what arrives is whole.
//! - Nothing outside the targeted ranges changes, and no packet that was damaged is worked on.
//! - A request fails only if the link gave it reason to, and when the faults stop everything ends within
//!   `(retry_cnt + 1) * 4 * timeout`.
//!
//! The same seed gives the same run, packet for packet: [`Report::hash`] says so.

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

/// What a run that found nothing wrong was like.
#[derive(Clone, Debug)]
pub struct Report {
    /// Of every packet and every completion, with their times.
    pub hash: u64,
    /// Packets that were sent.
    pub packets: usize,
    /// Requests that completed, and directions of queue pairs that failed (with good reason).
    pub completed: usize,
    /// See `completed`.
    pub failed: usize,
    /// The counters of A and of B.
    pub counters: [Counters; 2],
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub message: String,
    /// The last packets, the oldest first, one a line.
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
/// With the first thing that is wrong.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    run_plan(&Plan::new(seed))
}

/// Runs a plan, which may have been changed since it was drawn.
///
/// # Errors
///
/// With the first thing that is wrong.
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
