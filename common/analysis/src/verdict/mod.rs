//! Judges the rules of RoCE on what captures show.
//!
//! A verdict says *pass* or *fail* only if the packets prove it. Otherwise it is *unknown*, and says why. What
//! the capture lacks is never blamed on a NIC: PSNs that were acknowledged but not captured, packets that were
//! cut, times that the file does not have.

mod causes;
mod cm;
mod cnp;
mod duplicates;
mod judgement;
mod msn;
mod naks;
mod reaction;
mod reads;
mod refusals;
mod restart;
mod rnr;
pub mod rules;
mod timeouts;

use crate::analysis::Analysis;
use crate::connection::Connection;

pub use judgement::{Figure, MOST_PLACES, Outcome, Scene, Verdict};
pub use rules::Rule;

/// Judges everything that concerns one connection.
#[must_use]
pub fn of_connection(analysis: &Analysis, connection: &Connection) -> Vec<Verdict> {
    let scene = Scene { analysis, connection };
    CONNECTION_CHECKS.iter().flat_map(|check| check(&scene)).collect()
}

/// Judges everything that concerns the captures as a whole.
#[must_use]
pub fn of_capture(analysis: &Analysis) -> Vec<Verdict> {
    CAPTURE_CHECKS.iter().flat_map(|check| check(analysis)).collect()
}

/// A check returns no verdict if the connection has nothing that the rule is about.
type ConnectionCheck = fn(&Scene<'_>) -> Vec<Verdict>;
type CaptureCheck = fn(&Analysis) -> Vec<Verdict>;

// One line for each check, by the number of its rule.
const CONNECTION_CHECKS: &[ConnectionCheck] = &[
    naks::check,
    restart::check,
    duplicates::check,
    reads::check,
    causes::check,
    timeouts::check,
    rnr::check,
    cnp::of_connection,
    reaction::of_connection,
    msn::check,
    refusals::check,
];
#[rustfmt::skip]
const CAPTURE_CHECKS: &[CaptureCheck] = &[
    cnp::of_capture,
    cm::of_capture,
];
