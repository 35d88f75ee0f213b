//! Captures the frames of simulated ports as pcapng.

use std::path::Path;

use anyhow::Context as _;
use roce_packet::{FrameHeaders, MacAddr, PauseFrame};
use roce_sim::net::{Captured, CapturedContent};

use roce_capture::{Direction, PcapWriter};

/// The capture files of a run. They are written during the run, because one second at 100 Gb/s takes 12 GB.
pub(super) struct Captures {
    /// Port numbers and their files.
    files: Vec<(u32, PcapWriter)>,
}

impl Captures {
    /// Creates a file for each port (number and name), and the directory if it does not exist.
    pub(super) fn create(dir: &Path, ports: &[(u32, String)]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot create the directory {}", dir.display()))?;
        let mut files = Vec::new();
        for (port, name) in ports {
            let file = format!("{}.pcapng", name.replace(':', "-"));
            files.push((*port, PcapWriter::create(&dir.join(file), &[name])?));
        }
        Ok(Self { files })
    }

    /// Appends the frames that these ports sent and received, including pause frames.
    pub(super) fn write(&mut self, frames: &[Captured]) -> anyhow::Result<()> {
        for frame in frames {
            let Some((_, file)) = self.files.iter_mut().find(|(port, _)| *port == frame.port) else {
                continue;
            };
            let direction = if frame.outbound { Direction::Outbound } else { Direction::Inbound };
            if let Some(bytes) = frame_bytes(&frame.content) {
                file.write(0, frame.time.as_ns(), direction, None, &bytes)?;
            }
        }
        Ok(())
    }

    /// Flushes the files and returns the first error.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        for (_, file) in &mut self.files {
            file.flush()?;
        }
        Ok(())
    }
}

/// Returns the frame from its Ethernet header on. Ethernet addresses are derived from IP addresses.
pub(super) fn frame_bytes(content: &CapturedContent) -> Option<Vec<u8>> {
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
