//! A live RC requester with work posted, under a peer that answers what it likes.
//!
//! What must hold after every step:
//!
//! - no panic, and the engine stops sending by itself;
//! - work requests complete in the order in which they were posted, each at most once, and succeed only
//!   when a packet arrived (or when nothing had to be sent);
//! - memory changes only inside the elements of READs and atomics that have not completed, where the PSN says,
//!   in order and each byte once ([`crate::memory`] panics on anything else); the bytes are those of the packet;
//! - a READ or atomic succeeds only when all its bytes have come;
//! - every packet that goes out is well-formed, carries the bytes of its elements and goes to the peer;
//! - received = handled + dropped;
//! - when the peer falls silent at the end, every request completes within the retries that it has.

mod model;
mod peer;
mod step;

pub use model::OPERATIONS;
pub use step::{Action, FLAG_REVIVE, Settings, Step};

use crate::records::records;
use model::Rig;

/// See the module. The first byte chooses the settings, then come the records.
pub fn run(data: &[u8]) {
    let Some((settings, rest)) = data.split_first() else { return };
    let mut rig = Rig::new(Settings::from_byte(*settings));
    for record in records(rest) {
        rig.take(&Step::from_bytes(record));
    }
    rig.fall_silent();
    crate::packet::check_identity(&rig.engine);
}
