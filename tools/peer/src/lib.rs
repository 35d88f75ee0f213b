//! Scripts that play one end of a RoCE connection, packet by packet, against a NIC under test.
//!
//! A script sends any packet, right or wrong, and says which answers must arrive, and when. Such a script
//! documents a rule of the protocol and checks a NIC at once. [`script`] contains the language, and [`run`]
//! the interpreter, which has neither a clock nor a socket. [`bed`] connects the interpreter to a NIC: the
//! engine of `roce_transport` in virtual time, or a NIC behind a device. [`shipped`] has the scripts of
//! this crate, [`recorded`] makes a script from packets, and [`output`] writes results as text, as JUnit XML
//! and as a capture.
//!
//! The crate has no command line and does not write to a terminal.
//!
//! ```
//! use roce_peer::bed::{EngineNic, run_virtual};
//! use roce_peer::script::{Files, Script};
//!
//! let text = "# A WRITE without bytes is acknowledged.
//! connect rc psn=100
//! send write_only psn=100 ackreq
//! expect ack psn=100 msn=1 within 1ms
//! ";
//! let script = Script::load("empty.roce", &Files::of([("empty.roce", text)]))?;
//! let report = run_virtual(&script, &mut EngineNic::new(1));
//! assert!(report.has_passed());
//! # Ok::<(), roce_peer::script::ScriptError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod bed;
pub mod output;
pub mod recorded;
pub mod run;
pub mod script;
pub mod shipped;
mod suggest;
pub mod wire;
