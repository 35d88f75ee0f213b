//! The library as programs in C see it.

use std::path::{Path, PathBuf};
use std::process::Command;

use roce_scenario::{Scenario, shipped};
use roce_testing::{Finished, Running, has_program, skip_unless};

#[allow(dead_code, reason = "the example is a program of its own")]
#[path = "../../../sim/scenario/examples/ring_all_reduce.rs"]
mod ring_all_reduce;

/// Returns a file that cargo has built before this test.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let library = test.with_file_name(name);
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// A compiled program in a folder of its own.
struct Program {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    /// Compiles a program and links it with these arguments. Returns `None` if there is no compiler.
    fn new(source: &str, link: &[&str]) -> Option<Self> {
        if skip_unless(has_program("cc"), "no C compiler") {
            return None;
        }
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("program");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"]);
        compiler.arg(crate_folder.join("include")).arg(crate_folder.join(source));
        compiler.args(link).arg("-o").arg(&path);
        let compiled = Running::start(&mut compiler).finish(60);
        assert!(compiled.success, "{}", compiled.stderr);
        Some(Self { _folder: folder, path })
    }

    /// Compiles a program for the shared library.
    fn shared(source: &str) -> Option<Self> {
        let library = built("libroce_sim_c.so");
        let folder = library.parent().expect("a folder").to_str().expect("a path in UTF-8").to_owned();
        Self::new(source, &["-L", &folder, "-lroce_sim_c", &format!("-Wl,-rpath,{folder}")])
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let ran = Running::start(Command::new(&self.path).args(arguments)).finish(60);
        assert!(ran.success, "{ran:?}");
        ran
    }
}

/// Returns what the example in Rust prints, without the last line.
fn printed_in_rust(name: &str, bytes: u64) -> String {
    let text = shipped(name).expect("a shipped scenario");
    let scenario = Scenario::parse_network(text, &|_| Err(String::new())).expect("a scenario");
    let mut network = scenario.network().expect("a network");
    let time = ring_all_reduce::all_reduce(&mut network, bytes).expect("an all-reduce");
    let (ranks, hash) = (network.ranks(), network.trace_hash());
    format!("ranks: {ranks}\ntime: {} ps\ntrace hash: {hash:016x}\n", time.as_ps())
}

#[test]
fn the_example_has_the_figures_of_the_one_in_rust() {
    let source = "examples/ring_all_reduce.c";
    let Some(program) = Program::shared(source) else { return };
    for (name, bytes) in [("ring-all-reduce", 400_003), ("all-reduce-collisions", 160_000)] {
        let ran = program.run(&[name, &bytes.to_string()]);
        assert_eq!(ran.stdout, printed_in_rust(name, bytes), "{name}");
    }
    let library = built("libroce_sim_c.a");
    let library = library.to_str().expect("a path in UTF-8");
    let Some(program) = Program::new(source, &[library, "-lpthread", "-ldl", "-lm"]) else { return };
    let ran = program.run(&["ring-all-reduce", "8000"]);
    assert_eq!(ran.stdout, printed_in_rust("ring-all-reduce", 8_000));
}

#[test]
fn right_and_wrong_calls_do_what_the_header_says() {
    let Some(program) = Program::shared("tests/c/calls.c") else { return };
    let ran = program.run(&[]);
    let expected = "\
open nothing: 1, the scenario is a null pointer
open a misspelled key: 1, the scenario: line 2: unknown field `kid`
open into few bytes: 1, cannot r
open without room: 1
null: 0 0 0 \"\"
null send: -1 
null receive: -1 
null schedule: -1 
null next: -1 
ranks: 2
next without a place: -1 
next: 0 
no rank: -2 there is no rank 2; the ranks are 0 to 1
itself: -2 rank 1 cannot exchange a message with itself; copy the bytes without the network
empty: -3 a message from rank 0 to rank 1 has 0 bytes; send at least 1
schedule: 0 
send: 0 
short: -4 the receive of 999 bytes from rank 0 at rank 1 with tag 18446744073709551614 is too short
event: kind 3, 0 to 0, reserved 0, handle -1, tag 0, 0 bytes, token ffffffffffffffff, 7 ps, now 1
event: kind 1, 0 to 1, reserved 0, handle 0, tag fffffffffffffffe, 1000 bytes, token 0, ";
    let lines: Vec<&str> = ran.stdout.lines().collect();
    for (place, line) in expected.lines().enumerate() {
        assert!(
            lines.get(place).is_some_and(|found| found.starts_with(line)),
            "{place}: {line}\n{}",
            ran.stdout
        );
    }
    let rest = &lines[expected.lines().count()..];
    assert!(
        rest[0].starts_with("next: -5 nothing is left to simulate, but these sends have no receive: 1000")
    );
    assert_eq!(rest[1], "receive: 1 ");
    // The message had arrived before, so the receive completes at the time of the send.
    let time = |line: &str| line.split_once("token 0, ").map(|(_, rest)| rest.to_owned());
    assert!(
        rest[2].starts_with("event: kind 2, 0 to 1, reserved 0, handle 1, tag fffffffffffffffe, 1000 bytes")
    );
    assert_eq!(time(rest[2]), time(lines[19]));
    assert_eq!(rest[3..5], ["next: 0 ", "schedule for later: 0 "]);
    assert!(rest[5].starts_with("next: -6 the simulation stopped at 10.000 s, while tokens were scheduled"));
    assert!(rest[6].starts_with("send after the end: -6 "), "{}", rest[6]);
    assert_eq!(rest[7..], ["hashes differ: 1"]);
    assert_eq!(ran.stderr, "");
}

/// A file of a scenario is found by its path, and the files that it names beside it.
#[test]
fn a_file_and_what_it_names_are_read() {
    let Some(program) = Program::shared("examples/ring_all_reduce.c") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("own.toml");
    let text = "name = \"own\"\n[topology]\nkind = \"file\"\nfile = \"own.topology\"\n";
    std::fs::write(&path, text).expect("a scenario");
    let topology = "host a b c\nswitch s\nlink a s\nlink b s\nlink c s\n";
    std::fs::write(folder.path().join("own.topology"), topology).expect("a topology");
    let ran = program.run(&[path.to_str().expect("a path in UTF-8"), "3000"]);
    assert!(ran.stdout.starts_with("ranks: 3\n"), "{ran:?}");
}
