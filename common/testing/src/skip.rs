//! Skipping tests with a message.

use std::io::Write;

/// Returns whether the calling test must be skipped because `condition` does not hold. Prints the test and
/// the reason, bypassing the capture of output:
///
/// ```ignore
/// if skip_unless(tshark_is_there(), "tshark is not installed") {
///     return;
/// }
/// ```
///
/// With `ROCE_TEST_REQUIRE=all` in the environment, the test fails instead of being skipped.
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

/// Prints a word about the running test and the reason, bypassing the capture of output.
pub(crate) fn say(word: &str, reason: &str) {
    let thread = std::thread::current();
    // With one thread, the harness runs a test on the main thread and has printed its name without a newline.
    let line = match thread.name().filter(|name| *name != "main") {
        Some(test) => format!("{word} {test}: {reason}\n"),
        None => format!("\n{word}: {reason}\n"),
    };
    // The test harness would capture `eprint`. A single call prevents lines of other tests in between.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
