//! Runs unmodified programs of the distribution on this library: two processes, each with its own address.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use roce_testing::{Finished, Running, has_program, skip_unless};

/// Time limit for one program, in seconds.
const SECONDS: u64 = 60;

/// The file that perftest opens for XRC. If another user created it, the kernel refuses to open it for
/// writing, even to root (`fs.protected_regular`).
const XRC_FILE: &str = "/tmp/xrc_domain";

/// The programs share addresses and TCP ports, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The programs, and the library under the name by which they load it.
struct Programs {
    root: &'static Path,
    library: tempfile::TempDir,
}

impl Programs {
    fn find() -> Option<Self> {
        Some(Self { root: common::distribution()?, library: common::library_folder() })
    }

    fn command(&self, name: &str, address: &str, arguments: &[&str]) -> Command {
        let path: PathBuf = self.root.join("usr/bin").join(name);
        self.prepared(Command::new(path), address, arguments)
    }

    /// Returns the command under valgrind, where a memory error causes a special exit status.
    fn under_valgrind(&self, name: &str, address: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("valgrind");
        // Valgrind runs one thread at a time, so the threads have to take turns.
        command.args([
            "-q",
            "--tool=memcheck",
            "--error-exitcode=99",
            "--fair-sched=yes",
            "--num-callers=25",
        ]);
        command.arg(self.root.join("usr/bin").join(name));
        self.prepared(command, address, arguments)
    }

    fn prepared(&self, mut command: Command, address: &str, arguments: &[&str]) -> Command {
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", common::library_path(self.library.path(), self.root))
            .env("ROCE_DEVICE", format!("udp:{address}"));
        command
    }

    /// Returns a command for which the first GID is at all indexes up to 7.
    fn with_gid_index(&self, name: &str, address: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(name, address, arguments);
        command.env("ROCE_GID_INDEX", "7");
        command
    }

    /// Returns a command for which another file is mounted at [`XRC_FILE`].
    fn with_own_xrc_file(&self, name: &str, address: &str, arguments: &[&str]) -> Command {
        let file = self.library.path().join("xrc_domain");
        std::fs::write(&file, "").unwrap();
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c"]);
        command.arg(format!("mount --bind \"$0\" {XRC_FILE} && exec \"$@\"")).arg(file);
        command.arg(self.root.join("usr/bin").join(name));
        self.prepared(command, address, arguments)
    }

    /// Returns a command with two engines.
    fn with_two_engines(&self, name: &str, address: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(name, address, arguments);
        command.env("ROCE_ENGINES", "2");
        command
    }

    /// Runs a server on one address and a client on another one; both must succeed.
    #[track_caller]
    fn pair(&self, name: &str, arguments: &[&str]) -> [Finished; 2] {
        self.pair_of(Self::command, name, arguments)
    }

    /// Does the same as [`Self::pair`], with commands that `make` creates from a name, an address and
    /// arguments.
    #[track_caller]
    fn pair_of(
        &self,
        make: fn(&Self, &str, &str, &[&str]) -> Command,
        name: &str,
        arguments: &[&str],
    ) -> [Finished; 2] {
        // Each pair uses its own port, because the last one may be in TIME_WAIT, and 18515 in use by another
        // program.
        static PORT: AtomicU16 = AtomicU16::new(23_100);
        let port = PORT.fetch_add(1, Ordering::Relaxed).to_string();
        let arguments = &[arguments, &["-p", &port]].concat();
        let (near, far) = ("127.83.0.1", "127.83.0.2");
        let mut server = Running::start(&mut make(self, name, near, arguments));
        // The servers do not print when they listen, and a client ends at once without a server.
        let deadline = std::time::Instant::now() + Duration::from_secs(SECONDS);
        loop {
            std::thread::sleep(Duration::from_millis(300));
            assert!(server.is_alive(), "{name}: the server ended: {:?}", server.finish(SECONDS));
            let mut command = make(self, name, far, arguments);
            let client = Running::start(command.arg(near)).finish(SECONDS);
            let is_early =
                client.stderr.contains("Couldn't connect") || client.stderr.contains("Connection refused");
            if is_early && std::time::Instant::now() < deadline {
                continue;
            }
            assert!(client.success, "{name} {arguments:?}: {client:?}");
            let server = server.finish(SECONDS);
            assert!(server.success, "{name} {arguments:?}: {server:?}");
            return [server, client];
        }
    }
}

