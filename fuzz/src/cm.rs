//! A connection manager between an application that makes any call at any time and peers that send any
//! messages. These are answers to received messages, possibly damaged, repeated, late, or from another
//! address.
//!
//! Properties that are checked after every step:
//!
//! - no panic, in no call and in no `Display` of an error;
//! - a call succeeds exactly in the states of [`TRANSITIONS`](roce_transport::cm::TRANSITIONS), and leads to
//!   the state in the table; a message changes the state of a connection according to the table or not at
//!   all;
//! - the events of each connection are in order, and none follows its end or its release by the application;
//! - sent messages can be parsed, go to a peer and are counted, as are received messages;
//! - no table grows beyond its limit;
//! - without input, the manager becomes idle, and keeps only records that wait for the application;
//! - once the application has released everything, no record is left, and the listener accepts as many
//!   requests as at the start.

mod message;
mod model;
mod step;

pub use step::{ACTIONS, Action, Step};

use std::collections::BTreeSet;

use roce_transport::cm::CmState;

use crate::records::records;
use model::Rig;

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    states(data);
}

/// Runs the target, and returns the states of connections that were seen after a step.
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
