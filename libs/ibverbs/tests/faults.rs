//! Faults on demand (`ROCE_VERBS_FAULT`), as a program in C sees them.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use roce_testing::{Finished, Running, has_program, skip_unless};

/// The program of `tests/c/faults.c` in a folder with the library.
struct Program {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    /// Compiles the program; returns `None` if that is not possible.
    fn new() -> Option<Self> {
        let root = common::distribution();
        let is_there = root.is_some() && has_program("cc");
        if skip_unless(is_there, "no packages of a Debian system, or no C compiler") {
            return None;
        }
        let folder = common::library_folder();
        let path = folder.path().join("faults");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-I"]);
        compiler.arg(root.expect("checked").join("usr/include")).arg("-o").arg(&path);
        compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/faults.c"));
        compiler.arg("-L").arg(folder.path()).arg("-libverbs");
        let compiled = Running::start(&mut compiler).finish(60);
        assert!(compiled.success, "{}", compiled.stderr);
        Some(Self { folder, path })
    }

    fn command(&self, mode: &str, plan: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.arg(mode).env("LD_LIBRARY_PATH", self.folder.path()).env("ROCE_VERBS_FAULT", plan);
        command.env("ROCE_DEVICE", format!("udp:{}", roce_testing::own_address()));
        command
    }

    /// Runs the program, which must succeed.
    #[track_caller]
    fn run(&self, mode: &str, plan: &str) -> Finished {
        let ran = Running::start(&mut self.command(mode, plan)).finish(60);
        assert!(ran.success, "{mode}: {ran:?}");
        ran
    }
}

/// Returns the lines of the log on standard error, without their times.
fn logged(ran: &Finished) -> Vec<String> {
    let lines = ran.stderr.lines().map(|line| {
        let rest = line.strip_prefix("roce: verbs fault: ").unwrap_or_else(|| panic!("{line}"));
        let (time, what) = rest.split_once(' ').expect("a time");
        assert!(time.parse::<f64>().is_ok_and(|time| (0.0..60.0).contains(&time)), "{line}");
        what.to_owned()
    });
    lines.collect()
}

/// A plan with calls of each kind of result.
const CALLS: &str = "ibv_reg_mr:3=ENOMEM;ibv_query_device:2=EIO;ibv_post_recv:1=EAGAIN;ibv_post_send:1=ENOMEM;\
                     ibv_wr_complete:1=EINVAL;ibv_poll_cq:1=EIO;ibv_get_async_event:1=ENODEV;\
                     ibv_alloc_pd:2:delay=250ms;ibv_dealloc_pd:1=EBUSY;ibv_get_device_list:delay=1ms";

#[test]
fn calls_fail_as_functions_of_their_kind_do_and_have_no_effect() {
    let Some(program) = Program::new() else { return };
    let ran = program.run("calls", CALLS);
    for line in [
        "ibv_reg_mr 2: region, errno 0",
        "ibv_reg_mr 3: null, errno 12",
        "ibv_reg_mr 4: region, errno 0",
        "ibv_query_device 1: 0",
        "ibv_query_device 2: 5",
        "ibv_query_device 3: 0",
        "ibv_post_recv: 11, then 0",
        "ibv_post_send: 12, then 0",
        "ibv_wr_complete: 22, then 0",
        "ibv_poll_cq: -1, errno 5",
        "wr 1: success, vendor_err 0",
        "wr 2: success, vendor_err 0",
        "wr 3: success, vendor_err 0",
        "wr 4: success, vendor_err 0",
        "state 3",
        "ibv_get_async_event: -1, errno 19",
        "ibv_alloc_pd: slow",
        "ibv_dealloc_pd: 16, then 0",
    ] {
        assert!(ran.stdout.lines().any(|found| found == line), "{line}: {}", ran.stdout);
    }
    let expected = [
        "ibv_get_device_list 1 delay=1ms",
        "ibv_reg_mr 3 ENOMEM",
        "ibv_query_device 2 EIO",
        "ibv_post_recv 1 EAGAIN",
        "ibv_post_send 1 ENOMEM",
        "ibv_wr_complete 1 EINVAL",
        "ibv_poll_cq 1 EIO",
        "ibv_get_async_event 1 ENODEV",
        "ibv_alloc_pd 2 delay=250ms",
        "ibv_dealloc_pd 1 EBUSY",
    ];
    assert_eq!(logged(&ran), expected);
}

