//! Packets for the unit tests.

mod records;
mod wire;

pub(crate) use records::{Traffic, analyzed};
pub(crate) use wire::{Sketch, Wire};
