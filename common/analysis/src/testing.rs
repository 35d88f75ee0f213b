//! Captures of the repository, for tests.

use std::path::Path;

use roce_capture::CaptureReader;
use roce_packet::outer::Link;

use crate::{Analysis, Collector, Packet};

/// Analyses Ethernet captures in `pcaps/`.
pub(crate) fn analyzed(names: &[&str]) -> Analysis {
    let mut collector = Collector::new(roce_packet::ROCE_UDP_PORT);
    for (capture, name) in (0..).zip(names) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pcaps").join(name);
        let mut reader = CaptureReader::open(&path).unwrap();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            collector.add(&Packet {
                capture,
                interface: packet.interface.unwrap_or(0) as u16,
                number: packet.number,
                time_ns: packet.time_ns,
                link: Link::Ethernet,
                wire_len: packet.original_len as usize,
                bytes: packet.bytes,
            });
        }
    }
    collector.analyze()
}
