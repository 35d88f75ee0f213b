//! Unmodified programs of Debian in the guest, each with our command on the other side: as server and as
//! client.

pub(crate) mod cmatose;
pub(crate) mod connections;
pub(crate) mod perftest;
pub(crate) mod pingpong;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};

use crate::case::Family;
use crate::common::{Finished, Running, roce};
use crate::setting::Setting;

/// The role of our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::Server, Self::Client];

    fn name(self) -> &'static str {
        match self {
            Self::Server => "we serve",
            Self::Client => "they serve",
        }
    }
}

/// Two programs, one on each side.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// Name of the row in the table: the original, and the options that distinguish it.
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) family: Family,
    /// Program and options in the guest.
    pub(crate) original: String,
    /// Our subcommand and options, without device and faults.
    pub(crate) ours: String,
    /// Time limit for both, in seconds.
    pub(crate) seconds: u64,
}

/// Returns the script that controls the guest, with these arguments.
fn guest(arguments: &[&str]) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/guest"));
    command.args(arguments);
    command
}

/// Returns a command in the guest with a time limit in seconds.
pub(crate) fn in_guest(setting: &Setting, seconds: u64, line: &str) -> Command {
    let mut command = guest(&["run", &setting.guest, "--timeout", &seconds.to_string(), "--"]);
    command.args(line.split_whitespace());
    command
}

/// A command in the guest that runs until this value is dropped.
pub(crate) struct Detached<'a> {
    setting: &'a Setting,
    job: String,
}

impl<'a> Detached<'a> {
    pub(crate) fn start(setting: &'a Setting, seconds: u64, line: &str) -> Result<Self> {
        let mut command =
            guest(&["run", &setting.guest, "--timeout", &seconds.to_string(), "--detach", "--"]);
        command.args(line.split_whitespace());
        let finished = Running::start(&mut command).finish(60);
        check("starting a command in the guest", &finished)?;
        Ok(Self { setting, job: finished.stdout.trim().to_owned() })
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        let mut command = guest(&["kill", &self.setting.guest, &self.job]);
        let finished = Running::start(&mut command).finish(60);
        if let Err(error) = check("ending a command in the guest", &finished) {
            println!("{error:#}");
        }
    }
}

/// Runs a command in the guest; returns its output.
pub(crate) fn ask_guest(setting: &Setting, line: &str) -> Result<String> {
    let finished = Running::start(&mut in_guest(setting, 60, line)).finish(90);
    ensure!(finished.success, "`{line}` in the guest: {} {}", finished.stdout, finished.stderr);
    Ok(finished.stdout)
}

/// Returns a command of ours, with the device and the faults of the setting.
fn our_command(setting: &Setting, family: Family, line: &str) -> Command {
    let mut command = roce();
    command.args(line.split_whitespace()).args(["--device", setting.spec(family)]);
    if setting.is_lossy() {
        let plan = format!("drop={}%", setting.loss);
        command.args(["--fault", &plan, "--receive-fault", &plan, "--seed", "11"]);
    }
    command
}

/// Waits until a program in the guest listens with rdma_cm, or on one of the TCP ports of the programs: 18515
/// or 19000.
pub(crate) fn await_listener(setting: &Setting) -> Result<()> {
    // The shell of the guest is dash, so `grep` and `sleep` are not those of busybox.
    let mut command = in_guest(setting, 30, "sh -c");
    command.arg(
        "until rdma resource show cm_id | grep -q LISTEN || \
         grep -Eqi ':(4853|4A38) 0+:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done",
    );
    let finished = Running::start(&mut command).finish(60);
    ensure!(finished.success, "no program in the guest listens: {}", finished.stderr);
    Ok(())
}

fn check(what: &str, finished: &Finished) -> Result<()> {
    ensure!(
        finished.success,
        "{what} ended with {:?} after {} ms: {} {}",
        finished.code,
        finished.took.as_millis(),
        finished.stdout,
        finished.stderr
    );
    Ok(())
}

/// Returns whether a client failed because of a race between its own threads. When rping of rdma-core has
/// finished, it closes its event channel. The thread that waits there may notice that before the process has
/// ended.
fn lost_race_at_exit(client: &Finished) -> bool {
    let message = "rdma_get_cm_event: Bad file descriptor";
    client.code == Some(255) && (client.stderr.contains(message) || client.stdout.contains(message))
}

/// Runs both programs, which must succeed. Returns the output of ours.
fn run_pair(setting: &Setting, pair: &Pair) -> Result<String> {
    let limit = pair.seconds + 20;
    let mut original = in_guest(setting, pair.seconds, &pair.original);
    let mut ours = our_command(setting, pair.family, &pair.ours);
    match pair.role {
        Role::Server => {
            let mut server = Running::start(&mut ours);
            server.wait_for_line("waiting on");
            let client = Running::start(&mut original).finish(limit);
            let checked = check("the client in the guest", &client);
            if let Err(error) =
                checked.or_else(|error| if lost_race_at_exit(&client) { Ok(()) } else { Err(error) })
            {
                // The messages of our side complete the report.
                server.interrupt();
                let server = server.finish(2 * limit);
                bail!(
                    "{error}; our server ended with {:?}: {} {}",
                    server.code,
                    server.stdout,
                    server.stderr
                );
            }
            let server = server.finish(limit);
            check("our server", &server)?;
            Ok(server.stdout)
        }
        Role::Client => {
            let server = Running::start(&mut original);
            await_listener(setting)?;
            let client = Running::start(&mut ours).finish(limit);
            check("our client", &client)?;
            check("the server in the guest", &server.finish(limit))?;
            Ok(client.stdout)
        }
    }
}

/// Runs all pairs, records each, and fails at the end if one failed.
pub(crate) fn run(setting: &Setting, pairs: &[Pair]) -> Result<()> {
    let mut failed = Vec::new();
    for pair in pairs {
        let begun = Instant::now();
        // The test helpers panic if a program hangs.
        let outcome = catch_unwind(AssertUnwindSafe(|| run_pair(setting, pair)))
            .unwrap_or_else(|panic| Err(anyhow!("{}", text_of(&*panic))))
            .map(drop);
        let took = begun.elapsed();
        setting.record_program(&pair.name, pair.role.name(), pair.family, &outcome, took)?;
        let title = format!("{}, {}, {}", pair.name, pair.family.name(), pair.role.name());
        match outcome {
            Ok(()) => println!("{title}: {} ms", took.as_millis()),
            Err(error) => {
                println!("{title}: FAILED: {error:#}");
                failed.push(title);
                // A server without its client still runs and would accept the next client.
                let program = pair.original.split(' ').next().unwrap_or_default();
                Running::start(&mut in_guest(setting, 20, &format!("killall -q {program}"))).finish(60);
            }
        }
    }
    ensure!(failed.is_empty(), "{} of {} failed: {failed:?}", failed.len(), pairs.len());
    println!("{} pairs of programs", pairs.len());
    Ok(())
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
