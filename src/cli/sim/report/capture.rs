//! Frames of simulated ports as pcapng.

use std::path::Path;

use roce_packet::{FrameHeaders, MacAddr, PauseFrame};
use roce_sim::net::{Captured, CapturedContent};

use crate::observe::pcap_file::{Direction, PcapWriter};

/// Frames of one port as pcapng: what left it and what arrived, pause frames included.
pub(super) fn write_capture(path: &Path, name: &str, port: u32, captured: &[Captured]) -> anyhow::Result<()> {
    let mut writer = PcapWriter::create(path, &[name])?;
    for frame in captured.iter().filter(|frame| frame.port == port) {
        let direction = if frame.outbound { Direction::Outbound } else { Direction::Inbound };
        if let Some(bytes) = frame_bytes(&frame.content) {
            writer.write(0, frame.time.as_ns(), direction, None, &bytes)?;
        }
    }
    Ok(writer.flush()?)
}

/// The whole frame from its Ethernet header on. Ethernet addresses are made from those of IP.
fn frame_bytes(content: &CapturedContent) -> Option<Vec<u8>> {
    match content {
        CapturedContent::Pause { priority, quanta } => {
            let mut request = [None; roce_packet::pause::PRIORITIES];
            *request.get_mut(usize::from(*priority))? = Some(*quanta);
            let request = roce_packet::pause::PauseRequest::PerPriority(request);
            let mut bytes = [0; PauseFrame::LEN];
            PauseFrame { source: MacAddr([2, 0, 0, 0, 0, 1]), request }.emit(&mut bytes);
            Some(bytes.to_vec())
        }
        CapturedContent::Datagram { path, bytes: datagram, .. } => {
            let mac = |address: std::net::IpAddr| match address {
                std::net::IpAddr::V4(address) => {
                    let [a, b, c, d] = address.octets();
                    MacAddr([2, 0, a, b, c, d])
                }
                std::net::IpAddr::V6(_) => MacAddr([2, 0, 0, 0, 0, 0]),
            };
            let headers =
                FrameHeaders::new(path, 0, mac(path.destination), mac(path.source), datagram.len()).ok()?;
            let mut bytes = vec![0; headers.len_bytes()];
            headers.emit(&mut bytes).ok()?;
            bytes.extend_from_slice(datagram);
            Some(bytes)
        }
    }
}
