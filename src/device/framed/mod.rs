//! Devices that carry whole Ethernet frames.

pub(crate) mod port;
