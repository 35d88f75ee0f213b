//! The host of a device that carries Ethernet frames: it resolves Ethernet addresses and handles other frames
//! than RoCE.
//!
//! Packet sockets and AF_XDP share the addresses of an interface with the kernel, which answers ARP and keeps
//! the neighbour table; a TAP is a separate host.

#[cfg(feature = "kernel-host")]
pub mod kernel;
#[cfg(feature = "tap")]
pub(crate) mod own;
