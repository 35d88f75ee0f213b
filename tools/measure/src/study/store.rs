//! The CSV with a row for each finished cell. Cells with a row are not measured again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::grid::{Carrier, Cell, Device, Grid, Test};
use super::measured::Measured;
use roce_machine::text_file;

/// Version of the format; it changes with the meaning of the columns.
pub(super) const FORMAT: &str = "1";

/// The columns, which docs/how-to/study.md describes.
pub const COLUMNS: [&str; 31] = [
    "format",
    "version",
    "grid",
    "machine",
    "device",
    "test",
    "operation",
    "size_bytes",
    "inline",
    "completion",
    "post",
    "signal",
    "buffers",
    "workers",
    "path_mtu_bytes",
    "iterations",
    "elapsed_s",
    "gigabits_per_s",
    "messages_per_s",
    "one_way_us",
    "least_us",
    "median_us",
    "p99_us",
    "most_us",
    "client_cpu_percent",
    "server_cpu_percent",
    "others_cpu_percent",
    "retransmitted_packets",
    "timeouts",
    "rnr_naks",
    "status",
];

/// The reason why rows cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error("cannot read or write {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The file contains something other than rows of this format.
    #[error(
        "{path}, line {line}: {reason}; choose another directory with --out, or remove the file to start \
         again"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// The rows belong to another study.
    #[error(
        "{path} contains rows of another {what} ({theirs}; this is {own}); choose another directory with \
         --out, or remove the file to start again"
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// The property that differs.
        what: &'static str,
        /// The value in the file.
        theirs: String,
        /// The value of this study.
        own: String,
    },
}

/// The properties that all rows of a file share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The version of the program.
    pub version: String,
    /// The name of the grid.
    pub grid: String,
    /// Processor model, number of processors, and kernel.
    pub machine: String,
}

impl Identity {
    /// Returns the identity of this program on this machine.
    #[must_use]
    pub fn here(grid: Grid) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, grid: grid.name().to_owned(), machine: machine() }
    }
}

/// Returns the processor model, the number of processors that this process may use, and the kernel.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim()).to_owned();
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{model}, {count} processors, Linux {}", kernel.trim())
}

/// The outcome of a cell: the measurements, or the reason why there are none.
pub type Outcome = Result<Measured, String>;

/// The rows and their file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    identity: Identity,
    rows: BTreeMap<Cell, Outcome>,
}

impl Store {
    /// Opens `study.csv` in a directory, or creates it. Removes an incomplete last line.
    ///
    /// # Errors
    ///
    /// The file cannot be used, or it belongs to another study; the error says what to do.
    pub fn open(dir: &Path, identity: Identity) -> Result<Self, StoreError> {
        let path = dir.join("study.csv");
        let failed = |error| StoreError::Io { path: path.clone(), error };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
        }
        let bytes = text_file::read_open(&mut file).map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let complete = text.rfind('\n').map_or(0, |at| at + 1);
        file.set_len(complete as u64).map_err(failed)?;
        file.seek(io::SeekFrom::End(0)).map_err(failed)?;
        if complete == 0 {
            writeln!(file, "{}", COLUMNS.join(",")).map_err(failed)?;
        }
        let rows = rows_of(&path, &text[..complete], |values| check_identity(&path, values, &identity))?;
        Ok(Self { path, file, identity, rows })
    }

    /// Reads the rows of any study in a directory, and the identity of the first one.
    ///
    /// # Errors
    ///
    /// `study.csv` cannot be read, contains something else, or contains no row.
    pub fn read(dir: &Path) -> Result<(Identity, BTreeMap<Cell, Outcome>), StoreError> {
        let path = dir.join("study.csv");
        let failed = |error| StoreError::Io { path: path.clone(), error };
        let text = text_file::read_text(&path).map_err(failed)?;
        let complete = text.rfind('\n').map_or(0, |at| at + 1);
        let mut identity = None;
        let rows = rows_of(&path, &text[..complete], |values| {
            let [_, version, grid, machine, ..] = values;
            let of_row =
                || Identity { version: version.clone(), grid: grid.clone(), machine: machine.clone() };
            identity.get_or_insert_with(of_row);
            Ok(())
        })?;
        let empty = || failed(io::Error::new(io::ErrorKind::InvalidData, "it contains no measured cell"));
        Ok((identity.ok_or_else(empty)?, rows))
    }

    /// Returns whether a cell is done.
    #[must_use]
    pub fn has(&self, cell: &Cell) -> bool {
        self.rows.contains_key(cell)
    }

    /// Appends a row and writes it to the file at once.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn add(&mut self, cell: Cell, outcome: Outcome) -> Result<(), StoreError> {
        let line = format(&self.identity, &cell, &outcome);
        let written = writeln!(self.file, "{line}").and_then(|()| self.file.flush());
        written.map_err(|error| StoreError::Io { path: self.path.clone(), error })?;
        self.rows.insert(cell, outcome);
        Ok(())
    }

    /// Returns the properties that all rows share.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the rows.
    #[must_use]
    pub fn rows(&self) -> &BTreeMap<Cell, Outcome> {
        &self.rows
    }

    /// Returns the devices that have rows.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<Device> {
        self.rows.keys().map(|cell| cell.device).collect()
    }
}

