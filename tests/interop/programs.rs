//! The programs of perftest in the guest with `roce perf` here, each as server and as client.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::case::{Family, Scope};
use crate::common::{Finished, Running, roce};
use crate::setting::Setting;

/// Options of both sides. The guest's processors are emulated and stand still at times: hence the long timeout.
const OPTIONS: &str = "-F -u 18";
/// Operation, kind of test, and further options of both sides.
const TESTS: [(&str, &str, &str); 22] = [
    ("write", "bw", "-n 100"),
    ("send", "bw", "-n 100"),
    ("read", "bw", "-n 100"),
    ("atomic", "bw", "-n 100"),
    ("write", "lat", "-n 100"),
    ("send", "lat", "-n 100"),
    ("read", "lat", "-n 100"),
    ("atomic", "lat", "-n 100"),
    ("write", "bw", "-n 50 -b"),
    ("send", "bw", "-n 50 -b"),
    ("read", "bw", "-n 50 -b"),
    ("atomic", "bw", "-n 50 -b"),
    ("write", "bw", "-n 30 -q 4"),
    ("send", "bw", "-n 30 -q 4"),
    ("read", "bw", "-n 30 -q 4"),
    ("atomic", "bw", "-n 30 -q 4"),
    ("write", "bw", "-n 5 -a"),
    ("send", "lat", "-n 5 -a"),
    ("send", "bw", "-n 100 -s 1000 -c UC -t 16"),
    ("send", "bw", "-n 100 -s 1000 -c UD -t 16"),
    ("write", "lat", "-n 100 -c UC"),
    ("write", "bw", "-D 2"),
];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

/// The program in the guest.
fn original(setting: &Setting, program: &str, options: &str, server: Option<&str>) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/guest"));
    command.args(["run", &setting.guest, "--timeout", "150", "--", program, "-d", "rxe0"]);
    command.args(words(OPTIONS)).args(words(options)).args(server);
    command
}

fn check(what: &str, finished: &Finished) -> Result<()> {
    ensure!(finished.success, "{what}: {} {}", finished.stdout, finished.stderr);
    Ok(())
}

/// One test with the original as client, then as server.
fn one(setting: &Setting, verb: &str, kind: &str, options: &str) -> Result<()> {
    let addresses = setting.addresses(Family::V4);
    let (ours, theirs) = (addresses.ours.to_string(), addresses.theirs.to_string());
    let program = format!("ib_{verb}_{kind}");
    let perf = |server: Option<&str>| {
        let mut command = roce();
        command.args(["perf", verb, kind, "-d", setting.spec(Family::V4), "--patience", "20"]);
        command.args(words(OPTIONS)).args(words(options)).args(server);
        command
    };
    let mut server = Running::start(&mut perf(None));
    server.until_it_says("waiting on");
    let client = Running::start(&mut original(setting, &program, options, Some(&ours))).finish(170);
    check("the client in the guest", &client)?;
    check("our server", &server.finish(170))?;
    let server = Running::start(&mut original(setting, &program, options, None));
    check("our client", &Running::start(&mut perf(Some(&theirs))).finish(170))?;
    check("the server in the guest", &server.finish(170))
}

pub(crate) fn run(setting: &Setting) -> Result<String> {
    // The small matrix has each program once.
    let count = if setting.scope == Scope::Smoke { 8 } else { TESTS.len() };
    for (verb, kind, options) in TESTS.into_iter().take(count) {
        one(setting, verb, kind, options).with_context(|| format!("ib_{verb}_{kind} {options}"))?;
    }
    Ok(format!("{count} tests of perftest in both roles"))
}
