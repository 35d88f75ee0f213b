//! What can be seen from outside: counters, and what to do about a failed work request.

mod advice;
mod counters;
mod publish;
mod published;

pub use advice::advice;
pub use counters::{CounterSource, Snapshot};
pub use published::{Published, published};

pub(crate) use publish::Publisher;