/// Parses complete lines. `check` may refuse a line.
fn rows_of(
    path: &Path,
    text: &str,
    mut check: impl FnMut(&[String; COLUMNS.len()]) -> Result<(), StoreError>,
) -> Result<BTreeMap<Cell, Outcome>, StoreError> {
    let mut rows = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let malformed =
            |reason: String| StoreError::Malformed { path: path.to_owned(), line: number + 1, reason };
        if number == 0 {
            if line != COLUMNS.join(",") {
                return Err(malformed("the columns are not those of this version".into()));
            }
            continue;
        }
        let fields: Vec<String> = split(line);
        let values: Result<&[String; COLUMNS.len()], _> = fields.as_slice().try_into();
        let Ok(values) = values else {
            return Err(malformed(format!("{} fields instead of {}", fields.len(), COLUMNS.len())));
        };
        check(values)?;
        let (cell, outcome) = parse(values).map_err(malformed)?;
        rows.insert(cell, outcome);
    }
    Ok(rows)
}

fn check_identity(path: &Path, values: &[String], own: &Identity) -> Result<(), StoreError> {
    let expected = [
        ("format", FORMAT),
        ("version of roce", own.version.as_str()),
        ("grid", own.grid.as_str()),
        ("machine", own.machine.as_str()),
    ];
    for ((what, own), theirs) in expected.into_iter().zip(values) {
        if own != theirs {
            let (theirs, own) = (theirs.clone(), own.to_owned());
            return Err(StoreError::Other { path: path.to_owned(), what, theirs, own });
        }
    }
    Ok(())
}

/// Quotes a field of the CSV if necessary.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"").replace(['\n', '\r'], " "))
    } else {
        text.to_owned()
    }
}

/// Splits a line into fields.
fn split(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut in_quotes, mut characters) = (false, line.chars().peekable());
    while let Some(character) = characters.next() {
        let is_double = in_quotes && character == '"' && characters.peek() == Some(&'"');
        match character {
            '"' if is_double => {
                characters.next();
                if let Some(field) = fields.last_mut() {
                    field.push('"');
                }
            }
            '"' => in_quotes = !in_quotes,
            ',' if !in_quotes => fields.push(String::new()),
            other => {
                if let Some(field) = fields.last_mut() {
                    field.push(other);
                }
            }
        }
    }
    fields
}

