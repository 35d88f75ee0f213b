//! Files with counters, as tools print them.

use std::fmt;

use super::json::{self, Value};
use super::table::Driver;

/// The counters of a device or port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of the device; empty if the file does not contain it, as in the output of `ethtool -S`.
    pub device: String,
    /// Number of the port.
    pub port: Option<u64>,
    /// The driver, as far as the names tell.
    pub driver: Option<Driver>,
    /// Names and values, in the order of the file.
    pub counters: Vec<(String, u64)>,
}

impl Group {
    /// Returns device and port in the form of `rdma link`, such as `mlx5_0/1`.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.device.as_str(), self.port) {
            ("", _) => "the device".to_owned(),
            (device, Some(port)) => format!("{device}/{port}"),
            (device, None) => device.to_owned(),
        }
    }

    /// Returns the value of a counter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// The counters of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The devices and ports.
    pub groups: Vec<Group>,
}

/// The file has no counters in a known form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCounters;

impl fmt::Display for NoCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no counters; expected the output of `rdma statistic` (also with -j or -p), `ethtool -S IFNAME`, \
             `roce stat` (also with --json), or `grep . /sys/class/infiniband/*/ports/1/hw_counters/*`",
        )
    }
}

impl std::error::Error for NoCounters {}

impl Snapshot {
    /// Parses the output of a tool. The form of each line decides how it is read, so that the outputs of
    /// several tools may follow each other in one file. Lines of other forms are ignored.
    ///
    /// # Errors
    ///
    /// There are no counters.
    pub fn parse(text: &str) -> Result<Self, NoCounters> {
        let mut builder = Builder::default();
        match Some(text.trim()).filter(|text| is_json(text)).and_then(json::parse) {
            Some(document) => builder.document(&document),
            None => text.lines().for_each(|line| builder.line(line)),
        }
        let mut groups = builder.groups;
        groups.retain(|group| !group.counters.is_empty());
        for group in &mut groups {
            group.driver = Driver::of(&group.device, &group.counters);
        }
        if groups.is_empty() { Err(NoCounters) } else { Ok(Self { groups }) }
    }

    /// Returns the group of the same device and port. A file with one group need not name its device.
    pub(super) fn counterpart(&self, of: &Group, is_alone: bool) -> Option<&Group> {
        let same = self.groups.iter().find(|group| group.device == of.device && group.port == of.port);
        let only = || self.groups.first().filter(|_| is_alone && self.groups.len() == 1);
        same.or_else(only)
    }
}

fn is_json(text: &str) -> bool {
    (text.starts_with('[') && text.ends_with(']')) || (text.starts_with('{') && text.ends_with('}'))
}

#[derive(Default)]
struct Builder {
    groups: Vec<Group>,
}

impl Builder {
    /// Makes the group of this device and port the current one, which is the last of the list.
    fn enter(&mut self, device: &str, port: Option<u64>) {
        let known = self.groups.iter().position(|group| group.device == device && group.port == port);
        let group = match known {
            Some(index) => self.groups.remove(index),
            None => Group { device: device.to_owned(), port, driver: None, counters: Vec::new() },
        };
        self.groups.push(group);
    }

    fn add(&mut self, name: &str, value: u64) {
        if self.groups.is_empty() {
            self.enter("", None);
        }
        let Some(group) = self.groups.last_mut() else { return };
        match group.counters.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => group.counters.push((name.to_owned(), value)),
        }
    }

    fn line(&mut self, line: &str) {
        let line = line.trim();
        if let Some((device, port, name, value)) = sysfs(line) {
            self.enter(device, Some(port));
            self.add(name, value);
        } else if let Some(link) = line.strip_prefix("link ") {
            self.link(link);
        } else if line == "NIC statistics:" {
            self.enter("", None);
        } else if let Some(title) = title_of_roce(line) {
            self.enter(title, None);
        } else if line.starts_with("of these, engine ") {
            // The numbers of one engine of several are part of those above.
            let process = self.groups.last().map_or("", |group| &group.device);
            let process = process.split(" (").next().unwrap_or_default();
            let name = format!("{process} ({})", line.trim_end_matches(':'));
            self.enter(&name, None);
        } else if let Some((name, value)) = line.rsplit_once(':').and_then(named_value) {
            self.add(name, value);
        } else if let Some((name, value)) = line.rsplit_once(char::is_whitespace).and_then(named_value) {
            self.add(name, value);
        }
    }

    /// A line of `rdma statistic`: device and port, then names and values. Some names have spaces.
    fn link(&mut self, line: &str) {
        let (link, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (device, port) = match link.rsplit_once('/') {
            Some((device, port)) => (device, port.parse().ok()),
            None => (link, None),
        };
        self.enter(device, port);
        let mut name = String::new();
        for word in rest.split_whitespace() {
            match word.parse() {
                Ok(value) if !name.is_empty() => {
                    self.add(&name, value);
                    name.clear();
                }
                _ => {
                    if !name.is_empty() {
                        name.push(' ');
                    }
                    name.push_str(word);
                }
            }
        }
    }

    fn document(&mut self, document: &Value) {
        match document {
            Value::List(items) => items.iter().for_each(|item| self.document(item)),
            Value::Object(fields) => {
                if let Some(processes) = document.get("processes") {
                    return self.document(processes);
                }
                let text = |name| document.get(name).and_then(Value::text);
                let number = |name| document.get(name).and_then(Value::number);
                if let Some(Value::Object(counters)) = document.get("counters") {
                    let process = number("pid").zip(text("command"));
                    let device = process.map(|(pid, command)| format!("{pid} {command}"));
                    self.enter(&device.unwrap_or_default(), None);
                    self.fields(counters);
                    return;
                }
                self.enter(text("ifname").unwrap_or_default(), number("port"));
                self.fields(fields);
            }
            _ => {}
        }
    }

    fn fields(&mut self, fields: &[(String, Value)]) {
        for (name, value) in fields {
            if let Some(value) = value.number()
                && !["port", "ifindex", "cntn", "pid"].contains(&name.as_str())
            {
                self.add(name, value);
            }
        }
    }
}

/// Splits a line of a dump of files below `/sys/class/infiniband`.
fn sysfs(line: &str) -> Option<(&str, u64, &str, u64)> {
    let (path, value) = line.rsplit_once(':')?;
    let value = value.trim().parse().ok()?;
    let mut parts = path.rsplit('/');
    let name = parts.next()?;
    let folder = parts.next()?;
    let port = parts.next()?.parse().ok()?;
    let is_ports = parts.next()? == "ports";
    let device = parts.next()?;
    (is_ports && ["hw_counters", "counters"].contains(&folder)).then_some((device, port, name, value))
}

/// Returns process and command of a title of `roce stat`.
fn title_of_roce(line: &str) -> Option<&str> {
    let (title, _) = line.strip_suffix(" s")?.rsplit_once(", for ")?;
    let (process, rest) = title.split_once(' ')?;
    process.parse::<u32>().ok()?;
    let (command, _) = rest.split_once(": ")?;
    title.get(..process.len() + 1 + command.len())
}

/// Parses the value behind a name. A name contains a letter.
fn named_value<'a>((name, value): (&'a str, &str)) -> Option<(&'a str, u64)> {
    let name = name.trim().trim_end_matches(':');
    let value = value.trim().parse().ok()?;
    name.contains(char::is_alphabetic).then_some((name, value))
}
