//! The document that a process publishes about its context on a Unix socket.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Text;

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
    /// Explanations of queue pairs: first of those that have failed.
    pub explanations: Vec<PublishedExplanation>,
}

/// The explanation of a queue pair of another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedExplanation {
    /// Several lines for a reader.
    pub text: String,
    /// Keys and values for a program, in the order of the text. The keys `packet`, `drop`, `cause` and `next`
    /// may occur several times; each `next` belongs to the `cause` before it.
    pub facts: Vec<(String, String)>,
}

impl Published {
    /// First line of the document: the format and its version.
    const HEADER: &str = "roce counters 1";

    /// Formats one line for each fact: a key, a space and a value. A counter has the key `counter`, its name
    /// and its value.
    pub(super) fn to_text(&self) -> String {
        let Self { pid, command, version, device, addresses, uptime_s, counters, .. } = self;
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
        for (engine, name, value) in &self.engine_counters {
            let _ = writeln!(text, "engine_counter {engine} {name} {value}");
        }
        for (index, explanation) in self.explanations.iter().enumerate() {
            for line in explanation.text.lines() {
                let _ = writeln!(text, "why {index} {line}");
            }
            for (key, value) in &explanation.facts {
                let _ = writeln!(text, "fact {index} {key} {value}");
            }
        }
        text
    }

    /// Adds a line to the explanation with this index, which is the last one or the next one.
    fn add_line(&mut self, index: usize, line: &str) {
        let line = Text::new(line).to_string();
        match self.explanations.get_mut(index) {
            Some(explanation) => explanation.text.extend(["\n", &line]),
            None => self.explanations.push(PublishedExplanation { text: line, facts: Vec::new() }),
        }
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
                "why" => {
                    let (index, line) = value.split_once(' ')?;
                    document.add_line(index.parse().ok()?, line);
                }
                "fact" => {
                    let (index, fact) = value.split_once(' ')?;
                    let (key, value) = fact.split_once(' ')?;
                    let index: usize = index.parse().ok()?;
                    if let Some(explanation) = document.explanations.get_mut(index).filter(|_| is_name(key)) {
                        explanation.facts.push((key.to_owned(), Text::new(value).to_string()));
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

#[cfg(test)]
mod tests {
    use super::*;

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
            explanations: vec![
                PublishedExplanation {
                    text: "queue pair 7\n  1. a cause".to_owned(),
                    facts: vec![
                        ("qpn".to_owned(), "7".to_owned()),
                        ("cause".to_owned(), "a cause".to_owned()),
                    ],
                },
                PublishedExplanation { text: "queue pair 8".to_owned(), facts: Vec::new() },
            ],
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
        let hostile = hostile.replace("fact 0 qpn 7", "fact 0 qpn \u{1b}7\nfact 9 qpn 7\nfact 0 q\u{1b} 7");
        let read = Published::from_text(&hostile).unwrap();
        assert_eq!(
            (read.command.as_str(), read.counters.len()),
            (r"roce \u{1b}[2J\u{202e} --device udp:127.0.0.2", 1)
        );
        let facts = &read.explanations[0].facts;
        assert_eq!((facts.len(), facts[0].1.as_str()), (2, r"\u{1b}7"));
    }
}
