//! What both ends of a tool share: the exchange over TCP, the verbs objects of a queue pair, the content of
//! messages, and one error type.
//!
//! [`Exchange`] is the out-of-band exchange of our own tools: one JSON value per line over TCP.
//!
//! A client may call any address of the server; [`Listening`] takes all of them. [`ClientQueue`] lets clients
//! wait for their turn and tells them their place. The first line of each side is a greeting, which detects
//! two different tools at once. A side that fails sends the reason as its last line. The other side reports
//! that reason, whatever it waits for.
//!
//! Connections are not trusted: each line has a limit of length and of time, and the set-up as a whole has a
//! time limit. Packets go only to the addresses that [`PeerAddresses`] allows.
//!
//! [`Resources`] are a queue pair with its completion queues and a memory region, and [`content`] fills and
//! checks messages. [`ToolError`] is the error of the measurements and of the doctor. The crate uses the
//! library `roce` and the addresses of `roce-device`. It has no command line and writes to no terminal.
#![forbid(unsafe_code)]

mod connect;
pub mod content;
mod error;
mod exchange;
mod lines;
mod listening;
mod peers;
mod queue;
mod resources;
mod tool_error;

pub use connect::{connect_tcp, until_listening};
pub use error::ExchangeError;
pub use exchange::Exchange;
pub use lines::Busy;
pub use listening::{Listening, own_addresses};
pub use peers::PeerAddresses;
pub use queue::{ClientQueue, MOST_WAITING};
pub use resources::{CompletionQueues, GRH, Requirements, Resources, put, source_address, take};
pub use tool_error::{ToolError, tell_failure};
