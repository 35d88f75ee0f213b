//! `roce run` with programs that need no device.

use crate::common::{Running, roce, within};

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

#[test]
fn a_report_goes_to_a_file_too() {
    within(60, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.txt");
        let run = |path: &std::path::Path, script: &str| {
            let mut command = roce();
            command.args(["run", "--device", "udp:127.0.0.1", "--report"]).arg(path);
            Running::start(command.args(["--", "sh", "-c", script])).finish(30)
        };
        let failed = run(&file, "exit 3");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(failed.code == Some(3) && text.starts_with(&failed.stderr), "{failed:?}: {text}");
        assert!(text.contains("sh ended with status 3\n"), "{text}");
        assert!(text.ends_with("the program opened no device\n"), "{text}");
        let ended = run(&file, "true");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(ended.success && text == "roce: the program opened no device\n", "{ended:?}: {text}");
        // The program does not run if its report could not be kept.
        let refused = run(&folder.path().join("none/report.txt"), "echo ran");
        assert!(refused.code == Some(1) && refused.stdout.is_empty(), "{refused:?}");
        assert!(refused.stderr.starts_with("roce: --report: cannot create "), "{refused:?}");
    });
}

/// Some programs (UCX) read these folders themselves. File names below them refer to the files that the
/// command created; other names are unchanged.
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

/// Regression: the program inherited the blocked signals of the command, so `timeout` could not end a server.
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

/// Regression: a signal that arrived after the start of the program, but before the command had blocked
/// signals, ended the command and left the program running.
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

