//! The functions of the command `roce`, without its command line: measurements, the counterparts of perftest,
//! libibverbs' ping-pongs and rping, the doctor, the bridge and the plots.
//!
//! Each tool is a module with a plan (the request of the user) and functions that carry it out over a
//! [`Context`](roce::verbs::Context). Nothing here reads a command line or writes to a terminal.

pub mod bridge;
pub mod doctor;
pub mod exchange;
mod harness;
pub mod limit;
pub mod measure;
pub mod memory;
pub mod perf;
pub mod pingpong;
pub mod plot;
pub mod rping;
pub mod study;
pub mod text_file;

pub use harness::{Role, ToolError};