#[test]
fn the_log_goes_to_a_file_and_the_plan_comes_from_one() {
    let Some(program) = Program::new() else { return };
    let [plan, log] = ["plan", "log"].map(|name| program.folder.path().join(name));
    std::fs::write(&plan, "# two faults\nseed=3\nibv_reg_mr:2=ENOMEM\nibv_reg_mr:4=ENOSPC\n").unwrap();
    let mut command = program.command("regions", &format!("@{}", plan.display()));
    let running = Running::start(command.env("ROCE_VERBS_FAULT_LOG", &log));
    let process = running.pid();
    let ran = running.finish(60);
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [first, second] = lines[..] else { panic!("{text}: {ran:?}") };
    for (line, what) in [(first, "ibv_reg_mr 2 ENOMEM"), (second, "ibv_reg_mr 4 ENOSPC")] {
        assert!(line.starts_with(&format!("{process} ")) && line.ends_with(what), "{line}");
    }
    assert!(ran.success && ran.stderr.is_empty(), "{ran:?}");
}

/// The program cannot open a device, and the report says why.
#[test]
fn a_text_that_is_not_a_plan_refuses_the_device() {
    let Some(program) = Program::new() else { return };
    let report = tempfile::NamedTempFile::new().unwrap();
    for (plan, reason) in [
        ("ibv_regmr:3=ENOMEM", "did you mean `ibv_reg_mr`?"),
        ("@/nonexistent/plan", "cannot read /nonexistent/plan"),
    ] {
        let mut command = program.command("open", plan);
        let ran = Running::start(command.env("ROCE_REPORT", report.path())).finish(60);
        assert!(!ran.success && ran.stderr.contains("errno 22"), "{ran:?}");
        let text = std::fs::read_to_string(report.path()).unwrap();
        assert!(text.contains("ROCE_VERBS_FAULT=") && text.contains(reason), "{text}");
    }
    let open = program.run("open", "ibv_open_device:2=EIO");
    assert_eq!(open.stderr, "");
}

/// Returns the lines of the program about work requests, and its states.
fn outcomes(ran: &Finished) -> Vec<&str> {
    ran.stdout.lines().collect()
}

/// The second send fails, the later ones are flushed although they had succeeded, and after RESET the queue
/// pair works again.
#[test]
fn a_failed_completion_stops_its_queue_pair_until_reset() {
    let Some(program) = Program::new() else { return };
    let ran = program.run("completions", "completion:send:qp=1:2=IBV_WC_RETRY_EXC_ERR");
    let lines = outcomes(&ran);
    let end = lines.iter().position(|line| line.starts_with("state")).expect("a state");
    let (first, second) = lines.split_at(end + 1);
    assert_eq!((first.last(), second.last()), (Some(&"state 6"), Some(&"state 3")), "{}", ran.stdout);
    let sends: Vec<_> =
        first.iter().filter(|line| ["wr 1:", "wr 2:", "wr 3:", "wr 4:"].contains(&&line[..5])).collect();
    let flushed = "Work Request Flushed Error, vendor_err 1";
    let expected = [
        "wr 1: success, vendor_err 0".to_owned(),
        "wr 2: transport retry counter exceeded, vendor_err 2".to_owned(),
        format!("wr 3: {flushed}"),
        format!("wr 4: {flushed}"),
    ];
    assert_eq!(sends, expected.iter().collect::<Vec<_>>(), "{}", ran.stdout);
    assert!(first.contains(&format!("wr 15: {flushed}").as_str()), "{}", ran.stdout);
    assert!(second.iter().all(|line| line.ends_with("success, vendor_err 0") || *line == "state 3"));
    let [log] = &logged(&ran)[..] else { panic!("{}", ran.stderr) };
    assert!(log.starts_with("completion 2 IBV_WC_RETRY_EXC_ERR qp=0x") && log.ends_with("wr_id=2"), "{log}");
}

#[test]
fn a_receive_can_fail() {
    let Some(program) = Program::new() else { return };
    let ran = program.run("completions", "completion:recv:1=IBV_WC_LOC_PROT_ERR");
    let lines = outcomes(&ran);
    assert!(lines.contains(&"wr 11: local protection error, vendor_err 11"), "{}", ran.stdout);
    assert!(lines.contains(&"wr 15: Work Request Flushed Error, vendor_err 1"), "{}", ran.stdout);
    assert_eq!(logged(&ran).len(), 1);
}

