//! Compiles the XDP program of the feature `xsk-rs`; without that feature nothing is done.

use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "src/xdp/libxdp/program.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_XSK_RS").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed={PROGRAM}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where to put things"));
    // The same variable as libxdp-sys heeds.
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c", PROGRAM, "-o"]);
    let status = command.arg(folder.join("program.bpf.o")).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{} cannot compile {PROGRAM}: {status}", clang.display()),
        Err(error) => panic!("{}: {error}; the feature xsk-rs needs clang", clang.display()),
    }
}
