//! The packets of scripts as a pcapng file.

use std::net::IpAddr;
use std::path::Path;

use roce_capture::{CaptureError, Direction, PcapWriter};
use roce_packet::{FrameHeaders, MacAddr};

use crate::run::{Record, Report};

/// Time between the packets of two scripts in a file, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// Writes the packets of all scripts to a file, one interface for each script. Each packet has a comment with
/// the line of the script.
///
/// # Errors
///
/// Returns an error if the file cannot be written.
pub fn write_capture(path: &Path, reports: &[Report]) -> Result<(), CaptureError> {
    let names: Vec<&str> = reports.iter().map(|report| report.script.as_str()).collect();
    let mut writer = PcapWriter::create(path, &names)?;
    let mut begin = PAUSE_NS;
    for (interface, report) in (0..).zip(reports) {
        let first = report.records.first().map_or(0, |record| record.at.as_nanos());
        let mut last = begin;
        for record in &report.records {
            last = begin + record.at.as_nanos().saturating_sub(first);
            let Some(frame) = frame(record) else { continue };
            let direction = if record.is_sent { Direction::Outbound } else { Direction::Inbound };
            let comment = record.place.as_ref().map(|place| format!("{place}: {}", record.text));
            writer.write(interface, last, direction, comment.as_deref(), &frame)?;
        }
        begin = last + PAUSE_NS;
    }
    writer.flush()
}

/// Returns the packet as an Ethernet frame, or `None` if it has no valid addresses.
fn frame(record: &Record) -> Option<Vec<u8>> {
    let path = &record.path;
    let (source, destination) = (mac(path.source), mac(path.destination));
    let headers =
        FrameHeaders::new(path, record.identification, destination, source, record.bytes.len()).ok()?;
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).ok()?;
    frame.extend_from_slice(&record.bytes);
    Some(frame)
}

/// Returns a locally administered Ethernet address that contains the end of an IP address.
const fn mac(address: IpAddr) -> MacAddr {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            MacAddr([2, 0, a, b, c, d])
        }
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            MacAddr([2, 6, a, b, c, d])
        }
    }
}