/// Python wheels bring libraries with other names, and a library path that precedes the one of `roce run`.
#[test]
fn an_alias_loads_our_library_under_the_name_of_the_programs_own() {
    within(60, || {
        let run = |arguments: &[&str]| {
            let mut command = roce();
            command.args(["run", "--device", "udp:127.0.0.1"]).args(arguments);
            Running::start(command.args(["--", "cat", "/proc/self/maps"])).finish(30)
        };
        let with = run(&["--alias", "libibverbs-1de1263b.so.1.14.48.0", "--alias", "librdmacm-2.so"]);
        assert!(with.success, "{with:?}");
        assert!(with.stdout.contains("libibverbs") && with.stdout.contains("librdmacm"), "{with:?}");
        assert_eq!(with.stderr, "", "an alias is another name of the library that is loaded anyway");
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

#[test]
fn a_plan_of_faults_of_verbs_is_checked_and_reaches_the_library() {
    within(60, || {
        let run = |plan: &str| {
            let mut command = roce();
            command.args(["run", "--device", "udp:127.0.0.1", "--verbs-fault", plan]);
            Running::start(command.args(["--", "sh", "-c", "echo \"$ROCE_VERBS_FAULT\""])).finish(30)
        };
        let plan = "ibv_reg_mr:3=ENOMEM;seed=7";
        let given = run(plan);
        assert!(given.success && given.stdout.trim() == plan, "{given:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), plan).unwrap();
        let read = run(&format!("@{}", file.path().display()));
        assert!(read.success && read.stdout.trim() == plan, "{read:?}");
        for (wrong, reason) in [
            ("ibv_regmr:3=ENOMEM", "did you mean `ibv_reg_mr`?"),
            ("ibv_reg_mr:3", "an error such as =ENOMEM"),
            ("@/nonexistent", "cannot read /nonexistent"),
        ] {
            let refused = run(wrong);
            assert!(refused.code == Some(2) && refused.stderr.contains(reason), "{refused:?}");
        }
    });
}

/// Regression: programs with `DT_RPATH`, which precedes `LD_LIBRARY_PATH`, loaded the distribution's library.
#[test]
fn a_program_with_a_library_path_of_its_own_gets_our_library() {
    let root = roce_testing::distribution(env!("CARGO_TARGET_TMPDIR"));
    let is_there = root.is_some() && roce_testing::has_program("cc");
    if roce_testing::skip_unless(is_there, "no packages of a Debian system, or no C compiler") {
        return;
    }
    within(120, move || {
        let root = root.expect("checked");
        let theirs = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("list.c"), folder.path().join("list"));
        let text = "#include <infiniband/verbs.h>\n#include <stdio.h>\nint main(void) { int n = 0; struct ibv_device **l = \
                    ibv_get_device_list(&n); printf(\"%s\\n\", n == 1 ? ibv_get_device_name(l[0]) : \"none\"); return n != 1; }\n";
        std::fs::write(&source, text).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.arg("-o").arg(&program).arg(&source).arg("-I").arg(root.join("usr/include"));
        compiler.arg(theirs.join("libibverbs.so.1"));
        compiler.arg("-Wl,--disable-new-dtags").arg(format!("-Wl,-rpath,{}", theirs.display()));
        compiler.arg("-Wl,--allow-shlib-undefined");
        let compiled = Running::start(&mut compiler).finish(60);
        assert!(compiled.success, "{compiled:?}");
        let mut command = roce();
        command.args(["run", "--device", "udp:127.0.0.1", "--name", "mlx5_0", "--"]).arg(&program);
        let ran = Running::start(&mut command).finish(30);
        assert!(ran.success && ran.stdout == "mlx5_0\n", "{ran:?}");
    });
}

/// The list and the files use the name.
#[test]
fn a_device_has_the_name_that_was_asked_for() {
    within(60, || {
        let run = |arguments: &[&str]| {
            let mut command = roce();
            command.args(["run", "--device", "udp:127.0.0.1"]).args(arguments);
            command.args(["--", "sh", "-c", "ls /sys/class/infiniband; echo $ROCE_NAME"]);
            Running::start(&mut command).finish(30)
        };
        let named = run(&["--name", "mlx5_0"]);
        assert!(named.success && named.stdout == "mlx5_0\nmlx5_0\n", "{named:?}");
        for (arguments, reason) in [
            (&["--name", "../x"][..], "such as mlx5_0"),
            (&["--name", "a", "--name", "b"], "the program sees 1 device"),
            (&["--device", "udp:127.0.0.2", "--name", "roce1"], "the same name"),
        ] {
            let refused = run(arguments);
            assert!(!refused.success && refused.stderr.contains(reason), "{refused:?}");
        }
    });
}

/// Programs of iproute2 and UCX query devices over netlink.
#[test]
fn netlink_has_the_devices() {
    let has_tool = roce_testing::has_program("rdma");
    if roce_testing::skip_unless(has_tool, "iproute2 is not installed") {
        return;
    }
    within(60, || {
        let run = |arguments: &[&str]| {
            let mut command = roce();
            command
                .args(["run", "--device", "udp:127.0.0.1", "--name", "mlx5_7", "--", "rdma"])
                .args(arguments);
            Running::start(&mut command).finish(30)
        };
        for (arguments, parts) in [
            (&["dev"][..], &["0: mlx5_7: node_type ca", "node_guid 0200:7fff:fe00:0001"][..]),
            (&["dev", "show", "mlx5_7"], &["0: mlx5_7:"]),
            (
                &["link"],
                &["link mlx5_7/1 lid 1 sm_lid 0 lmc 0 state ACTIVE physical_state LINK_UP netdev lo"],
            ),
            (&["link", "show", "mlx5_7/1"], &["link mlx5_7/1"]),
            (&["system"], &["netns shared"]),
        ] {
            let shown = run(arguments);
            assert!(shown.success && shown.stderr.is_empty(), "{arguments:?}: {shown:?}");
            for part in parts {
                assert!(shown.stdout.contains(part), "{part}: {shown:?}");
            }
        }
        let refused = run(&["resource", "show", "qp"]);
        assert!(refused.stderr.contains("not supported"), "{refused:?}");
    });
}

/// Regression: a program that was told to use a device with another name was reported as statically linked.
#[test]
fn a_static_program_and_one_that_asks_for_nothing_are_told_apart() {
    within(60, || {
        let dynamic = run("exit 3").finish(30);
        assert!(dynamic.stderr.contains("the program did not list devices"), "{dynamic:?}");
        assert!(!dynamic.stderr.contains("statically"), "{dynamic:?}");
    });
}

/// The newest version of glibc that the libraries may require. Debian 11 and Ubuntu 20.04 have 2.31;
/// docs/how-to/run.md says how to build for them.
const NEWEST_GLIBC: (u32, u32) = (2, 34);
/// The glibc version of the oldest systems on which a build is supported.
const OLDEST_GLIBC: (u32, u32) = (2, 31);

/// Returns whether glibc had a function before the version that the linker found. Functions moved from
/// libpthread and libdl in 2.34, and those of `stat` were inline before 2.33. A build on an older system uses
/// the older version.
fn is_older_than_its_version(name: &str) -> bool {
    let moved = ["pthread_", "dlsym", "dlopen", "dladdr", "dlerror", "dlclose", "sem_"];
    let inline = ["stat64", "fstat64", "lstat64", "fstatat64", "stat", "fstat", "lstat", "fstatat"];
    moved.iter().any(|beginning| name.starts_with(beginning)) || inline.contains(&name)
}

/// A library that requires a newer glibc does not load, and the program does not start.
#[test]
fn the_libraries_need_no_function_of_a_newer_glibc() {
    if roce_testing::skip_unless(roce_testing::has_program("readelf"), "readelf is not installed") {
        return;
    }
    let test = std::env::current_exe().unwrap();
    for library in ["libibverbs.so", "librdmacm.so", "libroce_sysfs.so"] {
        let symbols = roce_testing::readelf("--dyn-syms", &test.with_file_name(library));
        let mut newest = (0, 0);
        let mut count = 0;
        for word in symbols.split_whitespace() {
            let Some((name, version)) = word.split_once("@GLIBC_") else { continue };
            let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
            let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            assert!(
                version <= OLDEST_GLIBC || (version <= NEWEST_GLIBC && is_older_than_its_version(name)),
                "{library} needs {word}, which glibc {OLDEST_GLIBC:?} does not have"
            );
            newest = newest.max(version);
            count += 1;
        }
        assert!(count > 10, "{library}: {count} names of glibc");
        println!("{library}: glibc {}.{}", newest.0, newest.1);
    }
}
