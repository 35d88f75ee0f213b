//! Tests the helper that runs programs in the tests of all crates.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use roce_testing::{Running, on_idle};

/// Regression: a test waited forever for the output of a program that had ended while its child still ran.
#[test]
fn a_child_that_keeps_the_output_of_an_ended_program_open_is_reported() {
    let begun = Instant::now();
    let running = Running::start(Command::new("sh").args(["-c", "sleep 6 & echo started"]));
    let finish = || running.finish_and_close(20, Duration::from_millis(200));
    let panic = catch_unwind(AssertUnwindSafe(finish)).expect_err("it has no end");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("keeps its output open") && text.contains("started"), "{text}");
    assert!(on_idle(begun.elapsed()) < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn what_an_ended_program_and_its_children_wrote_is_collected() {
    let running =
        Running::start(Command::new("sh").args(["-c", "(sleep 0.1; echo late) & echo early; exit 3"]));
    let finished = running.finish_and_close(20, Duration::from_secs(10));
    assert_eq!((finished.stdout.as_str(), finished.code), ("early\nlate\n", Some(3)));
}
