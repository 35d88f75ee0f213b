//! The process and the machine of a library: locks, descriptors, user ids, interfaces and routes.
//!
//! The crate contains locks that are free in the child of a fork, descriptors that programs do not close, and
//! checks of user ids. It queries the kernel's interfaces, addresses, routes and neighbours, and changes
//! nothing on the machine. It has no thread and no protocol logic, and sends no datagrams. The devices, the
//! library `roce` and the libraries for existing programs share it.

pub mod descriptors;
pub mod fork;
pub mod interfaces;
pub mod netlink;
pub mod routes;
pub mod users;
