//! The `roce` command with an additional congestion control algorithm, for simulated networks and real
//! packets, and with additional rules for simulated switches.
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
mod queue_limit;

fn main() -> ExitCode {
    let mut own = roce_cli::Own::from(vec![halve_and_step::algorithm()]);
    own.rules.push(queue_limit::rules());
    roce_cli::main_with(own)
}
