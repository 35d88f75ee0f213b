//! The verbs as an application sees them: two contexts in one process, over real sockets and in memory.

#[path = "../common/mod.rs"]
mod common;

mod cm;
mod concurrency;
mod congestion;
mod device_failure;
mod errors;
mod events;
mod faults;
mod lifetimes;
mod messages;
mod multicast;
mod operations;
mod rping;
mod shared_receives;
mod wakers;
mod windows;
mod world;
