//! The exchanges between the two sides of a tool: one JSON value a line over TCP for our own tools, the blocks of perftest for
//! `roce perf`, and messages over a connection of rdma_cm.

mod lines;
mod messages;
pub mod perftest;

pub use lines::{Exchange, ExchangeError};
pub use messages::{LARGEST_MESSAGE, Messages, connect_when_listening};
