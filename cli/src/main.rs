//! The command `roce`; see [`roce_cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    roce_cli::main()
}