/// Creates the files of a port as `roce run` does, below a folder.
fn port_files(root: &Path) {
    let port = root.join("sys/class/infiniband/roce0/ports/1");
    std::fs::create_dir_all(&port).unwrap();
    std::fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
    std::fs::write(port.join("phys_state"), "5: LinkUp\n").unwrap();
}

/// Events, queries and files agree, and a request that is posted meanwhile completes afterwards.
#[test]
fn a_port_goes_down_and_comes_back() {
    let Some(program) = Program::new() else { return };
    let root = tempfile::tempdir().unwrap();
    port_files(root.path());
    let mut command = program.command("port", "port:down@2s..4s");
    let ran = Running::start(command.env("ROCE_SYSFS", root.path())).finish(60);
    let expected = "port ACTIVE\nevent: port error, port DOWN\nfile 1: DOWN\nevent: port active, port ACTIVE\n\
                    file 4: ACTIVE\nwr 1: success, vendor_err 0\nstate 3\ntraffic stopped\n";
    assert!(ran.success && ran.stdout == expected, "{ran:?}");
    let physical = root.path().join("sys/class/infiniband/roce0/ports/1/phys_state");
    assert_eq!(std::fs::read_to_string(physical).unwrap(), "5: LinkUp\n");
    assert_eq!(logged(&ran), ["port roce0 down", "port roce0 up"]);
}

/// The link goes down once after a number of bytes, and the RC connection survives.
#[test]
fn a_link_flaps_after_a_number_of_bytes() {
    let Some(program) = Program::new() else { return };
    let ran = program.run("flap", "link:roce0:flap@100000 for 300ms");
    assert_eq!(ran.stdout.matches(": success, vendor_err 0\nstate 3\n").count(), 4, "{}", ran.stdout);
    let events: Vec<_> = ran.stdout.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let [down, up] = events[..] else { panic!("{}", ran.stdout) };
    assert!(down.starts_with("port error") && up == "port active, port ACTIVE", "{}", ran.stdout);
    assert_eq!(logged(&ran), ["port roce0 down", "port roce0 up"]);
}

#[test]
fn one_of_two_devices_dies() {
    let Some(program) = Program::new() else { return };
    let mut command = program.command("fatal", "device:roce1:fatal@1500ms");
    let addresses = [(); 2].map(|()| roce_testing::own_address());
    command.env("ROCE_DEVICE", addresses.map(|address| format!("udp:{address}")).join(";"));
    let ran = Running::start(&mut command).finish(60);
    let expected = "event: local catastrophic error, port DOWN\nwr 1: Work Request Flushed Error, vendor_err 1\n\
                    state 6\nibv_poll_cq: -1, errno 5\nthe other port is ACTIVE\n";
    assert!(ran.success && ran.stdout == expected, "{ran:?}");
    assert_eq!(logged(&ran), ["device roce1 fatal"]);
}

#[test]
fn a_queue_pair_fails_at_a_point_in_time() {
    let Some(program) = Program::new() else { return };
    // The program ends after the fault of queue pair 2, so that is the last one.
    let ran = program.run("queue-pair", "qp:7:error@1400ms;qp:2:error@1500ms");
    let expected = "event: local work queue catastrophic error, of the second one\n\
                    wr 1: Work Request Flushed Error, vendor_err 1\nstate 6\nstate 3\n";
    assert_eq!(ran.stdout, expected);
    let log = logged(&ran);
    let [absent, second] = &log[..] else { panic!("{log:?}") };
    assert!(absent == "qp 7 does not exist" && second.starts_with("qp 2 error qp=0x"), "{log:?}");
}

/// A plan without an end in sight does not keep a program from ending, and several engines are refused.
#[test]
fn a_later_fault_does_not_matter_and_several_engines_are_refused() {
    let Some(program) = Program::new() else { return };
    let ran = program.run("regions", "port:down@1000s;link:flap@1GiB for 1s");
    assert_eq!(ran.stderr, "");
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut command = program.command("open", "port:down@1000s");
    command.env("ROCE_REPORT", report.path()).env("ROCE_ENGINES", "2");
    assert!(!Running::start(&mut command).finish(60).success);
    let text = std::fs::read_to_string(report.path()).unwrap();
    assert!(text.contains("need a device with one engine"), "{text}");
}
