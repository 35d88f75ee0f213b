//! Judges the rules of RoCE on what captures show.
//!
//! A verdict says *pass* or *fail* only if the packets prove it. Otherwise it is *unknown*, and says why.
//! What the capture lacks is never blamed on a NIC: PSNs that were acknowledged but not captured, packets
//! that were cut, times that the file does not have.

mod causes;
mod classes;
pub(crate) mod cm;
mod cnp;
mod counters;
mod duplicates;
mod entropy;
mod findings;
mod hygiene;
mod icrc;
mod in_flight;
mod judgement;
mod msn;
mod mtu;
mod naks;
mod opcodes;
mod packets;
mod pfc;
mod reaction;
mod reads;
mod refusals;
mod restart;
mod rnr;
pub mod rules;
mod timeouts;
mod times;

use crate::analysis::Analysis;
use crate::connection::Connection;

pub use counters::of_counters;
pub use judgement::{Figure, MOST_PLACES, Outcome, Party, Role, Scene, Verdict};
pub use rules::Rule;

/// Judges everything that concerns one connection.
#[must_use]
pub fn of_connection(analysis: &Analysis, connection: &Connection) -> Vec<Verdict> {
    let scene = Scene { analysis, connection };
    let verdicts = CONNECTION_CHECKS.iter().flat_map(|check| check(&scene));
    verdicts.map(|verdict| scene.with_senders(verdict)).collect()
}

/// Judges everything that concerns the captures as a whole.
#[must_use]
pub fn of_capture(analysis: &Analysis) -> Vec<Verdict> {
    CAPTURE_CHECKS.iter().flat_map(|check| check(analysis)).collect()
}

/// A check returns no verdict if the connection has nothing that the rule is about.
type ConnectionCheck = fn(&Scene<'_>) -> Vec<Verdict>;
type CaptureCheck = fn(&Analysis) -> Vec<Verdict>;

/// The checks of a connection, by the number of their rule.
const CONNECTION_CHECKS: &[ConnectionCheck] = &[
    icrc::check,              // 1
    naks::check,              // 2
    restart::check,           // 3
    duplicates::check,        // 4
    reads::check,             // 5
    causes::check,            // 6
    timeouts::check,          // 7
    rnr::check,               // 8
    cnp::of_connection,       // 9
    reaction::of_connection,  // 10
    classes::check,           // 11
    opcodes::check,           // 13
    mtu::check,               // 14
    msn::check,               // 15
    hygiene::check,           // 16
    entropy::check,           // 17
    refusals::check,          // 18
    in_flight::of_connection, // 21
    times::of_connection,     // 22
];

/// The checks of whole captures, by the number of their rule.
const CAPTURE_CHECKS: &[CaptureCheck] = &[
    icrc::check_others,    // 1
    cnp::of_capture,       // 9
    pfc::check_all,        // 12
    opcodes::check_others, // 13
    mtu::check_others,     // 14
    hygiene::check_others, // 16
    entropy::check_all,    // 17
    cm::of_capture,        // 19
];
