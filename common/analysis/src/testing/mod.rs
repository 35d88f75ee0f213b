//! Packets for the unit tests: frames with any header, frames of two hosts in few words, and records alone.

pub(crate) mod frames;
pub(crate) mod management;
pub(crate) mod records;
pub(crate) mod wire;
