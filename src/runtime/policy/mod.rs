//! Decisions of the runtime as plain values: no clock, lock, thread or system call.

mod experiment;

pub(super) use experiment::{Experiment, Terms};
