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
mod report;
mod trace;
mod work;
mod world;

pub use plan::{Mode, PairPlan, Plan};
pub use report::{Failure, Report};
pub use work::{Flow, Kind, Op, Piece, Receive, Zone};

use world::World;

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
