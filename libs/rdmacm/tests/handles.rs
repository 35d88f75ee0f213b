//! Calls every function of both libraries with wrong handles: null pointers, and pointers to no object, to an
//! object of another kind, or to a destroyed one. A C program calls each function in separate processes, so
//! that a crash is reported as a signal with the name of the function.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use roce_testing::{Finished, Running, distribution, exported_names, has_program, skip_unless};

/// Number of random sequences of calls, unless `ROCE_SEED` selects one.
const SEQUENCES: u64 = 24;
/// The program may wait for answers that never arrive.
const SECONDS: u64 = 120;

/// The compiled program, with both libraries in the same folder.
struct Handles {
    folder: tempfile::TempDir,
    address: &'static str,
}

impl Handles {
    /// Compiles the program; returns `None` if that is not possible.
    #[track_caller]
    fn compile(address: &'static str) -> Option<Self> {
        let root = distribution(env!("CARGO_TARGET_TMPDIR"));
        let can_compile = root.is_some() && has_program("cc");
        if skip_unless(can_compile, "no packages of a Debian system, or no C compiler") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["libibverbs", "librdmacm"] {
            for end in ["so.1", "so"] {
                symlink(library(name), folder.path().join(format!("{name}.{end}"))).expect("a link");
            }
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/handles.c");
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-Wall", "-Werror", "-I"]).arg(root?.join("usr/include")).arg("-o");
        command.arg(folder.path().join("handles")).arg(source).arg("-L").arg(folder.path());
        let compiled = Running::start(command.args(["-lrdmacm", "-libverbs"])).finish(60);
        assert!(compiled.success, "{}", compiled.stderr);
        Some(Self { folder, address })
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(self.folder.path().join("handles"));
        command.args(arguments).env("LD_LIBRARY_PATH", self.folder.path());
        command.env("ROCE_DEVICE", format!("udp:{}", self.address));
        Running::start(&mut command).finish(SECONDS)
    }
}

fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    test.with_file_name(format!("{name}.so"))
}

#[test]
fn wrong_handles_are_refused() {
    let Some(handles) = Handles::compile("127.83.0.11") else { return };
    let ran = handles.run(&[handles.address]);
    assert!(ran.success, "{}{}", ran.stderr, ran.stdout);
    let calls: u32 = ran.stdout.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    assert!(calls > 2_000, "{}", ran.stdout);
}

#[test]
fn no_sequence_of_calls_crashes() {
    let Some(handles) = Handles::compile("127.83.0.12") else { return };
    let named = std::env::var("ROCE_SEED").ok().map(|seed| seed.parse().expect("a number in ROCE_SEED"));
    for seed in named.map_or(1..=SEQUENCES, |seed: u64| seed..=seed) {
        let ran = handles.run(&[handles.address, &seed.to_string()]);
        assert!(
            ran.success,
            "{}\nreplay with: ROCE_SEED={seed} cargo test -p roce-rdmacm --test handles no_sequence -- --nocapture",
            ran.stderr
        );
    }
}

/// Every function that is added must be added to the program.
#[test]
fn every_exported_function_is_called() {
    let Some(handles) = Handles::compile("127.83.0.13") else { return };
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let called = handles.run(&[]).stdout;
    let called: BTreeSet<&str> = called.lines().collect();
    let exported =
        exported_names(&library("libibverbs")).into_iter().chain(exported_names(&library("librdmacm")));
    // Stubs that read no argument, and the entry points behind the functions of librdmacm.so.1, are not
    // called.
    let is_reached = |name: &String| !name.contains("@IBVERBS_PRIVATE_") && !name.ends_with("@ROCE_1");
    let missing: Vec<String> = exported
        .filter(is_reached)
        .filter(|name| !called.contains(name.split('@').next().unwrap_or_default()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
