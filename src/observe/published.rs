//! The document that a process publishes about its context on a Unix socket, and its readers.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Text;
use super::survey::{Place, Survey};

/// Maximum number of sockets to examine in one directory.
const MOST_FILES: usize = 4096;

/// The published state of a context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// Process ID.
    pub pid: u32,
    /// Program and arguments, possibly truncated.
    pub command: String,
    /// Version of this library.
    pub version: String,
    /// Kind of the device.
    pub device: String,
    /// Addresses of the device.
    pub addresses: Vec<String>,
    /// Seconds since the context was opened.
    pub uptime_s: f64,
    /// Names and values, in the order of the documentation.
    pub counters: Vec<(String, u64)>,
    /// If the context has several engines: engine index, name and value of each counter that is not zero.
    pub engine_counters: Vec<(usize, String, u64)>,
}

impl Published {
    /// First line of the document: the format and its version.
    const HEADER: &str = "roce counters 1";

    /// Formats one line for each fact: a key, a space and a value. A counter has the key `counter`, its name
    /// and its value.
    pub(super) fn to_text(&self) -> String {
        let Self { pid, command, version, device, addresses, uptime_s, counters, engine_counters } = self;
        let mut text = format!(
            "{}\npid {pid}\ncommand {command}\nversion {version}\ndevice {device}\nuptime_s {uptime_s}\n",
            Self::HEADER
        );
        for address in addresses {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "address {address}");
        }
        for (name, value) in counters {
            let _ = writeln!(text, "counter {name} {value}");
        }
        for (engine, name, value) in engine_counters {
            let _ = writeln!(text, "engine_counter {engine} {name} {value}");
        }
        text
    }

    /// Parses a document; returns `None` for anything else. Root reads documents of other users, so the
    /// result contains no text that can control a terminal.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let is_name = |name: &str| {
            name.len() < 100 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let mut document = Self::default();
        let mut lines = text.lines();
        if lines.next() != Some(Self::HEADER) {
            return None;
        }
        for line in lines {
            let (key, value) = line.split_once(' ')?;
            match key {
                "pid" => document.pid = value.parse().ok()?,
                "command" => document.command = Text::new(value).to_string(),
                "version" => document.version = Text::new(value).to_string(),
                "device" => document.device = Text::new(value).to_string(),
                "address" => document.addresses.push(Text::new(value).to_string()),
                "uptime_s" => document.uptime_s = value.parse().ok()?,
                "counter" => {
                    let (name, value) = value.split_once(' ')?;
                    if is_name(name) {
                        document.counters.push((name.to_owned(), value.parse().ok()?));
                    }
                }
                "engine_counter" => {
                    let (engine, counter) = value.split_once(' ')?;
                    let (name, value) = counter.split_once(' ')?;
                    if is_name(name) {
                        let engine = engine.parse().ok()?;
                        document.engine_counters.push((engine, name.to_owned(), value.parse().ok()?));
                    }
                }
                // A later version may contain more.
                _ => {}
            }
        }
        Some(document)
    }
}

pub(super) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the directory of a user's sockets.
pub(super) fn directory_of(uid: u32) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute()) {
        Some(path) => Path::new(&path).join("roce"),
        None => PathBuf::from(format!("/tmp/roce-{uid}")),
    }
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
                let (process, number) = place(entry.file_name().to_str()?)?;
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
        // Ignores links, which another user may have made.
        all.extend(
            runtime.chain(temporary).filter(|path| path.symlink_metadata().is_ok_and(|it| it.is_dir())),
        );
        all.sort();
        all.dedup();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_a_process_and_a_number() {
        assert_eq!(place("12.3"), Some((12, 3)));
        for other in ["12", "12.", ".3", "12.3.4", "a.b", "-1.2", ""] {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn a_document_reads_as_it_was_written_and_anything_else_is_refused() {
        let document = Published {
            pid: 7,
            command: "roce ping --device udp:127.0.0.2".to_owned(),
            version: "0.1.0".to_owned(),
            device: "udp".to_owned(),
            addresses: vec!["127.0.0.2".to_owned(), "::1".to_owned()],
            uptime_s: 1.25,
            counters: vec![("rx_handled".to_owned(), u64::MAX), ("tx_packets".to_owned(), 0)],
            engine_counters: vec![(0, "rx_handled".to_owned(), 7), (12, "tx_packets".to_owned(), 1)],
        };
        let text = document.to_text();
        assert_eq!(Published::from_text(&text), Some(document));
        for broken in [
            "",
            "[",
            "roce counters 2\n",
            &text.replace("pid 7", "pid x"),
            &text.replace("uptime_s ", "uptime_s"),
        ] {
            assert_eq!(Published::from_text(broken), None, "{broken}");
        }
        let hostile = text.replace("ping", "\u{1b}[2J\u{202e}").replace("rx_handled", "rx\u{1b}handled");
        let read = Published::from_text(&hostile).unwrap();
        assert_eq!(
            (read.command.as_str(), read.counters.len()),
            (r"roce \u{1b}[2J\u{202e} --device udp:127.0.0.2", 1)
        );
    }
}
