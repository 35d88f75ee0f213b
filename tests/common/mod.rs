//! What the tests of the whole system share.
#![allow(dead_code, reason = "every test file takes a part of it")]

use std::io::{self, Write};
use std::path::PathBuf;

/// Whether the test that calls this has to be left out because `condition` does not hold. Prints which
/// test and why, past the capturing of output:
///
/// ```ignore
/// if skip_unless(tshark_is_there(), "tshark is not installed") {
///     return;
/// }
/// ```
///
/// With `ROCE_TEST_REQUIRE=all` in the environment nothing may be left out, and the test fails instead.
#[track_caller]
pub(crate) fn skip_unless(condition: bool, reason: &str) -> bool {
    if condition {
        return false;
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let all = std::env::var("ROCE_TEST_REQUIRE").is_ok_and(|value| value == "all");
    assert!(!all, "{name} must not be skipped (ROCE_TEST_REQUIRE=all): {reason}");
    // Not `eprintln`: the test harness would keep it to itself.
    let _ = writeln!(io::stderr(), "SKIPPED {name}: {reason}");
    true
}

/// A file or folder of the collection of captures and vectors beside this repository, if it is there.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")).join(path);
    path.exists().then_some(path)
}

/// Whether a program can be run.
pub(crate) fn has_program(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
