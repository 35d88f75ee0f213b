//! Counters for other processes: each context that publishes them listens on a Unix socket, and sends one JSON document to
//! each connection of the same user.
//!
//! The sockets are files in a directory that only the user may enter: `$XDG_RUNTIME_DIR/roce`, or `/tmp/roce-UID` where
//! there is no such variable. Files and not abstract names, because these end at the border of a network
//! namespace, where RoCE is often tried out. A process that was killed leaves its file behind; a connection to it is
//! refused, so readers skip it, and the next process with the same number replaces it.
//!
//! Nothing is read from a connection, and what is written fits into the buffer of the socket, so a reader cannot block this
//! thread. The packet path is delayed by one lock for the time of copying the counters.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::CounterSource;
use crate::driver::wake::{Wake, join, wait_readable};

/// The most contexts of one process that are published.
const MOST_CONTEXTS: u32 = 64;
/// How long a reader may take to fetch the document.
const WRITE_PATIENCE: Duration = Duration::from_millis(100);
/// The time for reading one process, and the most bytes that are read.
const READ_PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: usize = 1 << 20;
/// The most sockets that are looked at in one directory.
const MOST_FILES: usize = 4096;

/// What a context publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The process.
    pub pid: u32,
    /// Its program and arguments, as far as they are short.
    pub command: String,
    /// The version of this library.
    pub version: String,
    /// The kind of its device.
    pub device: String,
    /// The addresses of its device.
    pub addresses: Vec<String>,
    /// Seconds since the context was opened.
    pub uptime_s: f64,
    /// Names and values, in the order of the documentation.
    pub counters: Vec<(String, u64)>,
}

/// Lets other processes of the same user read the counters of a context, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Publisher {
    path: PathBuf,
    wake: Arc<Wake>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
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
            source.upgrade()?.visit_counters(&mut |name, value| counters.push((name.to_owned(), value)));
            let uptime_s = started.elapsed().as_secs_f64();
            Some(Published { uptime_s, counters, ..description.clone() })
        };
        let thread = std::thread::Builder::new()
            .name("roce-stat".into())
            .spawn(move || serve(&listener, document, &thread_wake, &thread_stopped))?;
        Ok(Self { path, wake, stopped, thread: Some(thread) })
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.signal();
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
        // Connections to it are refused already.
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
            // The reader has gone, or there is no descriptor left, which takes a while to change.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Some(document) = document() else { return };
        if let Err(error) = answer(&stream, &document) {
            tracing::debug!(%error, "the counters could not be sent to a reader");
        }
    }
}

