//! A capture file with some frames.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use roce_capture::{CapturedPacket, Direction, PcapWriter};

use super::input::Input;

/// The time between two frames, in nanoseconds.
const SPACING_NS: u64 = 1_000;
/// The name in errors.
const NAME: &str = "frames.pcapng";

/// Writes frames to a pcapng file, one microsecond apart.
pub(super) fn pcap(hexes: &[String]) -> Result<Vec<u8>, String> {
    if hexes.is_empty() {
        return Err("there is no frame; choose at least one".to_owned());
    }
    let shared = Shared::default();
    let text = |error: roce_capture::CaptureError| error.to_string();
    let mut writer = PcapWriter::new(shared.clone(), NAME, &[]).map_err(text)?;
    for (number, hex) in (1_u64..).zip(hexes) {
        let input = Input::parse(hex, "auto").map_err(|error| format!("frame {number}: {error}"))?;
        let Some(link_type) = input.start.link_type() else {
            return Err(format!(
                "frame {number} has neither an Ethernet header nor an IP header, so a capture file cannot \
                 contain it; add the headers in front of the BTH"
            ));
        };
        let packet = CapturedPacket {
            number,
            time_ns: Some(number * SPACING_NS),
            link_type,
            interface: None,
            interface_name: None,
            direction: Direction::Unknown,
            comment: None,
            original_len: u32::try_from(input.bytes.len()).unwrap_or(u32::MAX),
            bytes: &input.bytes,
        };
        writer.copy(&packet).map_err(text)?;
    }
    writer.flush().map_err(text)?;
    drop(writer);
    Ok(shared.take())
}

/// Bytes that a writer and its caller share.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn take(&self) -> Vec<u8> {
        // A panic of another writer cannot leave a part of a byte.
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
