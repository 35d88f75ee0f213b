//! Calls that do not return to their caller, a thousand times each. A thread is cancelled in them, a signal
//! handler jumps out of them, or the process forks at the same time. See the C program `tests/c/endings.c`.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use roce_testing::{Running, distribution, has_program, own_address, skip_unless};

const TIMES: &str = "1000";
/// Time limit in seconds. On a machine with a load of 16, the program takes tens of seconds.
const SECONDS: u64 = 600;

/// Runs the program in one of its modes. `ROCE_SEED` sets the seed of its random numbers.
#[track_caller]
fn ends_well(mode: &str, times: &str) {
    let root = distribution(env!("CARGO_TARGET_TMPDIR"));
    if skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let test = std::env::current_exe().expect("the path of the test");
    for name in ["libibverbs", "librdmacm"] {
        for end in ["so.1", "so"] {
            let library = test.with_file_name(format!("{name}.so"));
            symlink(library, folder.path().join(format!("{name}.{end}"))).expect("a link");
        }
    }
    let program = folder.path().join("endings");
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-I"])
        .arg(root.expect("checked").join("usr/include"));
    command.arg("-o").arg(&program).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/endings.c"));
    command.arg("-L").arg(folder.path()).args(["-lrdmacm", "-libverbs", "-lpthread"]);
    let compiled = Running::start(&mut command).finish(120);
    assert!(compiled.success, "{}", compiled.stderr);

    let seed = std::env::var("ROCE_SEED").unwrap_or_else(|_| std::process::id().to_string());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c 0; exec \"$0\" \"$@\""]).arg(&program).args([mode, times, &seed]);
    command.env("LD_LIBRARY_PATH", folder.path());
    command.env("ROCE_DEVICE", format!("udp:{};udp:{}", own_address(), own_address()));
    let ended = Running::start(&mut command).finish(SECONDS);
    assert!(
        ended.success && ended.stdout.contains("all is as it should be"),
        "{ended:?}\nreplay with: ROCE_SEED={seed} cargo test -p roce-rdmacm --test endings {mode}"
    );
}

/// Regression: cancellation in `ibv_get_cq_event` and `ibv_poll_cq` ended the process. In `rdma_get_cm_event`
/// and `ibv_get_async_event` it had no effect.
#[test]
fn cancel_ends_the_thread_and_leaves_the_device_as_it_was() {
    ends_well("cancel", TIMES);
}

/// Regression: after a signal handler had jumped out of a wait, no thread served the device.
#[test]
fn jump_out_of_a_wait_leaves_the_device_served() {
    ends_well("jump", TIMES);
}

/// Regression: a thread that had left its wait still counted as serving the device.
#[test]
fn idle_thread_that_left_a_wait_does_not_keep_the_device() {
    ends_well("idle", "1");
}

/// Regression: a child hung in `ibv_get_device_list` if another thread was registering memory during the
/// fork.
#[test]
fn fork_at_any_time_leaves_no_lock_behind() {
    ends_well("fork", TIMES);
}
