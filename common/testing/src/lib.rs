//! Helpers for tests of several crates: skipped tests, time limits, processes, users, addresses and
//! namespaces.
//!
//! This crate is not published. Its functions panic as a test does.

mod address;
pub mod allocations;
mod busy;
mod captures;
mod distribution;
pub mod encapsulated;
mod namespaces;
mod page;
mod scripts;
mod skip;
mod user;

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use address::own_address;
pub use busy::{is_too_busy_for_rates, on_idle};
pub use captures::{all_captures, captures_in, kernel_captures, read_capture_file};
pub use distribution::{distribution, exported_names, is_of_system, needed_libraries, readelf};
pub use namespaces::{Cable, Namespace, in_own_network, settle_here};
pub use page::check_table;
pub use scripts::{TAPS_ON_A_BRIDGE, script};
pub use skip::skip_unless;
pub use user::{AS_NOBODY, as_nobody};

use busy::Limit;

/// Returns the path of a file in `common/testing/vectors`: tables, and single frames of NICs, kernels and
/// other programs.
pub fn vectors(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/vectors")).join(name)
}

/// Returns a file or folder of the collection beside this repository, if it exists. The collection contains
/// captures of third parties, which may not be distributed.
pub fn shared(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")).join(path);
    path.exists().then_some(path)
}

/// Returns whether a program is installed.
pub fn has_program(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}

/// Returns the address of memory where the kernel maps nothing by itself, for tests of pages that are not
/// mapped. Wherever the kernel chooses the address, another thread of the process may get the same one.
pub fn address_that_stays_free() -> usize {
    const FIRST: usize = 0x1000_0000_0000;
    const APART: usize = 1 << 30;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    FIRST + APART * TAKEN.fetch_add(1, Ordering::Relaxed)
}

/// Returns a UDP port of `::1` that was free a moment ago, or `None` if the machine has no IPv6. Each call in
/// a process returns another port, below the ranges of ephemeral ports and RoCE source ports.
pub fn free_v6_port() -> Option<u16> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).ok()?;
    // Each process starts at another port.
    let begin = std::process::id().wrapping_mul(97);
    let mut ports = std::iter::repeat_with(|| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        (FIRST + begin.wrapping_add(call) % COUNT) as u16
    });
    ports.by_ref().take(1_000).find(|port| UdpSocket::bind((Ipv6Addr::LOCALHOST, *port)).is_ok())
}

/// Runs a test that fails if it has not finished after `seconds` of an idle machine. The thread of a test
/// that hangs ends with the process.
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
            // Shows the panic of the test itself.
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

/// Resets SIGINT to its default. A shell starts background jobs with SIGINT ignored, and child processes
/// inherit this.
fn heed_interrupts() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the default action of a signal calls no function of this process.
    ONCE.call_once(|| unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
    });
}

/// The result of a program.
#[derive(Debug)]
pub struct Finished {
    /// Whether the exit status is 0.
    pub success: bool,
    /// Exit status, unless a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Time from start to end.
    pub took: Duration,
}

/// A running program. It is killed if the test ends first.
pub struct Running {
    child: Child,
    started: Instant,
    described: String,
    readers: [Collected; 2],
    lines: Receiver<String>,
}

/// Time that the pipes of a program may stay open after its end.
const PIPES_CLOSE: Duration = Duration::from_secs(10);

impl Running {
    /// Starts a program and collects its output.
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

    /// Waits until the program has written a line on standard output that contains `part`.
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

    /// Waits until the program has written a line on standard output, but at most `at_most`.
    pub fn wait_for_output(&mut self, at_most: Duration) {
        // The line is also collected with the others.
        let _ = self.lines.recv_timeout(at_most);
    }

    /// Returns the process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the program is still running.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Interrupts the program, as Ctrl-C does.
    #[track_caller]
    pub fn interrupt(&self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).expect("a signal to a program");
    }

    /// Waits until the program ends, for at most `seconds` of an idle machine.
    #[track_caller]
    pub fn finish(self, seconds: u64) -> Finished {
        self.finish_and_close(seconds, PIPES_CLOSE)
    }

    /// Waits as [`finish`](Self::finish) does. The output must be closed within `pipes_close` after the end.
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

/// The output of a program to a pipe.
struct Collected {
    text: Arc<Mutex<String>>,
    /// Disconnected when every program with the pipe has closed it.
    open: Receiver<()>,
}

impl Collected {
    /// Waits until the pipe is closed and returns the text. Returns the text so far as an error after
    /// `at_most`.
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

/// Returns a `tshark` command that does not guess the content of SENDs. Otherwise tshark takes an empty SEND
/// for a broken packet of RPC over RDMA.
pub fn tshark() -> Command {
    let mut command = Command::new("tshark");
    for guess in ["rpcordma", "infiniband.eoib", "smc", "iser", "nvme-rdma", "lnet", "smb_direct"] {
        command.args(["--disable-protocol", guess]);
    }
    command
}
