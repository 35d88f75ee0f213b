//! Concurrent reading of the documents of many processes, with one timeout for connecting and reading
//! together.
//!
//! The process behind a socket may be stopped, or may belong to another user who lets its backlog fill up.
//! Such a socket uses up its own timeout only, and the others are read concurrently.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::Text;
use super::published::{Published, directory_of, own_uid};

/// Timeout for one process, from connecting to the last byte.
const PATIENCE: Duration = Duration::from_secs(1);
/// Timeout for all processes together.
const LONGEST: Duration = Duration::from_secs(5);
/// Number of sockets that are read concurrently.
const AT_ONCE: usize = 64;
/// Pause between two checks of the sockets.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of bytes from one process.
const LONGEST_TEXT: usize = 1 << 20;
/// Maximum number of sockets to examine in one directory.
const MOST_FILES: usize = 4096;

/// A socket, and the process in its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    pid: u32,
    number: u32,
    path: PathBuf,
}

/// A process whose socket exists, but does not answer in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unanswered {
    /// Process ID from the name of the socket.
    pub pid: u32,
    /// Path of the socket, as [`Text`] displays it.
    pub path: String,
}

/// The result of [`survey`](super::survey).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Survey {
    /// Documents that the processes publish.
    pub found: Vec<Published>,
    /// Processes that did not answer: they may be stopped, or busy with other readers.
    pub unanswered: Vec<Unanswered>,
}

/// Reads the contexts that this user may read, of all processes or of one; root reads those of all users.
/// Skips processes that are gone and sockets that do not send a document; [`survey`] names those that do not
/// answer.
///
/// # Errors
///
/// Fails if the directory exists but cannot be read.
pub fn published(pid: Option<u32>) -> io::Result<Vec<Published>> {
    survey(pid).map(|survey| survey.found)
}

/// Reads like [`published`], and also returns the processes that do not answer. Takes at most 5 seconds.
///
/// # Errors
///
/// Fails if the directory exists but cannot be read.
pub fn survey(pid: Option<u32>) -> io::Result<Survey> {
    let mut places = Vec::new();
    for (turn, directory) in readable_directories().into_iter().enumerate() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut of_one: Vec<Place> = entries
            .flatten()
            .take(MOST_FILES)
            .filter_map(|entry| {
                let (process, number) = process_and_number(entry.file_name().to_str()?)?;
                let is_wanted = pid.is_none_or(|pid| pid == process);
                is_wanted.then(|| Place { pid: process, number, path: entry.path() })
            })
            .collect();
        of_one.sort();
        places.extend(of_one.into_iter().enumerate().map(|(index, place)| (index, turn, place)));
    }
    // Alternates between the directories, so that a user with many sockets does not delay others.
    places.sort();
    let places: Vec<Place> = places.into_iter().map(|(_, _, place)| place).collect();
    let mut survey = Survey::of(&places);
    survey.found.sort_by_key(|published| published.pid);
    Ok(survey)
}

/// Parses the process ID and the number in the name of a socket.
fn process_and_number(name: &str) -> Option<(u32, u32)> {
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
        // Ignores links, which another user may have made.
        all.extend(
            runtime.chain(temporary).filter(|path| path.symlink_metadata().is_ok_and(|it| it.is_dir())),
        );
        all.sort();
        all.dedup();
    }
    all
}

/// Connects without waiting: fails with `WouldBlock` if the backlog is full.
pub(super) fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

impl Survey {
    /// Reads all sockets, in groups of [`AT_ONCE`].
    fn of(places: &[Place]) -> Self {
        Self::within(places, PATIENCE, LONGEST)
    }

    fn within(places: &[Place], patience: Duration, longest: Duration) -> Self {
        let mut survey = Self::default();
        let end = Instant::now() + longest;
        for group in places.chunks(AT_ONCE) {
            let group_end = end.min(Instant::now() + patience);
            let mut readings: Vec<Reading<'_>> = group.iter().map(Reading::new).collect();
            while go_on(&mut readings) && Instant::now() < group_end {
                std::thread::sleep(PAUSE);
            }
            for reading in readings {
                survey.add(reading);
            }
        }
        survey
    }

    fn add(&mut self, reading: Reading<'_>) {
        match reading.progress {
            Progress::Read(published) => self.found.push(published),
            Progress::Connecting | Progress::Reading(..) => {
                let path = Text::new(reading.place.path.as_os_str().as_bytes()).to_string();
                self.unanswered.push(Unanswered { pid: reading.place.pid, path });
            }
            // The process is gone, belongs to another user, or does not publish documents.
            Progress::Failed => {}
        }
    }
}

/// Continues each reading; returns whether one has more to come.
fn go_on(readings: &mut [Reading<'_>]) -> bool {
    readings.iter_mut().fold(false, |is_busy, reading| reading.is_busy() | is_busy)
}

/// The reading of one socket.
struct Reading<'a> {
    place: &'a Place,
    progress: Progress,
}

