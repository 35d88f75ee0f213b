//! The tables of flows, and the keys of each kind.
//!
//! All kinds share one flat table, because serde loses the position of keys if it must read `kind` first.

use serde::Deserialize;

use super::profile::Profile;
use super::values::{Bytes, Span};

/// A table of flows.
#[derive(Debug)]
pub(super) struct FlowTable {
    /// The kind, as in the file.
    pub(super) kind: &'static str,
    pub(super) name: Option<String>,
    /// Names of the tables that the flows wait for.
    pub(super) after: Vec<String>,
    /// The computation time after those tables, before the flows start.
    pub(super) compute: Option<Span>,
    /// Settings of the queue pairs.
    pub(super) host: Option<Profile>,
    pub(super) operation: Option<Operation>,
    /// The hosts between which the flows run.
    pub(super) hosts: Option<Vec<String>>,
    pub(super) jitter: Option<Jitter>,
    pub(super) flows: Flows,
}

/// The operation that moves the bytes of flows.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Operation {
    Write,
    Send,
    Read,
}

/// A random delay of each start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jitter {
    /// The maximum delay.
    pub(super) most: Span,
    pub(super) seed: Option<u64>,
}

/// Incasts at equal periods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeated {
    pub(super) period: Span,
    pub(super) count: u32,
}

/// The flows of one table.
#[derive(Debug)]
pub(super) enum Flows {
    Pair {
        from: String,
        to: String,
        bytes: Bytes,
        start: Option<Span>,
    },
    Permutation {
        bytes: Bytes,
        start: Option<Span>,
        seed: Option<u64>,
    },
    Incast {
        degree: u32,
        to: Option<String>,
        bytes: Bytes,
        start: Option<Span>,
        repeated: Option<Repeated>,
        /// The seed for random hosts in each incast.
        shuffle: Option<u64>,
    },
    AllToAll {
        bytes: Bytes,
        start: Option<Span>,
    },
    OnOff {
        from: String,
        to: String,
        bytes: Bytes,
        period: Span,
        count: u32,
        start: Option<Span>,
    },
    Poisson {
        load: f64,
        duration: Span,
        sizes: String,
        seed: Option<u64>,
    },
    Trace {
        file: Option<String>,
        text: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Pair,
    Permutation,
    Incast,
    AllToAll,
    OnOff,
    Poisson,
    Trace,
}

/// A table as written in the file. Errors of the whole table are detected later, when its line is known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[flows]]")]
pub(super) struct Table {
    kind: Kind,
    name: Option<String>,
    #[serde(default)]
    after: Vec<String>,
    compute: Option<Span>,
    host: Option<Profile>,
    operation: Option<Operation>,
    hosts: Option<Vec<String>>,
    jitter: Option<Span>,
    shuffle: Option<u64>,
    from: Option<String>,
    to: Option<String>,
    bytes: Option<Bytes>,
    start: Option<Span>,
    seed: Option<u64>,
    degree: Option<u32>,
    period: Option<Span>,
    count: Option<u32>,
    load: Option<f64>,
    duration: Option<Span>,
    sizes: Option<String>,
    file: Option<String>,
    text: Option<String>,
}

impl TryFrom<Table> for FlowTable {
    type Error = String;

    fn try_from(mut table: Table) -> Result<Self, String> {
        let kind = table.kind;
        let seed = table.seed;
        let flows = table.take(kind)?;
        // Poisson arrivals have random starts and no jitter.
        let jitter = if kind == Kind::Poisson { None } else { table.jitter.take() };
        let jitter = jitter.map(|most| Jitter { most, seed });
        if jitter.is_some() {
            table.seed = None;
        }
        let has_hosts = matches!(kind, Kind::Permutation | Kind::Incast | Kind::AllToAll | Kind::Poisson);
        let hosts = if has_hosts { table.hosts.take() } else { None };
        match table.left() {
            None => Ok(Self {
                kind: name(kind),
                name: table.name,
                after: table.after,
                compute: table.compute,
                host: table.host,
                operation: table.operation,
                hosts,
                jitter,
                flows,
            }),
            Some(key) => Err(format!("flows of the kind {} have no `{key}`", name(kind))),
        }
    }
}

impl Table {
    /// Removes the keys of a kind, and returns its flows.
    fn take(&mut self, kind: Kind) -> Result<Flows, String> {
        let missing = |key| move || format!("flows of the kind {} need `{key}`", name(kind));
        let repeated = if kind == Kind::Incast { self.take_repeated()? } else { None };
        let mut from = || self.from.take().ok_or_else(missing("from"));
        let mut to = || self.to.take().ok_or_else(missing("to"));
        let mut bytes = || self.bytes.take().ok_or_else(missing("bytes"));
        let mut start = || self.start.take();
        Ok(match kind {
            Kind::Pair => Flows::Pair { from: from()?, to: to()?, bytes: bytes()?, start: start() },
            Kind::Permutation => {
                Flows::Permutation { bytes: bytes()?, start: start(), seed: self.seed.take() }
            }
            Kind::Incast => {
                let degree = self.degree.take().ok_or_else(missing("degree"))?;
                let shuffle = self.shuffle.take();
                let to = if shuffle.is_some() { to().ok() } else { Some(to()?) };
                Flows::Incast { degree, to, bytes: bytes()?, start: start(), repeated, shuffle }
            }
            Kind::AllToAll => Flows::AllToAll { bytes: bytes()?, start: start() },
            Kind::OnOff => {
                let period = self.period.take().ok_or_else(missing("period"))?;
                let count = self.count.take().ok_or_else(missing("count"))?;
                Flows::OnOff { from: from()?, to: to()?, bytes: bytes()?, period, count, start: start() }
            }
            Kind::Poisson => Flows::Poisson {
                load: self.load.take().ok_or_else(missing("load"))?,
                duration: self.duration.take().ok_or_else(missing("duration"))?,
                sizes: self.sizes.take().ok_or_else(missing("sizes"))?,
                seed: self.seed.take(),
            },
            Kind::Trace => Flows::Trace { file: self.file.take(), text: self.text.take() },
        })
    }

    fn take_repeated(&mut self) -> Result<Option<Repeated>, String> {
        match (self.period.take(), self.count.take()) {
            (None, None) => Ok(None),
            (Some(period), Some(count)) => Ok(Some(Repeated { period, count })),
            _ => Err("a repeated incast needs `period` and `count`".to_owned()),
        }
    }

    /// Returns a key that the kind does not support.
    fn left(&self) -> Option<&'static str> {
        let keys = [
            ("hosts", self.hosts.is_some()),
            ("jitter", self.jitter.is_some()),
            ("shuffle", self.shuffle.is_some()),
            ("from", self.from.is_some()),
            ("to", self.to.is_some()),
            ("bytes", self.bytes.is_some()),
            ("start", self.start.is_some()),
            ("seed", self.seed.is_some()),
            ("degree", self.degree.is_some()),
            ("period", self.period.is_some()),
            ("count", self.count.is_some()),
            ("load", self.load.is_some()),
            ("duration", self.duration.is_some()),
            ("sizes", self.sizes.is_some()),
            ("file", self.file.is_some()),
            ("text", self.text.is_some()),
        ];
        keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }
}

/// Returns the name of the kind in the file.
fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Pair => "pair",
        Kind::Permutation => "permutation",
        Kind::Incast => "incast",
        Kind::AllToAll => "all-to-all",
        Kind::OnOff => "on-off",
        Kind::Poisson => "poisson",
        Kind::Trace => "trace",
    }
}
