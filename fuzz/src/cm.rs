//! A connection manager between an application that makes every call at any time and peers that send what they
//! like: messages that answer those they got, the same damaged, repeated, late, or from another address.
//!
//! What must hold after every step:
//!
//! - no panic, in no call and in no `Display` of an error;
//! - a call succeeds exactly where [`TRANSITIONS`](roce_transport::cm::TRANSITIONS) has it, and leads where the table
//!   says; a message moves a connection along the table or not at all;
//! - the application is told of each connection in a sensible order, and never again after its end or after it let go;
//! - what is sent can be read and goes to a peer, and is counted, as is what arrives;
//! - no table grows beyond its limit;
//! - left alone, the manager comes to rest, and holds nothing but what waits for the application;
//! - once the application has let go of everything nothing is left, and the listener takes as many requests as at first.

mod message;
mod model;
mod step;

pub use step::{ACTIONS, Action, Step};

use std::collections::BTreeSet;

use roce_transport::cm::CmState;

use crate::records::records;
use model::Rig;

/// See the module.
pub fn run(data: &[u8]) {
    states(data);
}

/// Runs, and returns the states in which connections were seen after a step.
pub fn states(data: &[u8]) -> BTreeSet<CmState> {
    let mut rig = Rig::new();
    for record in records(data) {
        rig.take(&Step::from_bytes(record));
    }
    rig.tear_down();
    rig.seen
}

#[cfg(test)]
mod tests {
    use roce_transport::cm::TRANSITIONS;

    use super::*;

    #[test]
    fn the_seeds_lead_through_every_state() {
        let seeds = crate::seeds::all();
        let of_this = seeds.iter().filter(|((target, _), _)| *target == "cm");
        let seen: BTreeSet<CmState> = of_this.flat_map(|(_, bytes)| states(bytes)).collect();
        let missing: Vec<_> =
            TRANSITIONS.iter().map(|(_, _, to)| to).filter(|to| !seen.contains(to)).collect();
        assert!(missing.is_empty(), "no seed leads to {missing:?}");
    }
}
