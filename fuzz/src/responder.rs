//! Connected RC, UC and UD responders with a peer that sends any packets.
//!
//! Properties that are checked after every packet:
//!
//! - no panic, and the engine stops sending by itself;
//! - memory changes only where it was granted: regions with remote write permission, bound windows, and the
//!   elements of posted receives that have not completed ([`crate::memory`] panics otherwise, on reads too);
//! - only the payload of the packet is written, at the address in its header;
//! - a packet that was dropped, repeated or arrived too early changes nothing;
//! - received = handled + dropped;
//! - a queue pair leaves its state only for the error state, and then no request stays posted;
//! - receives complete in the order in which they were posted, each once, and never with more bytes than fit;
//! - every sent packet is well-formed, has a correct ICRC and goes to the peer.

mod check;
mod rig;
mod step;

pub use rig::{QUEUES, Queue, REGIONS, Rig};
pub use step::{Action, FLAG_ACK_REQUEST, FLAG_OTHER_ADDRESS, FLAG_REVIVE, FLAG_SPLIT, Step};

use crate::records::records;

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    let mut rig = Rig::new();
    for record in records(data) {
        rig.take(&Step::from_bytes(record));
    }
    crate::packet::check_identity(&rig.engine);
}
