//! Finds out why two machines cannot exchange RoCE packets, and what to change.
//!
//! One side waits ([`Doctor::serve`]), the other one examines it ([`Doctor::examine`]). They agree over TCP
//! on what to send, and compare the sent with the received packets. Without a server, the client sends an
//! rdma_cm request instead: any answer proves that RoCE works there.
//!
//! ```text
//! doctor     the device of this side               peer    the address of the other side
//! wire       messages between the two sides        watch   headers of what arrives
//! probe      bursts of UD datagrams, both ways     trips   RC messages there and back, byte by byte
//! local      device, MTU, route, UDP port          cm      the request of rdma_cm
//! neighbour  Ethernet addresses that answer            icrc    mistakes behind wrong ICRCs
//! client, serve   who does what when               judge   from numbers to sentences
//! ```
//!
//! The sentences are explained in `docs/how-to/doctor.md`.
//!
//! The crate may use the library `roce`, the devices and all crates below them, and `roce-exchange` to talk
//! to the other side. Nothing here reads a command line or writes to a terminal.
#![forbid(unsafe_code)]

mod client;
mod cm;
mod doctor;
mod finding;
mod icrc;
mod judge;
mod local;
mod neighbour;
mod peer;
mod probe;
mod serve;
mod trips;
mod watch;
mod wire;

pub use doctor::Doctor;
pub use finding::{Diagnosis, Finding, Outcome, Step};
pub use peer::Peer;

/// The rdma_cm port of the request. It is usually free, so that no service is disturbed.
pub const SERVICE_PORT: u16 = 4791;