/// Returns the programs and the lock for running them, or skips the test if they are not available.
macro_rules! programs_or_skip {
    () => {{
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = Programs::find();
        if skip_unless(programs.is_some(), "no packages of a Debian system") {
            return;
        }
        (alone, programs.expect("checked"))
    }};
}

#[test]
fn the_device_is_listed_with_its_attributes() {
    let (_alone, programs) = programs_or_skip!();
    let listed = Running::start(&mut programs.command("ibv_devices", "127.83.0.1", &[])).finish(SECONDS);
    assert!(listed.success && listed.stdout.contains("roce0"), "{listed:?}");
    let shown = Running::start(&mut programs.command("ibv_devinfo", "127.83.0.1", &["-v"])).finish(SECONDS);
    assert!(shown.success, "{shown:?}");
    for part in ["PORT_ACTIVE", "Ethernet", "::ffff:127.83.0.1, RoCE v2", "MEM_WINDOW_TYPE_2B"] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    assert_eq!(shown.stderr, "");
}

#[test]
fn ping_pongs_end_with_the_right_data() {
    let (_alone, programs) = programs_or_skip!();
    for name in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for extra in [&[][..], &["-e"]] {
            // `-c` compares the received data.
            let arguments = [&["-g", "0", "-n", "100", "-c"], extra].concat();
            let [_, client] = programs.pair(name, &arguments);
            assert!(client.stdout.contains("100 iters"), "{name}: {client:?}");
        }
    }
    // For XRC without `-c`, which is the number of clients there.
    for extra in [&[][..], &["-e"]] {
        programs.pair("ibv_xsrq_pingpong", &[&["-g", "0", "-n", "100"], extra].concat());
    }
}

/// Programs have a fixed index: 0, 1 (the first IPv4 address of Soft-RoCE) or 3 (that of ConnectX). If the
/// table is shorter, the report says what to do.
#[test]
fn the_gid_stands_at_the_index_that_a_program_has_built_in() {
    let (_alone, programs) = programs_or_skip!();
    for name in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
        for index in ["1", "3"] {
            programs.pair(name, &["-g", index, "-n", "20", "-c"]);
        }
        programs.pair_of(Programs::with_gid_index, name, &["-g", "7", "-n", "20", "-c"]);
    }
    let mut info = programs.with_gid_index("ibv_devinfo", "127.83.0.1", &["-v"]);
    let shown = Running::start(&mut info).finish(SECONDS);
    for index in 0..8 {
        let line = format!("GID[{index:3}]:\t\t::ffff:127.83.0.1, RoCE v2");
        assert!(shown.stdout.contains(&line), "{line:?}: {}", shown.stdout);
    }
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut without = programs.command("ibv_rc_pingpong", "127.83.0.1", &["-g", "4"]);
    let refused = Running::start(without.env("ROCE_REPORT", report.path())).finish(SECONDS);
    let text = std::fs::read_to_string(report.path()).unwrap();
    assert!(
        !refused.success && text.contains("no GID with index 4, its last index is 3"),
        "{refused:?}: {text}"
    );
}

#[test]
fn engines_are_completion_vectors_and_a_program_without_need_of_them_runs() {
    let (_alone, programs) = programs_or_skip!();
    let mut info = programs.with_two_engines("ibv_devinfo", "127.83.0.1", &["-v"]);
    let shown = Running::start(&mut info).finish(SECONDS);
    let line = shown.stdout.lines().find(|line| line.contains("num_comp_vectors"));
    assert!(shown.success && line.is_some_and(|line| line.ends_with('2')), "{shown:?}");
    for extra in [&[][..], &["-e"]] {
        let arguments = [&["-g", "0", "-n", "100", "-c"], extra].concat();
        programs.pair_of(Programs::with_two_engines, "ibv_rc_pingpong", &arguments);
    }
    let report = tempfile::NamedTempFile::new().unwrap();
    for (name, value, reason) in [
        ("ROCE_ENGINES", "64", "expected a number from 1 to 63"),
        ("ROCE_FAULT", "drop=1%", "faults and captures apply to a single device"),
    ] {
        let mut refused = programs.with_two_engines("ibv_devinfo", "127.83.0.1", &[]);
        let refused = refused.env(name, value).env("ROCE_REPORT", report.path());
        assert!(!Running::start(refused).finish(SECONDS).success);
        let text = std::fs::read_to_string(report.path()).unwrap();
        assert!(text.contains(reason), "{text}");
    }
}