fn format(identity: &Identity, cell: &Cell, outcome: &Outcome) -> String {
    let on = |is: bool, yes: &str, no: &str| if is { yes.to_owned() } else { no.to_owned() };
    let watches_memory = cell.test == Test::Ping && cell.carrier == Carrier::Write && !cell.events;
    let completion = if watches_memory { "memory".to_owned() } else { on(cell.events, "event", "poll") };
    let mut fields = vec![
        FORMAT.to_owned(),
        identity.version.clone(),
        identity.grid.clone(),
        identity.machine.clone(),
        cell.device.name().to_owned(),
        cell.test.name().to_owned(),
        cell.carrier.name().to_owned(),
        cell.size.to_string(),
        on(cell.inline, "yes", "no"),
        completion,
        on(cell.lists, "list", "single"),
        on(cell.periodic, "periodic", "full"),
        cell.buffers.to_string(),
        cell.workers.to_string(),
    ];
    match outcome {
        Ok(measured) => fields.extend(format_measured(measured)),
        Err(reason) => {
            fields.resize(COLUMNS.len() - 1, String::new());
            fields.push(reason.clone());
        }
    }
    fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",")
}

fn format_measured(measured: &Measured) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let mut fields = vec![
        measured.path_mtu.to_string(),
        measured.iterations.to_string(),
        format!("{:.6}", measured.elapsed_s),
        format!("{:.6}", measured.gigabits_per_s),
        format!("{:.2}", measured.messages_per_s),
        format!("{:.4}", measured.one_way_us),
    ];
    fields.extend(measured.percentiles_us.map(optional));
    fields.extend([measured.client_cpu, measured.server_cpu, measured.others_cpu].map(optional));
    fields.extend(
        [measured.retransmitted_packets, measured.timeouts, measured.rnr_naks].map(|count| count.to_string()),
    );
    fields.push(MEASURED.to_owned());
    fields
}

/// The status of a measured cell.
const MEASURED: &str = "measured";

fn parse(values: &[String; COLUMNS.len()]) -> Result<(Cell, Outcome), String> {
    let value = |name: &str| {
        COLUMNS.iter().position(|column| *column == name).map_or("", |index| values[index].as_str())
    };
    let number = |name: &str| -> Result<f64, String> {
        let text = value(name);
        let parsed = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        parsed.ok_or_else(|| format!("{name} is {text:?}"))
    };
    let count = |name: &str| -> Result<usize, String> {
        value(name).parse().map_err(|_| format!("{name} is {:?}", value(name)))
    };
    let optional = |name: &str| if value(name).is_empty() { Ok(None) } else { number(name).map(Some) };
    let unknown = |name: &str| format!("{name} is {:?}", value(name));
    let device = Device::ALL.into_iter().find(|device| device.name() == value("device"));
    let test = [Test::Ping, Test::Blast].into_iter().find(|test| test.name() == value("test"));
    let mut carriers = Carrier::OPERATIONS.into_iter().chain([Carrier::Tcp, Carrier::Limit]);
    let carrier = carriers.find(|carrier| carrier.name() == value("operation"));
    let cell = Cell {
        device: device.ok_or_else(|| unknown("device"))?,
        test: test.ok_or_else(|| unknown("test"))?,
        carrier: carrier.ok_or_else(|| unknown("operation"))?,
        size: count("size_bytes")?,
        inline: value("inline") == "yes",
        events: value("completion") == "event",
        lists: value("post") == "list",
        periodic: value("signal") == "periodic",
        buffers: count("buffers")?,
        workers: count("workers")?,
    };
    if value("status") != MEASURED {
        return Ok((cell, Err(value("status").to_owned())));
    }
    let measured = Measured {
        path_mtu: count("path_mtu_bytes")?,
        iterations: count("iterations")? as u64,
        elapsed_s: number("elapsed_s")?,
        gigabits_per_s: number("gigabits_per_s")?,
        messages_per_s: number("messages_per_s")?,
        one_way_us: number("one_way_us")?,
        percentiles_us: [
            optional("least_us")?,
            optional("median_us")?,
            optional("p99_us")?,
            optional("most_us")?,
        ],
        client_cpu: optional("client_cpu_percent")?,
        server_cpu: optional("server_cpu_percent")?,
        others_cpu: optional("others_cpu_percent")?,
        retransmitted_packets: count("retransmitted_packets")? as u64,
        timeouts: count("timeouts")? as u64,
        rnr_naks: count("rnr_naks")? as u64,
    };
    Ok((cell, Ok(measured)))
}

