//! The command `roce` with one more congestion control algorithm, for simulated networks and real packets.
//!
//! ```sh
//! cargo run --profile quick -p own-algorithm -- \
//!     sim two-to-one --set host.congestion=halve-and-step --out halve-and-step
//! ```
//!
//! `docs/laboratory.md` goes on from here. An edit of this crate compiles this crate alone.

use std::process::ExitCode;

// Write yours here, or in a module beside it.
mod halve_and_step;

fn main() -> ExitCode {
    roce_cli::main_with(vec![halve_and_step::algorithm()])
}
