//! Shared by the tests of several crates: reasons to skip, time limits, processes, users, addresses and namespaces.
//!
//! Nothing here is shipped. Helpers panic where a test would.

mod address;
pub mod allocations;
mod busy;
mod distribution;
pub mod encapsulated;
mod namespaces;
mod scripts;
mod skip;
mod user;

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use address::own_address;
pub use busy::{is_too_busy_for_rates, on_idle};
pub use distribution::{distribution, exported_names, is_of_system, needed_libraries, readelf};
pub use namespaces::{Cable, Namespace, in_own_network, settle_here};
pub use scripts::{TAPS_ON_A_BRIDGE, script};
pub use skip::skip_unless;
pub use user::{AS_NOBODY, as_nobody};

use busy::Limit;

/// The path of a file of `testing/vectors`: tables, and single frames of NICs, kernels and other programs.
pub fn vectors(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/vectors")).join(name)
}

/// The folder of captures that have the kernel's Soft-RoCE on both sides.
pub fn kernel_captures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/rxe"))
}

/// A file or folder of the collection beside this repository, if it is there. It has captures of other people, which may
/// not be distributed.
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

/// Runs a test that fails when it has not ended after so many seconds of an idle machine. What hangs stays behind on its
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
    let mut limit = Limit::new(seconds);
    while !limit.is_over() {
        match ended.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            // The panic of the test is the one to be shown.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if let Err(panic) = body.join() {
                    std::panic::resume_unwind(panic);
                }
                return;
            }
        }
    }
    panic!("the test hangs: not over after {seconds} s of an idle machine");
}

/// A shell that starts a job in the background has it ignore SIGINT, and so would the programs that a test starts.
fn heed_interrupts() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the default of a signal needs no function of this process.
    ONCE.call_once(|| unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
    });
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
    readers: [Collected; 2],
    lines: Receiver<String>,
}

/// How long the pipes of a program may stay open after its end.
const PIPES_CLOSE: Duration = Duration::from_secs(10);

impl Running {
    /// Starts a program; what it writes is collected.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        heed_interrupts();
        let described = format!("{command:?}");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{described}: {error}"));
        let (sender, lines) = std::sync::mpsc::channel();
        let stdout = collect(child.stdout.take().expect("a pipe"), Some(sender));
        let stderr = collect(child.stderr.take().expect("a pipe"), None);
        Self { child, started: Instant::now(), described, readers: [stdout, stderr], lines }
    }

    /// Waits until it has written a line on standard output that contains `part`.
    #[track_caller]
    pub fn wait_for_line(&mut self, part: &str) -> String {
        let mut limit = Limit::new(20);
        loop {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if !limit.is_over() => {}
                Err(error) => {
                    let _ = self.child.kill();
                    let stderr = self.readers[1].until_closed(PIPES_CLOSE);
                    panic!("{} never wrote `{part}` ({error}): {stderr:?}", self.described);
                }
            }
        }
    }

    /// Waits until it has written a line on standard output, but not longer than this.
    pub fn wait_for_output(&mut self, at_most: Duration) {
        // The line is kept with the others.
        let _ = self.lines.recv_timeout(at_most);
    }

    /// The number of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
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

    /// Waits until it ends, for so many seconds of an idle machine.
    #[track_caller]
    pub fn finish(self, seconds: u64) -> Finished {
        self.finish_and_close(seconds, PIPES_CLOSE)
    }

    /// The same; after its end its output must be closed within `pipes_close`.
    #[track_caller]
    pub fn finish_and_close(mut self, seconds: u64, pipes_close: Duration) -> Finished {
        let mut limit = Limit::new(seconds);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waiting for a program") {
                break status;
            }
            if limit.is_over() {
                let _ = self.child.kill();
                let output = self.readers.each_ref().map(|reader| reader.until_closed(pipes_close));
                panic!(
                    "{} hangs: not over after {seconds} s of an idle machine; it wrote {output:?}",
                    self.described
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.started.elapsed();
        let [stdout, stderr] = self.readers.each_ref().map(|reader| match reader.until_closed(pipes_close) {
            Ok(text) => text,
            Err(text) => panic!(
                "{} has ended, and a program that it started keeps its output open: {text:?}",
                self.described
            ),
        });
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

/// What a program writes to a pipe.
struct Collected {
    text: Arc<Mutex<String>>,
    /// Disconnected when every program that has the pipe has closed it.
    open: Receiver<()>,
}

impl Collected {
    /// The text, when the pipe is closed; what there is of it as the error, when it stays open for `at_most`.
    fn until_closed(&self, at_most: Duration) -> Result<String, String> {
        let is_open = self.open.recv_timeout(at_most) == Err(RecvTimeoutError::Timeout);
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if is_open { Err(text) } else { Ok(text) }
    }
}

fn collect(pipe: impl Read + Send + 'static, sender: Option<Sender<String>>) -> Collected {
    let text = Arc::new(Mutex::new(String::new()));
    let (is_open, open) = std::sync::mpsc::channel();
    let written = Arc::clone(&text);
    std::thread::spawn(move || {
        let _is_open: Sender<()> = is_open;
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut text = written.lock().unwrap_or_else(PoisonError::into_inner);
            text.push_str(&line);
            text.push('\n');
            drop(text);
            if let Some(sender) = &sender {
                let _ = sender.send(line);
            }
        }
    });
    Collected { text, open }
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
