//! Skipping a test with a message.

use std::io::Write;

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
pub fn skip_unless(condition: bool, reason: &str) -> bool {
    if condition {
        return false;
    }
    let all = std::env::var("ROCE_TEST_REQUIRE").is_ok_and(|value| value == "all");
    assert!(
        !all,
        "{} must not be skipped (ROCE_TEST_REQUIRE=all): {reason}",
        std::thread::current().name().unwrap_or("the test")
    );
    say("SKIPPED", reason);
    true
}

/// Prints a word about the test that runs, and the reason, past the capturing of output.
pub(crate) fn say(word: &str, reason: &str) {
    let thread = std::thread::current();
    // With one thread, the harness runs a test on the main thread, and has already written its name and no end of the line.
    let line = match thread.name().filter(|name| *name != "main") {
        Some(test) => format!("{word} {test}: {reason}\n"),
        None => format!("\n{word}: {reason}\n"),
    };
    // Not `eprint`: the test harness would capture it. One call for the whole line, or those of other tests get in between.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
