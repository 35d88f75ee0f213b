//! Counters for other processes: each context that wants to be seen listens on a Unix socket, and whoever of the same
//! user connects gets one JSON document.
//!
//! The sockets are files in a directory that only the user may enter: `$XDG_RUNTIME_DIR/roce`, or `/tmp/roce-UID` where
//! there is no such variable. Files and not abstract names, because these end at the border of a network
//! namespace, where RoCE is often tried out. A process that was killed leaves its file behind; nobody answers there, so
//! that readers take no notice of it, and the next process with its number takes the place.
//!
//! Nothing is ever read from whoever connects, and what is written fits into the buffer of the socket, so there is
//! nothing that a peer could send, hold back or stop. The packet path is touched by one lock for the time
//! of copying the counters.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::driver::wake::{Wake, wait_readable};
use crate::verbs::context::Inner;

/// How many contexts of one process are seen.
const MOST_CONTEXTS: u32 = 64;
/// How long whoever connected may take to fetch what it asked for.
const WRITE_PATIENCE: Duration = Duration::from_millis(100);
/// How long reading one process may take, and how much is read.
const READ_PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: usize = 1 << 20;
/// The most sockets that are looked at in one directory.
const MOST_FILES: usize = 4096;

/// What a context tells about itself.
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
    /// For how long the context has been open, in seconds.
    pub uptime_s: f64,
    /// Names and values, in the order of the documentation.
    pub counters: Vec<(String, u64)>,
}

/// A context that can be read by other processes of the same user, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Publisher {
    path: PathBuf,
    wake: Arc<Wake>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Starts a thread that serves readers.
    pub(crate) fn start(inner: &Arc<Inner>) -> io::Result<Self> {
        let directory = own_directory()?;
        let (listener, path) = listen(&directory)?;
        listener.set_nonblocking(true)?;
        let (wake, stopped) = (Arc::new(Wake::new()?), Arc::new(AtomicBool::new(false)));
        let weak = Arc::downgrade(inner);
        let (their_wake, they_stopped) = (wake.clone(), stopped.clone());
        let thread = std::thread::Builder::new()
            .name("roce-stat".into())
            .spawn(move || serve(&listener, &weak, &their_wake, &they_stopped))?;
        Ok(Self { path, wake, stopped, thread: Some(thread) })
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.signal();
        if let Some(thread) = self.thread.take() {
            // A panic over there has been reported by its own hook.
            let _ = thread.join();
        }
        // Whoever finds the file meanwhile finds nobody behind it.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, inner: &Weak<Inner>, wake: &Wake, stopped: &AtomicBool) {
    let started = Instant::now();
    while !stopped.load(Ordering::Acquire) {
        if wait_readable(&[listener.as_fd(), wake.as_fd()], None).is_err() {
            return;
        }
        let Ok((stream, _)) = listener.accept() else {
            // Nobody there any more, or no descriptor left: that takes a while to change.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Some(inner) = inner.upgrade() else { return };
        let document = describe(&inner, started.elapsed());
        drop(inner);
        if let Err(error) = answer(&stream, &document) {
            tracing::debug!(%error, "a reader of the counters did not get them");
        }
    }
}

/// Whether somebody with this user number may read what `own` publishes.
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

fn describe(inner: &Inner, uptime: Duration) -> Published {
    let mut counters = Vec::with_capacity(128);
    inner.visit_counters(&mut |name, value| counters.push((name.to_owned(), value)));
    let arguments: Vec<String> =
        std::env::args_os().take(16).map(|argument| argument.to_string_lossy().into_owned()).collect();
    Published {
        pid: std::process::id(),
        command: printable(&arguments.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: inner.device_kind().to_owned(),
        addresses: inner.addresses().iter().map(ToString::to_string).collect(),
        uptime_s: uptime.as_secs_f64(),
        counters,
    }
}

/// A short text that does nothing to a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|sign| !sign.is_control()).take(200).collect()
}

/// Where this user's sockets are: made if it is not there, and refused if somebody else made it.
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

/// Listens on the first place of this process that nobody listens on.
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
/// that are gone, and whatever does not answer properly, are left out.
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
        // Not through a link that somebody else has put there.
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
    let mut told: Published = serde_json::from_slice(&text)?;
    // Root reads what other users wrote.
    for text in
        [&mut told.command, &mut told.version, &mut told.device].into_iter().chain(&mut told.addresses)
    {
        *text = printable(text);
    }
    let is_name = |name: &str| {
        name.len() < 100 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    told.counters.retain(|(name, _)| is_name(name));
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Context;

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
        let context = Context::open("udp:127.0.0.1,port=0").unwrap();
        let document = describe(&context.inner, Duration::from_secs(3));
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