enum Progress {
    Connecting,
    Reading(UnixStream, Vec<u8>),
    Read(Published),
    Failed,
}

impl<'a> Reading<'a> {
    fn new(place: &'a Place) -> Self {
        Self { place, progress: Progress::Connecting }
    }

    /// Continues without waiting; returns whether there is more to come.
    fn is_busy(&mut self) -> bool {
        match self.step() {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                true
            }
            Err(_) => {
                self.progress = Progress::Failed;
                false
            }
            Ok(()) => false,
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if matches!(self.progress, Progress::Connecting) {
            self.progress = Progress::Reading(connect_at_once(&self.place.path)?, Vec::new());
        }
        let Progress::Reading(stream, text) = &mut self.progress else { return Ok(()) };
        let mut part = [0; 1 << 14];
        loop {
            match stream.read(&mut part)? {
                0 => break,
                count => text.extend_from_slice(part.get(..count).unwrap_or_default()),
            }
            if text.len() > LONGEST_TEXT {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let published = std::str::from_utf8(text).ok().and_then(Published::from_text);
        self.progress = published.map_or(Progress::Failed, Progress::Read);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn document() -> String {
        Published { pid: 7, device: "udp".to_owned(), ..Published::default() }.to_text()
    }

    fn place(directory: &Path, number: u32) -> Place {
        Place { pid: 1, number, path: directory.join(format!("1.{number}")) }
    }

    /// Returns a listener with a full backlog, and the connections in it.
    fn full(path: &Path) -> (UnixListener, Vec<UnixStream>) {
        let listener = UnixListener::bind(path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = std::iter::from_fn(|| connect_at_once(path).ok()).take(16).collect();
        assert_eq!(connect_at_once(path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        (listener, waiting)
    }

    #[test]
    fn names_of_sockets_are_a_process_and_a_number() {
        assert_eq!(process_and_number("12.3"), Some((12, 3)));
        for other in ["12", "12.", ".3", "12.3.4", "a.b", "-1.2", ""] {
            assert_eq!(process_and_number(other), None, "{other}");
        }
    }

    #[test]
    fn a_full_backlog_and_a_silent_process_hold_nothing_up_and_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let places: Vec<Place> = (0..4).map(|number| place(directory.path(), number)).collect();
        let _full = full(&places[0].path);
        let _silent = UnixListener::bind(&places[1].path).unwrap();
        let answering = UnixListener::bind(&places[2].path).unwrap();
        // Refuses connections, as after the end of its process.
        drop(UnixListener::bind(&places[3].path).unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = answering.accept().unwrap();
            io::Write::write_all(&mut stream, document().as_bytes()).unwrap();
        });
        let start = Instant::now();
        let survey = Survey::within(&places, Duration::from_millis(200), LONGEST);
        assert!(roce_testing::on_idle(start.elapsed()) < Duration::from_secs(2), "{:?}", start.elapsed());
        server.join().unwrap();
        assert_eq!(survey.found.len(), 1);
        let unanswered: Vec<&str> = survey.unanswered.iter().map(|process| process.path.as_str()).collect();
        assert_eq!(unanswered, [places[0].path.to_str().unwrap(), places[1].path.to_str().unwrap()]);
    }

    /// A slow writer does not extend the timeout, and an endless document is not kept.
    #[test]
    fn a_process_that_never_ends_its_document_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let places = [place(directory.path(), 0), place(directory.path(), 1)];
        let [slow, endless] = [0, 1].map(|index: usize| UnixListener::bind(&places[index].path).unwrap());
        let servers = [(slow, 1, 20), (endless, 1 << 16, 0)].map(|(listener, len, pause)| {
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                while io::Write::write_all(&mut stream, &vec![b'x'; len]).is_ok() {
                    std::thread::sleep(Duration::from_millis(pause));
                }
            })
        });
        let start = Instant::now();
        let survey = Survey::within(&places, Duration::from_millis(400), LONGEST);
        assert!(roce_testing::on_idle(start.elapsed()) < Duration::from_secs(3), "{:?}", start.elapsed());
        servers.into_iter().for_each(|server| server.join().unwrap());
        assert_eq!(survey.found, []);
        assert_eq!(survey.unanswered.len(), 1, "the endless one is no document: {:?}", survey.unanswered);
    }

    #[test]
    fn all_together_have_a_limit_as_well() {
        let directory = tempfile::tempdir().unwrap();
        let places: Vec<Place> =
            (0..3 * AT_ONCE as u32).map(|number| place(directory.path(), number)).collect();
        let _silent: Vec<_> = places.iter().map(|place| UnixListener::bind(&place.path).unwrap()).collect();
        let start = Instant::now();
        let survey = Survey::within(&places, Duration::from_millis(300), Duration::from_millis(400));
        assert!(roce_testing::on_idle(start.elapsed()) < Duration::from_secs(3), "{:?}", start.elapsed());
        assert_eq!(survey.unanswered.len(), places.len());
    }
}
