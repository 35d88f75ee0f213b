//! Settings of a device from the environment: faults of packets, capture, congestion control, telemetry,
//! seed, several engines. docs/how-to/run.md lists the variables.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::device::pcap::{CaptureFile, CaptureSpec};
use roce::observe::with_causes;
use roce::verbs::{Congestion, Context, GidEntry, OpenOptions, VerbsError};
use roce_fault::{FaultInjector, FaultPlan};

use crate::faults;
use crate::links::{Link, LinkDevice};

/// Maximum GID index. Real devices have at least this many entries; an address vector has 8 bits for the
/// index.
const LARGEST_GID_INDEX: usize = 127;

/// Maximum number of engines: the number of slots of an address.
const MOST_ENGINES: usize = 63;

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the value of a variable, converted by `parse`. The error names the variable.
fn parsed<T, E: Into<Box<dyn Error>>>(
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, String> {
    let Some(text) = variable(name) else { return Ok(None) };
    let invalid = |error: Box<dyn Error>| format!("{name}={text}: {}", with_causes(&*error));
    parse(&text).map(Some).map_err(|error| invalid(error.into()))
}

/// Opens a device with the settings of the environment, and returns the capture that must be completed before
/// the process ends. If `link` can fail, it is put around the device.
///
/// # Errors
///
/// Fails with an error number for the application and a text for the report.
pub(crate) fn open(
    specification: &str,
    link: Option<&Arc<Link>>,
) -> Result<(Context, Option<CaptureFile>), (i32, String)> {
    let invalid = |text: String| (libc::EINVAL, text);
    if let Some(problem) = faults::problem() {
        return Err(invalid(problem));
    }
    let seed = parsed("ROCE_SEED", str::parse::<u64>).map_err(invalid)?;
    let congestion = parsed("ROCE_CONGESTION", |text| Congestion::parse_among(text, &[])).map_err(invalid)?;
    let engines = parsed("ROCE_ENGINES", engines).map_err(invalid)?;
    let telemetry = parsed("ROCE_TELEMETRY", switch).map_err(invalid)?;
    let mut options = OpenOptions::default();
    let fault_seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let plan = |name| parsed(name, str::parse::<FaultPlan>).map_err(invalid);
    options.transmit_faults = plan("ROCE_FAULT")?.map(|plan| FaultInjector::new(plan, fault_seed));
    options.receive_faults = plan("ROCE_RECEIVE_FAULT")?.map(|plan| FaultInjector::new(plan, !fault_seed));
    let capture = parsed("ROCE_PCAP", |text| capture(Path::new(text), specification)).map_err(invalid)?;
    options.capture = capture.clone().map(|capture| Box::new(capture) as Box<_>);
    let mut builder = Context::builder().telemetry(telemetry.unwrap_or(false));
    if let Some(seed) = seed {
        builder = builder.seed(seed);
    }
    if let Some(congestion) = congestion {
        builder = builder.congestion(congestion);
    }
    if let Some(engines) = engines {
        builder = builder.engines(engines);
    }
    let opened = match link.filter(|link| link.has_faults()) {
        None => builder.options(options).open(specification),
        Some(_) if engines.is_some_and(|engines| engines > 1) => {
            return Err(invalid(
                "faults of ports, devices and links need a device with one engine".to_owned(),
            ));
        }
        Some(link) => roce::device::open(specification, options)
            .map_err(VerbsError::from)
            .and_then(|inner| builder.attach_box(Box::new(LinkDevice::new(inner, Arc::clone(link))))),
    };
    match opened {
        Ok(context) => Ok((context, capture)),
        Err(error) => Err((error.errno(), with_causes(&error).to_string())),
    }
}

/// Returns the GID table of the port. `ROCE_GID_INDEX` is the fixed index of a program: the first GID gets
/// all indexes up to this one, and the other entries follow.
///
/// # Errors
///
/// Fails with an error number for the application and a text for the report.
pub(crate) fn gid_table(context: &Context) -> Result<Vec<GidEntry>, (i32, String)> {
    let index = parsed("ROCE_GID_INDEX", gid_index).map_err(|text| (libc::EINVAL, text))?;
    Ok(moved(context.gid_table(), index.unwrap_or(0)))
}

fn engines(text: &str) -> Result<usize, String> {
    let engines = text.parse().ok().filter(|engines| (1..=MOST_ENGINES).contains(engines));
    engines.ok_or_else(|| format!("expected a number from 1 to {MOST_ENGINES}"))
}

fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("expected 0 or 1"),
    }
}

