//! What captured RoCE packets say about the connections and NICs that sent them.
//!
//! The crate reads no files and no clock: a caller passes packets with the times of their capture.
//!
//! [`icrc`] names the mistake behind a wrong ICRC. [`counters`] explains what counters of NICs say.
#![forbid(unsafe_code)]

pub mod counters;
pub mod icrc;
