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
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let all = std::env::var("ROCE_TEST_REQUIRE").is_ok_and(|value| value == "all");
    assert!(!all, "{name} must not be skipped (ROCE_TEST_REQUIRE=all): {reason}");
    // Not `eprintln`: the test harness would keep it to itself.
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {reason}");
    true
}
