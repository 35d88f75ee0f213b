//! The `roce` command with an additional congestion control algorithm, for simulated networks and real
//! packets.
//!
//! ```sh
//! cargo run --release -p own-algorithm -- \
//!     sim two-to-one --set host.congestion=halve-and-step --out halve-and-step
//! ```
//!
//! `docs/tutorials/laboratory.md` describes the next steps. After an edit, only this crate is compiled again.

use std::process::ExitCode;

// Write your algorithm here, or in a module beside it.
mod halve_and_step;

fn main() -> ExitCode {
    roce_cli::main_with(vec![halve_and_step::algorithm()])
}
