//! The processor time and the memory of this process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::outcome::Outcome;

/// Returns the user and system time of all threads.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns the resident memory in bytes.
pub(crate) fn resident_bytes() -> Outcome<usize> {
    status("VmRSS:")
}

/// Returns the largest resident memory so far, in bytes.
pub(crate) fn most_resident_bytes() -> Outcome<usize> {
    status("VmHWM:")
}

fn status(name: &str) -> Outcome<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)).ok_or(format!("no {name}"))?;
    Ok(value.trim().trim_end_matches("kB").trim().parse::<usize>()? * 1024)
}
