//! What can be seen from outside: counters, the stream of trace events, capture files.

mod advice;
mod counters;
mod publish;

pub use advice::advice;
pub use counters::{CounterSource, Snapshot};
pub use publish::{Published, published};

pub(crate) use publish::Publisher;