fn gid_index(text: &str) -> Result<usize, String> {
    let index = text.parse().ok().filter(|index| *index <= LARGEST_GID_INDEX);
    index.ok_or_else(|| format!("expected an index from 0 to {LARGEST_GID_INDEX}"))
}

fn moved(table: Vec<GidEntry>, index: usize) -> Vec<GidEntry> {
    let first = table.first().cloned();
    let present = table.iter().take_while(|entry| first.is_some_and(|first| first.gid == entry.gid)).count();
    let more = (index + 1).saturating_sub(present);
    std::iter::repeat_n(first, more).flatten().chain(table).collect()
}

fn capture(file: &Path, specification: &str) -> Result<CaptureFile, String> {
    static CAPTURES: AtomicU32 = AtomicU32::new(1);
    let file = file_of(file, std::process::id(), CAPTURES.fetch_add(1, Ordering::Relaxed));
    let files = CaptureSpec::new(file).create(&[specification]);
    let files = files.map_err(|error| with_causes(&error).to_string())?;
    files.into_iter().next().ok_or_else(|| "the capture has no interface".to_owned())
}

/// Returns the file name of a capture: `%p` is replaced by the process ID, and each further device gets its
/// own file.
fn file_of(file: &Path, process: u32, number: u32) -> PathBuf {
    let named = PathBuf::from(file.to_string_lossy().replace("%p", &process.to_string()));
    if number < 2 {
        return named;
    }
    let stem = named.file_stem().unwrap_or_default().to_string_lossy();
    let extension = named.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    named.with_file_name(format!("{stem}-{number}{}", extension.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_and_device_can_have_a_capture_of_its_own() {
        let name = |file: &str, number| file_of(Path::new(file), 77, number).to_str().unwrap().to_owned();
        assert_eq!(name("a/b.pcapng", 1), "a/b.pcapng");
        assert_eq!(name("a/b-%p.pcapng", 1), "a/b-77.pcapng");
        assert_eq!(name("a.b/c", 2), "a.b/c-2");
        assert_eq!(name("a/b.pcapng", 3), "a/b-3.pcapng");
    }

    #[test]
    fn a_number_of_engines_is_one_that_an_address_has_slots_for() {
        assert_eq!([engines("1"), engines("63")], [Ok(1), Ok(63)]);
        assert_eq!([switch("0"), switch("1"), switch("on")], [Ok(false), Ok(true), Err("expected 0 or 1")]);
        for bad in ["0", "64", "-1", "two", ""] {
            assert_eq!(engines(bad), Err("expected a number from 1 to 63".to_owned()));
        }
    }

    #[test]
    fn the_first_gid_stands_at_all_indexes_up_to_the_one_that_is_asked_for() {
        let context = Context::open("udp:127.0.0.1").unwrap();
        let table = context.gid_table();
        assert_eq!((moved(table.clone(), 0), moved(table.clone(), 3)), (table.clone(), table.clone()));
        let seven = moved(table.clone(), 7);
        assert_eq!(seven.len(), table.len() + 4);
        assert!(seven[..8].iter().all(|entry| entry.gid == table[0].gid));
        assert!(moved(Vec::new(), 3).is_empty());
        assert_eq!(gid_index("127"), Ok(127));
        for bad in ["128", "-1", "", "one"] {
            assert_eq!(gid_index(bad), Err("expected an index from 0 to 127".to_owned()));
        }
    }
}
