//! `roce run` with programs that need no device.

mod common;

use common::{Running, roce, within};

fn run(script: &str) -> Running {
    let mut command = roce();
    command.args(["run", "--device", "udp:127.0.0.1", "--", "sh", "-c", script]);
    Running::start(&mut command)
}

#[test]
fn the_status_and_the_environment_are_those_of_the_program() {
    within(60, || {
        let finished = run("echo $ROCE_DEVICE; exit 3").finish(30);
        assert_eq!((finished.code, finished.stdout.trim()), (Some(3), "udp:127.0.0.1"), "{finished:?}");
    });
}

/// Some look there themselves (UCX): names of files are led to what the command made, and other names are left alone.
#[test]
fn a_program_finds_its_devices_below_sys_and_dev() {
    within(60, || {
        let script = "ls /sys/class/infiniband /dev/infiniband && cat /sys/class/infiniband/roce0/ports/1/gid_attrs/ndevs/0 && \
            test -c /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0 && readlink -f /sys/class/net/lo && \
            test ! -e /sys/class/infiniband/roce1 && ls -l /sys/class/infiniband/";
        let finished = run(script).finish(30);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        for part in ["roce0\n", "uverbs0\n", "lo\n", "/sys/devices/virtual/net/lo\n", "roce0 -> "] {
            assert!(finished.stdout.contains(part), "{part}: {finished:?}");
        }
    });
}

/// They were blocked in the program as they were in the command, so that no `timeout` could end a server.
#[test]
fn a_program_gets_signals_as_usual() {
    within(60, || {
        let finished = run("kill -TERM $$; echo survived").finish(30);
        assert_eq!((finished.code, finished.stdout.trim()), (Some(128 + 15), ""), "{finished:?}");
    });
}

#[test]
fn a_signal_to_the_command_reaches_the_program() {
    within(60, || {
        let mut running = run("trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.1; done");
        running.wait_for_line("ready");
        // SAFETY: this is the process of the command, which is waited for below.
        unsafe { libc::kill(running.pid().cast_signed(), libc::SIGTERM) };
        let finished = running.finish(30);
        assert!(finished.code == Some(7) && finished.stdout.contains("asked"), "{finished:?}");
    });
}

/// It ended the command, and left the program alone, when it arrived before the command had blocked signals: the program ran already.
#[test]
fn a_signal_as_soon_as_the_program_runs_reaches_it() {
    within(60, || {
        for _ in 0..20 {
            let finished =
                run("trap 'exit 7' TERM; kill -TERM $PPID; for i in $(seq 100); do sleep 0.1; done")
                    .finish(30);
            assert_eq!(finished.code, Some(7), "{finished:?}");
        }
    });
}

/// Python wheels bring libraries with names of their own, and a path to them that comes before ours.
#[test]
fn an_alias_loads_our_library_under_the_name_of_the_programs_own() {
    within(60, || {
        let run = |arguments: &[&str]| {
            let mut command = roce();
            command.args(["run", "--device", "udp:127.0.0.1"]).args(arguments);
            Running::start(command.args(["--", "cat", "/proc/self/maps"])).finish(30)
        };
        let without = run(&[]);
        assert!(without.success && !without.stdout.contains("libibverbs"), "{without:?}");
        let with = run(&["--alias", "libibverbs-1de1263b.so.1.14.48.0", "--alias", "librdmacm-2.so"]);
        assert!(with.success, "{with:?}");
        assert!(with.stdout.contains("libibverbs") && with.stdout.contains("librdmacm"), "{with:?}");
        let refused = run(&["--alias", "libc.so.6"]);
        assert!(refused.code == Some(2) && refused.stderr.contains("begins with libibverbs"), "{refused:?}");
    });
}

#[test]
fn a_number_of_engines_reaches_the_library() {
    within(60, || {
        let run = |engines: &str| {
            let mut command = roce();
            command.args(["run", "--device", "udp:127.0.0.1", "--engines", engines]);
            Running::start(command.args(["--", "sh", "-c", "echo $ROCE_ENGINES"])).finish(30)
        };
        let two = run("2");
        assert!(two.success && two.stdout.trim() == "2", "{two:?}");
        for none in ["0", "64", "many"] {
            let refused = run(none);
            assert!(refused.code == Some(2) && refused.stderr.contains("--engines"), "{refused:?}");
        }
    });
}
