//! The capture file reader on arbitrary bytes.
//!
//! Properties that are checked: no panic; nothing follows an error; no packet is longer than the limit of the
//! reader; all packets together are not longer than the file; a file that arrives byte by byte gives the same
//! packets as a complete one; the packets can be written, and reading them again gives the same.

use std::io::{Cursor, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use roce_capture::{CaptureReader, Direction, LinkType, MAX_PACKET, PcapWriter};
use roce_packet::Dissection;

/// The packets, and the final error as text.
#[derive(Debug, PartialEq)]
struct Content {
    packets: Vec<Packet>,
    error: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Packet {
    time_ns: Option<u64>,
    link_type: LinkType,
    direction: Direction,
    comment: Option<String>,
    original_len: u32,
    bytes: Vec<u8>,
}

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    let whole = read(Cursor::new(data.to_vec()));
    let total: usize = whole.packets.iter().map(|packet| packet.bytes.len()).sum();
    let is_gzip = data.starts_with(&[0x1f, 0x8b]);
    assert!(total <= data.len() || is_gzip, "{total} bytes of packets in a file of {}", data.len());
    let slowly = read(Slow(Cursor::new(data.to_vec())));
    // How much is decompressed before damage depends on how much arrives at once.
    if !is_gzip || whole.error.is_none() {
        assert_eq!(slowly, whole, "the file arrives byte by byte");
    }
    write_again(&whole.packets);
}

fn read(input: impl Read + Send + 'static) -> Content {
    let mut packets = Vec::new();
    let mut reader = match CaptureReader::new(input, "fuzz") {
        Ok(reader) => reader,
        Err(error) => return Content { packets, error: Some(error.to_string()) },
    };
    let _ = (reader.format(), format!("{reader:?}"));
    loop {
        match reader.next_packet() {
            None => return Content { packets, error: None },
            Some(Err(error)) => {
                let error = Some(error.to_string());
                assert!(reader.next_packet().is_none(), "nothing follows an error");
                return Content { packets, error };
            }
            Some(Ok(packet)) => {
                assert_eq!(packet.number, packets.len() as u64 + 1);
                assert!(packet.bytes.len() <= MAX_PACKET as usize);
                let dissection = Dissection::new(packet.bytes);
                std::hint::black_box(&dissection);
                packets.push(Packet {
                    time_ns: packet.time_ns,
                    link_type: packet.link_type,
                    direction: packet.direction,
                    comment: packet.comment.map(str::to_owned),
                    original_len: packet.original_len,
                    bytes: packet.bytes.to_vec(),
                });
            }
        }
    }
}

/// Writes the packets as Ethernet frames and reads the file again.
fn write_again(packets: &[Packet]) {
    let file = Shared::default();
    let mut writer = PcapWriter::new(file.clone(), "fuzz", &["one"]).expect("memory can be written");
    for packet in packets {
        let comment = packet.comment.as_deref();
        writer
            .write(0, packet.time_ns.unwrap_or(0), packet.direction, comment, &packet.bytes)
            .expect("no longer than what was read");
    }
    writer.flush().expect("memory can be written");
    let bytes = file.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let again = read(Cursor::new(bytes));
    assert_eq!(again.error, None);
    assert_eq!(again.packets.len(), packets.len());
    for (again, packet) in again.packets.iter().zip(packets) {
        let expected = Packet {
            time_ns: Some(packet.time_ns.unwrap_or(0)),
            link_type: LinkType::ETHERNET,
            original_len: u32::try_from(packet.bytes.len()).expect("at most MAX_PACKET"),
            ..packet.clone()
        };
        assert_eq!(*again, expected);
    }
}

/// A reader that returns one byte at a time.
struct Slow<R>(R);

impl<R: Read> Read for Slow<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let one = out.len().min(1);
        self.0.read(&mut out[..one])
    }
}

/// A file in memory that can be read while another owner writes it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
