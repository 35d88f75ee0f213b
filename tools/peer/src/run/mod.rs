//! The interpreter: a state machine without a clock or a socket.
//!
//! The caller repeats [`Run::poll`] and does what it returns: sends a packet, passes a request to the NIC
//! under test and its answer to [`Run::answer`], or waits. While it waits, it passes packets to
//! [`Run::receive`]. After an event at the NIC it calls [`Run::wake`]. Time comes with every call.

mod matching;
mod nic;
mod report;
mod state;
mod steps;
mod values;

pub use nic::{
    Answer, Completion, Connected, MemoryArea, Operation, Refusal, Request, Settings, WorkRequest,
};
pub use report::{Failure, Outcome, Record, Report};
pub use state::{Output, Packet, Run};