/// Whether the user `reader` may read what the user `own` publishes.
const fn may_read(reader: u32, own: u32) -> bool {
    reader == own || reader == 0
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn answer(mut stream: &UnixStream, document: &Published) -> io::Result<()> {
    let reader = rustix::net::sockopt::socket_peercred(stream)?;
    if !may_read(reader.uid.as_raw(), own_uid()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    stream.write_all(&serde_json::to_vec(document)?)
}

/// The part of the document that does not change.
fn describe(device: &str, addresses: &[IpAddr]) -> Published {
    let arguments: Vec<String> =
        std::env::args_os().take(16).map(|argument| argument.to_string_lossy().into_owned()).collect();
    Published {
        pid: std::process::id(),
        command: printable(&arguments.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.to_owned(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        uptime_s: 0.0,
        counters: Vec::new(),
    }
}

/// A short text without control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|sign| !sign.is_control()).take(200).collect()
}

/// The directory of this user's sockets: made if there is none, and refused if another user can enter it.
fn own_directory() -> io::Result<PathBuf> {
    let path = directory_of(own_uid());
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&path)?;
    if !metadata.is_dir() || metadata.uid() != own_uid() || metadata.mode() & 0o077 != 0 {
        let problem = format!("{} is not a directory of this user alone", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(path)
}

fn directory_of(uid: u32) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute()) {
        Some(path) => Path::new(&path).join("roce"),
        None => PathBuf::from(format!("/tmp/roce-{uid}")),
    }
}

/// Listens on the first path of this process that is free.
fn listen(directory: &Path) -> io::Result<(UnixListener, PathBuf)> {
    for number in 0..MOST_CONTEXTS {
        let path = directory.join(format!("{}.{number}", std::process::id()));
        match UnixListener::bind(&path) {
            Ok(listener) => return Ok((listener, path)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let is_stale = UnixStream::connect(&path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if is_stale {
                    fs::remove_file(&path)?;
                    return Ok((UnixListener::bind(&path)?, path));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{MOST_CONTEXTS} contexts are published already")))
}

/// Reads all contexts that this user may read, or those of one process; root reads those of all users. Processes
/// that are gone, and sockets that do not answer with a document, are left out.
///
/// # Errors
///
/// When the directory is there but cannot be read.
pub fn published(pid: Option<u32>) -> io::Result<Vec<Published>> {
    let mut found = Vec::new();
    for directory in readable_directories() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut places: Vec<(u32, u32, PathBuf)> = entries
            .flatten()
            .take(MOST_FILES)
            .filter_map(|entry| {
                let (process, number) = place(entry.file_name().to_str()?)?;
                pid.is_none_or(|pid| pid == process).then(|| (process, number, entry.path()))
            })
            .collect();
        places.sort();
        found.extend(places.iter().filter_map(|(_, _, path)| read(path).ok()));
    }
    Ok(found)
}

/// The process and the number in the name of a socket.
fn place(name: &str) -> Option<(u32, u32)> {
    let (process, number) = name.split_once('.')?;
    Some((process.parse().ok()?, number.parse().ok()?))
}

fn readable_directories() -> Vec<PathBuf> {
    let mut all = vec![directory_of(own_uid())];
    if own_uid() == 0 {
        let inside = |place: &str| fs::read_dir(place).into_iter().flatten().flatten();
        let runtime = inside("/run/user").map(|entry| entry.path().join("roce"));
        let temporary = inside("/tmp")
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("roce-"))
            .map(|entry| entry.path());
        // Not through a link, which another user may have made.
        all.extend(
            runtime.chain(temporary).filter(|path| path.symlink_metadata().is_ok_and(|it| it.is_dir())),
        );
        all.sort();
        all.dedup();
    }
    all
}

fn read(path: &Path) -> io::Result<Published> {
    let mut stream = UnixStream::connect(path)?;
    let end = Instant::now() + READ_PATIENCE;
    let mut text = Vec::new();
    let mut part = [0; 1 << 14];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || text.len() > LONGEST {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => text.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
    let mut document: Published = serde_json::from_slice(&text)?;
    // Root reads what other users wrote.
    for text in [&mut document.command, &mut document.version, &mut document.device]
        .into_iter()
        .chain(&mut document.addresses)
    {
        *text = printable(text);
    }
    let is_name = |name: &str| {
        name.len() < 100 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    document.counters.retain(|(name, _)| is_name(name));
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Source;

    impl CounterSource for Source {
        fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
            (0..128)
                .for_each(|value| visit("a_counter_with_a_rather_long_name_of_its_own", u64::MAX - value));
        }
    }

    #[test]
    fn only_the_same_user_and_root_may_read() {
        assert!(may_read(1000, 1000) && may_read(0, 1000) && may_read(0, 0));
        assert!(!may_read(1001, 1000) && !may_read(1000, 0));
    }

    #[test]
    fn names_of_sockets_are_a_process_and_a_number() {
        assert_eq!(place("12.3"), Some((12, 3)));
        for other in ["12", "12.", ".3", "12.3.4", "a.b", "-1.2", ""] {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn an_answer_is_the_counters_and_fits_a_socket() {
        let mut document = describe("udp", &["198.18.0.1".parse().unwrap()]);
        Source.visit_counters(&mut |name, value| document.counters.push((name.to_owned(), value)));
        assert_eq!((document.pid, document.device.as_str()), (std::process::id(), "udp"));
        let (near, mut far) = UnixStream::pair().unwrap();
        answer(&near, &document).unwrap();
        drop(near);
        let mut text = Vec::new();
        far.read_to_end(&mut text).unwrap();
        assert!(text.len() < 64 << 10, "{} bytes", text.len());
        assert_eq!(serde_json::from_slice::<Published>(&text).unwrap(), document);
    }
}
