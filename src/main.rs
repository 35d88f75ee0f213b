//! The command `roce`; see [`roce::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    roce::cli::main()
}
