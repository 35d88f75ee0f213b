//! The process and the machine of a program: locks, descriptors, user ids, memory, files, interfaces and
//! routes.
//!
//! The crate contains locks that are free in the child of a fork, descriptors that programs do not close,
//! checks of user ids, and limits for reading files that anybody may have written. It queries the available
//! memory and the kernel's interfaces, addresses, routes and neighbours, and changes nothing on the machine.
//! It has no thread and no protocol logic, and sends no datagrams. The devices, the library `roce`, the
//! libraries for existing programs, the tools and the command share it.

//!
//! Limits and files work on every system. The rest needs Linux.

#[cfg(target_os = "linux")]
pub mod descriptors;
#[cfg(target_os = "linux")]
pub mod fork;
#[cfg(target_os = "linux")]
pub mod interfaces;
pub mod memory;
#[cfg(target_os = "linux")]
pub mod netlink;
#[cfg(target_os = "linux")]
pub mod routes;
pub mod text_file;
#[cfg(target_os = "linux")]
pub mod users;

#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(not(unix), path = "elsewhere.rs")]
mod system;
