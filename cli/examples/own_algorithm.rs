//! The command `roce` with one more congestion control algorithm, for simulated networks and real packets.
//!
//! ```sh
//! cargo run --release --example own_algorithm -- \
//!     sim two-to-one --set host.congestion=halve-and-step --out halve-and-step
//! ```
//!
//! `docs/laboratory.md` goes on from here.

use std::process::ExitCode;

// Yours goes here.
#[path = "../../transport/examples/own_congestion_control/halve_and_step.rs"]
mod halve_and_step;

fn main() -> ExitCode {
    roce_cli::main_with(vec![halve_and_step::algorithm()])
}
