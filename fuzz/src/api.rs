//! All calls of the engine in any order, also with ids of destroyed objects, while packets between its own
//! queue pairs are lost, duplicated and delayed.
//!
//! Properties that are checked:
//!
//! - no panic, in no call and in no `Display` of an error;
//! - memory is touched only while it is registered ([`crate::memory`] panics otherwise);
//! - every work request completes at most once, on the queue pair that it was posted to, and those of one
//!   queue pair and direction in the order in which they were posted;
//! - received = handled + dropped; no queue exceeds its capacity; the number of objects is the number of
//!   created objects minus destroyed ones;
//! - at the end all objects can be destroyed, and the engine holds no memory.

mod model;
mod step;
mod work;

pub use step::{ACTIONS, Action, Step};

use crate::records::records;
use model::Rig;

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    let mut rig = Rig::new();
    for record in records(data) {
        rig.take(&Step::from_bytes(record));
    }
    rig.tear_down();
}
