//! Shared by the tests of several crates: reasons to skip, time limits, processes, addresses and namespaces.
//!
//! Nothing here is shipped. Helpers panic where a test would.

mod address;
mod namespaces;
mod scripts;
mod skip;

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use address::own_address;
pub use namespaces::{Cable, Namespace, in_own_network, settle_here};
pub use scripts::{TAPS_ON_A_BRIDGE, script};
pub use skip::skip_unless;

/// A file or folder of the collection of captures and vectors beside this repository, if it is there.
pub fn shared(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")).join(path);
    path.exists().then_some(path)
}

/// Whether a program can be run.
pub fn has_program(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}

/// A UDP port of `::1` that was free a moment ago, or `None` where there is no IPv6. No two calls in a process give the
/// same one, and it is below those that the system and source ports take.
pub fn free_v6_port() -> Option<u16> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).ok()?;
    // Processes begin at places of their own.
    let begin = std::process::id().wrapping_mul(97);
    let mut ports = std::iter::repeat_with(|| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        (FIRST + begin.wrapping_add(call) % COUNT) as u16
    });
    ports.by_ref().take(1_000).find(|port| UdpSocket::bind((Ipv6Addr::LOCALHOST, *port)).is_ok())
}

/// Runs a test that fails when it has not ended after so many seconds. What hangs stays behind on its
/// thread, which ends with the process.
#[track_caller]
pub fn within(seconds: u64, test: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let body = std::thread::Builder::new().name(name).spawn(move || {
        test();
        let _ = done.send(());
    });
    let body = body.expect("starting a thread");
    match ended.recv_timeout(Duration::from_secs(seconds)) {
        // The panic of the test is the one to be shown.
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = body.join() {
                std::panic::resume_unwind(panic);
            }
        }
        Err(RecvTimeoutError::Timeout) => panic!("the test hangs: not over after {seconds} s"),
    }
}

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Whether it ended with 0.
    pub success: bool,
    /// Its exit status, unless a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// From its start to its end.
    pub took: Duration,
}

/// A program that runs, and is killed when the test ends before it does.
pub struct Running {
    child: Child,
    started: Instant,
    described: String,
    readers: [Option<JoinHandle<String>>; 2],
    lines: Receiver<String>,
}

impl Running {
    /// Starts a program; what it writes is collected.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let described = format!("{command:?}");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{described}: {error}"));
        let (sender, lines) = std::sync::mpsc::channel();
        let stdout = collect(child.stdout.take().expect("a pipe"), Some(sender));
        let stderr = collect(child.stderr.take().expect("a pipe"), None);
        let readers = [Some(stdout), Some(stderr)];
        Self { child, started: Instant::now(), described, readers, lines }
    }

    /// Waits until it has written a line on standard output that contains `part`.
    #[track_caller]
    pub fn until_it_says(&mut self, part: &str) -> String {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(error) => {
                    let _ = self.child.kill();
                    let stderr = self.readers[1].take().map(|reader| reader.join().unwrap());
                    panic!("{} never wrote `{part}` ({error}): {stderr:?}", self.described);
                }
            }
        }
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end, as Ctrl-C does.
    #[track_caller]
    pub fn interrupt(&self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).expect("a signal to a program");
    }

    /// Waits until it ends, for so many seconds.
    #[track_caller]
    pub fn finish(mut self, seconds: u64) -> Finished {
        let end = self.started + Duration::from_secs(seconds);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waiting for a program") {
                break status;
            }
            if Instant::now() > end {
                let _ = self.child.kill();
                let output = self.readers.each_mut().map(|reader| reader.take().map(|it| it.join().unwrap()));
                panic!("{} hangs: not over after {seconds} s; it wrote {output:?}", self.described);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.started.elapsed();
        let [stdout, stderr] = self
            .readers
            .each_mut()
            .map(|reader| reader.take().expect("joined once").join().expect("reading a pipe"));
        assert!(!stderr.contains("panicked"), "{}: {stderr}", self.described);
        Finished { success: status.success(), code: status.code(), stdout, stderr, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(pipe: impl Read + Send + 'static, sender: Option<Sender<String>>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            text.push_str(&line);
            text.push('\n');
            if let Some(sender) = &sender {
                let _ = sender.send(line);
            }
        }
        text
    })
}

/// `tshark` that does not guess from their content what SENDs carry: an empty one is, to it, a broken packet
/// of RPC over RDMA.
pub fn tshark() -> Command {
    let mut command = Command::new("tshark");
    for guess in ["rpcordma", "infiniband.eoib", "smc", "iser", "nvme-rdma", "lnet", "smb_direct"] {
        command.args(["--disable-protocol", guess]);
    }
    command
}
