//! The process and the machine that a library runs in: locks that a fork leaves free, descriptors that a program may close, user ids, and the
//! interfaces, addresses, routes and neighbours of the kernel. Devices, the library `roce` and the libraries for programs that exist
//! already share this crate.
//!
//! It moves no datagrams, decides nothing about the protocol, and changes nothing on the machine: it only asks the kernel. It has no
//! thread.

pub mod descriptors;
pub mod fork;
pub mod interfaces;
pub mod netlink;
pub mod routes;
pub mod users;
