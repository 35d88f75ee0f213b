//! What captured RoCE packets say about the connections and NICs that sent them.
//!
//! The crate reads no files and no clock: a caller passes packets with the times of their capture.
//!
//! [`icrc`] names the mistake behind a wrong ICRC.
#![forbid(unsafe_code)]

pub mod icrc;
