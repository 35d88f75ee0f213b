//! `roce`: a RoCE v2 NIC in software.
//!
//! The library sends real InfiniBand transport packets on a real wire from user space. They contain BTH,
//! RETH, AETH etc. over UDP port 4791, with the flow-hash source port and the ICRC. By default the library
//! uses a plain UDP socket, which requires no kernel module and no root privileges.
//!
//! In this first program, one end writes into the memory of the other, over UDP on the loopback interface.
//!
#![doc = concat!("```\n", include_str!("../examples/hello.rs"), "```")]
//!
//! # Three ways to use it
//!
//! - [`Peer`] is one end of a connection in a few lines. [`loopback`], [`connect`] and [`listen`] create it.
//!   The [`cookbook`] has a program for each kind of operation.
//! - [`verbs`] has the objects and semantics of libibverbs and librdmacm, for everything that a `Peer` does
//!   not offer, and for users who know these libraries.
//! - [`transport`] is the engine alone, and [`packet`] the headers. Neither has a socket, clock or thread.
//!
//! # Objects
//!
//! A `Peer` consists of objects of [`verbs`]. Each is created in one listed before it:
//!
//! 1. [`Context`](verbs::Context): an open device, its engine and a thread that serves peers while the
//!    application makes no calls
//! 2. [`ProtectionDomain`](verbs::ProtectionDomain): which queue pairs may use which memory
//! 3. [`MemoryRegion`](verbs::MemoryRegion): memory in a protection domain, with a key for work requests and
//!    one for peers
//! 4. [`CompletionQueue`](verbs::CompletionQueue): where finished work requests appear
//! 5. [`QueuePair`](verbs::QueuePair): posts work requests to one peer, or datagrams to any
//!
//! All handles can be cloned, sent to other threads and dropped in any order.
//!
//! # Further modules
//!
//! [`device`] contains the devices and the trait for custom ones. [`tcp`] provides TCP from the address of a
//! device, and [`observe`] provides the counters.
//!
//! # Not supported
//!
//! There is no encryption and no authentication: the packets are those of the specification, and anyone who
//! sees them can forge the next one. RD queue pairs, raw packet queue pairs, automatic path migration and tag
//! matching do not exist. The library runs on Linux.

#[macro_use]
mod setters;

mod cm;
#[doc = include_str!("../docs/how-to/cookbook.md")]
pub mod cookbook {}
mod driver;
pub mod observe;
mod peer;
mod runtime;
pub mod tcp;
pub mod verbs;

pub use peer::{Error, Listener, Operation, Peer, PeerOptions, connect, connect_async, listen, loopback};
pub use roce_device as device;
pub use {roce_packet as packet, roce_transport as transport};
