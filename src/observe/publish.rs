//! Counters for other processes. Each context that publishes them listens on a Unix socket, and sends one
//! document (`Published::to_text`) to each connection of the same user.
//!
//! The sockets are files in a directory that only the user may enter: `$XDG_RUNTIME_DIR/roce`, or
//! `/tmp/roce-UID` if that variable is not set. They are not abstract sockets, because those are visible only
//! within a network namespace, and RoCE is often tested in namespaces. A killed process leaves its file
//! behind. Connections to such a file are refused, so readers skip it, and the next process with the same
//! number replaces it.
//!
//! The thread reads nothing from a connection, and the document fits into the socket buffer, so a reader
//! cannot block the thread. The packet path waits for at most one lock, while the counters are copied.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roce_device::users::{identifies, is_own_or_root};

use super::published::{Published, PublishedExplanation, directory_of, own_uid};
use super::survey::connect_at_once;
use super::{CounterSource, Explanation, Text};
use crate::device::fork::Process;
use crate::driver::wake::{Wake, join, wait_readable};

/// Maximum number of published contexts of one process.
const MOST_CONTEXTS: u32 = 64;
/// Maximum number of queue pairs to explain. The text must fit the buffer of a socket.
const MOST_EXPLANATIONS: usize = 6;
/// Maximum time for writing the document to a reader.
const WRITE_PATIENCE: Duration = Duration::from_millis(100);
/// The publisher of a context's counters for other processes of the same user, until it is dropped.
#[derive(Debug)]
pub(crate) struct Publisher {
    path: PathBuf,
    wake: Arc<Wake>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

impl Publisher {
    /// Starts a thread that serves readers.
    pub(crate) fn start(
        device: &'static str,
        addresses: &[IpAddr],
        source: Weak<impl CounterSource + Send + Sync + 'static>,
    ) -> io::Result<Self> {
        let directory = own_directory()?;
        let (listener, path) = listen(&directory)?;
        listener.set_nonblocking(true)?;
        let (wake, stopped) = (Arc::new(Wake::new()?), Arc::new(AtomicBool::new(false)));
        let (thread_wake, thread_stopped) = (wake.clone(), stopped.clone());
        let (started, description) = (Instant::now(), describe(device, addresses));
        let document = move || {
            let mut counters = Vec::with_capacity(128);
            let mut engine_counters = Vec::new();
            let source = source.upgrade()?;
            source.visit_counters(&mut |name, value| counters.push((name.to_owned(), value)));
            source.visit_engine_counters(&mut |engine, name, value| {
                engine_counters.push((engine, name.to_owned(), value));
            });
            let explanations = source.explanations(MOST_EXPLANATIONS).iter().map(published).collect();
            let uptime_s = started.elapsed().as_secs_f64();
            Some(Published { uptime_s, counters, engine_counters, explanations, ..description.clone() })
        };
        let thread = std::thread::Builder::new()
            .name("roce-stat".into())
            .spawn(move || serve(&listener, document, &thread_wake, &thread_stopped))?;
        Ok(Self { path, wake, stopped, thread: Some(thread), process: Process::current() })
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // In the child of a fork: the thread exists only in the parent, which also owns the file.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stopped.store(true, Ordering::Release);
        self.wake.signal();
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
        // Connections to it are already refused.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(
    listener: &UnixListener,
    document: impl Fn() -> Option<Published>,
    wake: &Wake,
    stopped: &AtomicBool,
) {
    while !stopped.load(Ordering::Acquire) {
        if wait_readable([listener.as_fd(), wake.as_fd()], None).is_err() {
            return;
        }
        let Ok((stream, _)) = listener.accept() else {
            // The reader has gone, or no descriptor is free, which takes a while to change.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Some(document) = document() else { return };
        if let Err(error) = answer(&stream, &document) {
            tracing::debug!(%error, "the counters could not be sent to a reader");
        }
    }
}

fn answer(mut stream: &UnixStream, document: &Published) -> io::Result<()> {
    let reader = rustix::net::sockopt::socket_peercred(stream)?;
    if !is_own_or_root(reader.uid.as_raw()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    stream.write_all(document.to_text().as_bytes())
}

fn published(explanation: &Explanation) -> PublishedExplanation {
    let facts = explanation.facts().into_iter().map(|(key, value)| (key.to_owned(), value));
    PublishedExplanation { text: explanation.to_string(), facts: facts.collect() }
}

/// Returns the constant part of the document.
fn describe(device: &str, addresses: &[IpAddr]) -> Published {
    let arguments: Vec<String> =
        std::env::args_os().take(16).map(|argument| argument.to_string_lossy().into_owned()).collect();
    Published {
        pid: std::process::id(),
        command: Text::new(&arguments.join(" ")).to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.to_owned(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        uptime_s: 0.0,
        counters: Vec::new(),
        engine_counters: Vec::new(),
        explanations: Vec::new(),
    }
}

/// Returns the directory of this user's sockets. Creates it if needed, and fails if another user can enter
/// it.
fn own_directory() -> io::Result<PathBuf> {
    let path = directory_of(own_uid());
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&path)?;
    let is_own = metadata.uid() == own_uid() && identifies(metadata.uid());
    if !metadata.is_dir() || !is_own || metadata.mode() & 0o077 != 0 {
        let problem = format!("{} is not a directory of this user alone", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(path)
}

/// Listens on the first free path of this process.
fn listen(directory: &Path) -> io::Result<(UnixListener, PathBuf)> {
    for number in 0..MOST_CONTEXTS {
        let path = directory.join(format!("{}.{number}", std::process::id()));
        match UnixListener::bind(&path) {
            Ok(listener) => return Ok((listener, path)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // A busy or stopped listener is not waited for.
                let is_stale = connect_at_once(&path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if is_stale {
                    fs::remove_file(&path)?;
                    return Ok((UnixListener::bind(&path)?, path));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("the limit of {MOST_CONTEXTS} published contexts is reached"),
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    struct Source;

    impl CounterSource for Source {
        fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
            (0..128)
                .for_each(|value| visit("a_counter_with_a_rather_long_name_of_its_own", u64::MAX - value));
        }
    }

    #[test]
    fn an_answer_is_the_counters_and_fits_a_socket() {
        let mut document = describe("udp", &["198.18.0.1".parse().unwrap()]);
        Source.visit_counters(&mut |name, value| document.counters.push((name.to_owned(), value)));
        let explanation =
            vec!["a line of an explanation with as many letters as the longest one has".repeat(2); 25];
        let facts = vec![("cause".to_owned(), "a long fact".repeat(10)); 30];
        let explanation = PublishedExplanation { text: explanation.join("\n"), facts };
        document.explanations = vec![explanation; MOST_EXPLANATIONS];
        assert_eq!((document.pid, document.device.as_str()), (std::process::id(), "udp"));
        let (near, mut far) = UnixStream::pair().unwrap();
        answer(&near, &document).unwrap();
        drop(near);
        let mut text = Vec::new();
        far.read_to_end(&mut text).unwrap();
        assert!(text.len() < 64 << 10, "{} bytes", text.len());
        assert_eq!(Published::from_text(std::str::from_utf8(&text).unwrap()), Some(document));
    }
}
