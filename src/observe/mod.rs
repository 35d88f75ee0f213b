//! What can be seen from outside: counters, the stream of trace events, capture files.

mod counters;
mod events;
pub mod pcap_file;

pub use counters::Snapshot;
pub use events::EventStream;