#[cfg(test)]
mod tests {
    use roce::observe::with_causes;

    use super::*;

    fn identity() -> Identity {
        Identity {
            version: "1.2.3".into(),
            grid: "quick".into(),
            machine: "A \"fast\" one, 2 processors".into(),
        }
    }

    fn measured() -> Measured {
        Measured {
            path_mtu: 4096,
            iterations: 1000,
            elapsed_s: 0.25,
            gigabits_per_s: 12.5,
            messages_per_s: 4000.0,
            one_way_us: 250.0,
            percentiles_us: [Some(1.0), Some(2.0), Some(3.5), None],
            client_cpu: Some(99.5),
            server_cpu: None,
            others_cpu: Some(12.5),
            retransmitted_packets: 3,
            timeouts: 1,
            rnr_naks: 2,
        }
    }

    #[test]
    fn rows_are_there_again_and_an_incomplete_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let cells = Grid::Quick.cells(Device::UdpLoopback);
        let mut store = Store::open(folder.path(), identity()).unwrap();
        store.add(cells[0], Ok(measured())).unwrap();
        store.add(cells[1], Err("it took longer than 10 s, \"too long\"\nfor us".into())).unwrap();
        drop(store);
        let path = folder.path().join("study.csv");
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}1,1.2.3,quick")).unwrap();
        let store = Store::open(folder.path(), identity()).unwrap();
        assert_eq!(store.rows().len(), 2);
        assert_eq!(store.rows()[&cells[0]], Ok(measured()));
        assert_eq!(store.rows()[&cells[1]], Err("it took longer than 10 s, \"too long\" for us".into()));
        assert!(store.has(&cells[0]) && !store.has(&cells[2]));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    }

    #[test]
    fn every_cell_of_the_grids_survives_the_file() {
        for grid in [Grid::Quick, Grid::Full] {
            for cell in Device::ALL.into_iter().flat_map(|device| grid.cells(device)) {
                let line = format(&identity(), &cell, &Ok(measured()));
                let fields: [String; COLUMNS.len()] = split(&line).try_into().unwrap();
                assert_eq!(parse(&fields).unwrap(), (cell, Ok(measured())));
            }
        }
    }

    #[test]
    fn rows_of_another_study_are_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let cell = Grid::Quick.cells(Device::UdpLoopback)[0];
        Store::open(folder.path(), identity()).unwrap().add(cell, Ok(measured())).unwrap();
        let full = Identity { grid: "full".into(), ..identity() };
        let newer = Identity { version: "9.9.9".into(), ..identity() };
        let elsewhere = Identity { machine: "another".into(), ..identity() };
        for (other, part) in
            [(full, "another grid (quick; this is full)"), (newer, "1.2.3"), (elsewhere, "machine")]
        {
            let error = Store::open(folder.path(), other).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("--out"), "{error}");
        }
        std::fs::write(folder.path().join("study.csv"), "size,speed\n1,2\n").unwrap();
        let error = Store::open(folder.path(), identity()).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("columns"), "{error}");
    }

    /// Regression: the file was read without a limit.
    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        File::create(folder.path().join("study.csv")).unwrap().set_len(65 << 20).unwrap();
        let error = Store::open(folder.path(), identity()).unwrap_err();
        let error = with_causes(&error).to_string();
        assert!(error.contains("longer than 64 MiB"), "{error}");
    }
}
