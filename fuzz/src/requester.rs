//! A live RC requester with posted work, and a peer that answers arbitrarily.
//!
//! Properties that are checked after every step:
//!
//! - no panic, and the engine stops sending by itself;
//! - work requests complete in the order in which they were posted, each at most once, and succeed only when
//!   a packet arrived (or when nothing had to be sent);
//! - memory changes only inside the elements of READs and atomics that have not completed, at the offset of
//!   the PSN, in order and each byte once ([`crate::memory`] panics on other accesses); the bytes are those
//!   of the packet;
//! - a READ or atomic succeeds only when all its bytes have arrived;
//! - every sent packet is well-formed, carries the bytes of its elements and goes to the peer;
//! - received = handled + dropped;
//! - when the peer stops answering at the end, every request completes within its retries.

mod model;
mod peer;
mod step;

pub use model::OPERATIONS;
pub use step::{Action, FLAG_REVIVE, Settings, Step};

use crate::records::records;
use model::Rig;

/// Runs the target, see the module. The first byte selects the settings, and the records follow.
pub fn run(data: &[u8]) {
    let Some((settings, rest)) = data.split_first() else { return };
    let mut rig = Rig::new(Settings::from_byte(*settings));
    for record in records(rest) {
        rig.take(&Step::from_bytes(record));
    }
    rig.fall_silent();
    crate::packet::check_identity(&rig.engine);
}
