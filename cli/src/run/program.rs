//! The process of the program, and the signals of this process.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use anyhow::Context as _;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, waitpid};

/// The signals that end a program.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// A running program, and the signals of this process. The program decides the meaning of the signals.
pub(super) struct Program {
    pid: Pid,
    signals: SignalFd,
}

impl Program {
    /// Starts the first of `words`, which is searched in `PATH`, with the others as its arguments.
    ///
    /// Signals of this process are blocked before that, so that none can end it while the program runs. The
    /// program gets the original signal mask, for which [`std::process::Command`] has no safe function.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub(super) fn start(
        words: &[OsString],
        variables: Vec<(&'static str, OsString)>,
    ) -> anyhow::Result<Self> {
        let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value)));
        let words = texts(words.iter().cloned()).context("an argument of the program")?;
        let environment = texts(environment.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        }))
        .context("a variable of the environment")?;
        let program = words.first().context("no program was given")?;

        let blocked: SigSet = ENDING.into_iter().chain([Signal::SIGCHLD]).collect();
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).context("cannot block signals")?;
        let signals =
            SignalFd::with_flags(&blocked, SfdFlags::SFD_CLOEXEC).context("cannot create a signalfd")?;
        let attributes = attributes(&before).context("cannot prepare the start of the program")?;
        let actions = PosixSpawnFileActions::init().context("cannot prepare the start of the program")?;
        let pid = posix_spawnp(program, &actions, &attributes, &words, &environment).map_err(|error| {
            let program = program.to_string_lossy();
            anyhow::anyhow!(
                "cannot start {program}: {}; check that it is installed and in the PATH",
                std::io::Error::from(error)
            )
        })?;
        Ok(Self { pid, signals })
    }

    /// Waits for the end of the program. Signals of a terminal reach the program directly. A signal that is
    /// sent only to this process is passed on.
    ///
    /// # Errors
    ///
    /// The system does not report how the program ended.
    pub(super) fn wait(self) -> anyhow::Result<ExitStatus> {
        const SENT_BY_A_PROCESS: i32 = 0;
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        loop {
            // This check comes first, because one signal may represent several that arrived together.
            if let Some((_, status)) =
                waitpid(pid, WaitOptions::NOHANG).context("cannot wait for the program")?
            {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            let Some(info) = self.signals.read_signal().context("cannot read a signal")? else { continue };
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            if let Some(signal) = signal.filter(|signal| ENDING.contains(signal))
                && info.ssi_code == SENT_BY_A_PROCESS
            {
                // The program may have ended meanwhile.
                let _ = kill(self.pid, signal);
            }
        }
    }
}

/// Returns the original signal mask of this process, and the default action of SIGPIPE, which Rust's runtime
/// ignores. Programs expect both.
fn attributes(mask: &SigSet) -> nix::Result<PosixSpawnAttr> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigmask(mask)?;
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    Ok(attributes)
}

fn texts(texts: impl Iterator<Item = OsString>) -> Result<Vec<CString>, std::ffi::NulError> {
    texts.map(|text| CString::new(text.into_vec())).collect()
}