/// Neither end uses uninitialized bytes or memory of others.
#[test]
fn a_ping_pong_has_no_error_of_memory() {
    let (_alone, programs) = programs_or_skip!();
    if skip_unless(has_program("valgrind"), "valgrind is not installed") {
        return;
    }
    for extra in [&[][..], &["-e"]] {
        let arguments = [&["-g", "0", "-n", "50", "-c"], extra].concat();
        for finished in programs.pair_of(Programs::under_valgrind, "ibv_rc_pingpong", &arguments) {
            assert!(finished.stdout.contains("50 iters") && !finished.stderr.contains("=="), "{finished:?}");
        }
    }
}

#[test]
fn perftest_measures() {
    let (_alone, programs) = programs_or_skip!();
    let bandwidth = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"];
    let latency = ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_lat"];
    for name in bandwidth.into_iter().chain(latency) {
        let [_, client] = programs.pair(name, &["-d", "roce0", "-n", "100", "-F"]);
        assert!(client.stdout.contains(" 100 "), "{name}: {client:?}");
    }
    for (name, extra) in [("ib_send_bw", "-e"), ("ib_send_lat", "-e"), ("ib_send_bw", "-b")] {
        programs.pair(name, &["-d", "roce0", "-n", "100", "-F", extra]);
    }
    for name in ["ib_send_bw", "ib_send_lat"] {
        programs.pair(name, &["-d", "roce0", "-n", "100", "-F", "-c", "UD"]);
    }
    programs.pair("ib_write_bw", &["-d", "roce0", "-n", "100", "-F", "-c", "UC"]);
}

/// Regression: only the first user of a machine could run this test, because the file belonged to that user.
#[test]
fn perftest_measures_over_xrc() {
    let (_alone, programs) = programs_or_skip!();
    let existed = Path::new(XRC_FILE).exists();
    let is_usable = std::fs::OpenOptions::new().create(true).append(true).open(XRC_FILE).is_ok();
    let make = if is_usable { Programs::command } else { Programs::with_own_xrc_file };
    let works = || Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
    if !is_usable
        && skip_unless(works().is_ok_and(|status| status.success()), "another user has perftest's file")
    {
        return;
    }
    for name in ["ib_send_bw", "ib_write_lat", "ib_read_bw"] {
        programs.pair_of(make, name, &["-d", "roce0", "-n", "100", "-F", "-c", "XRC"]);
    }
    if !existed {
        std::fs::remove_file(XRC_FILE).unwrap();
    }
}

/// qperf supports only LIDs, unless it uses the connection manager.
#[test]
fn qperf_measures() {
    let (_alone, programs) = programs_or_skip!();
    let (near, far) = ("127.83.0.1", "127.83.0.2");
    let mut server = Running::start(&mut programs.command("qperf", near, &[]));
    let tests = [
        "rc_bw",
        "rc_lat",
        "rc_bi_bw",
        "uc_bw",
        "uc_lat",
        "ud_bw",
        "ud_lat",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_rdma_write_poll_lat",
        "rc_rdma_read_bw",
        "rc_rdma_read_lat",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ];
    for test in tests {
        let mut command = programs.command("qperf", far, &["-t", "1", "--wait_server", "10", near, test]);
        let client = Running::start(&mut command).finish(SECONDS);
        assert!(client.success && client.stdout.contains(" = "), "{test}: {client:?}");
    }
    assert!(server.is_alive(), "the server ended");
}

#[test]
fn without_its_device_a_program_fails() {
    let (_alone, programs) = programs_or_skip!();
    // This machine does not have this address.
    let mut command = programs.command("ibv_devinfo", "192.0.2.77", &[]);
    let failed = Running::start(&mut command).finish(SECONDS);
    assert!(!failed.success, "{failed:?}");
}
