//! What is read and written at most.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use roce_capture::{
    CaptureError, CaptureErrorKind, CaptureReader, Direction, LONGEST_NAME, MAX_INTERFACES, MAX_OPTIONS,
    MAX_PACKET, PcapWriter, WriterOptions,
};

/// A block of pcapng, little-endian.
fn block(block_type: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() + 12) as u32;
    [&block_type.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
}

fn section() -> Vec<u8> {
    block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat())
}

/// The description of an Ethernet interface, with a name if it is not empty.
fn interface(name: &[u8]) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0];
    if !name.is_empty() {
        body.extend([2, 0]);
        body.extend((name.len() as u16).to_le_bytes());
        body.extend(name);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    block(1, &body)
}

/// A packet of four bytes.
fn packet(interface: u32) -> Vec<u8> {
    let words = [interface, 0, 0, 4, 4, 0x0403_0201];
    block(6, &words.map(u32::to_le_bytes).concat())
}

/// The packets as number of the interface and length of its name, and the error at the end.
fn read(bytes: Vec<u8>) -> (Vec<(u32, usize)>, Option<CaptureError>) {
    let mut reader = CaptureReader::new(Cursor::new(bytes), "the test").unwrap();
    let mut packets = Vec::new();
    loop {
        match reader.next_packet() {
            None => return (packets, None),
            Some(Err(error)) => return (packets, Some(error)),
            Some(Ok(packet)) => {
                packets.push((packet.interface.unwrap(), packet.interface_name.map_or(0, str::len)));
            }
        }
    }
}

#[test]
fn one_interface_too_many_is_an_error_that_says_where() {
    let last = MAX_INTERFACES as u32 - 1;
    let all = [section(), interface(b"").repeat(MAX_INTERFACES), packet(last)].concat();
    assert_eq!(all.len(), 28 + MAX_INTERFACES * 20 + 36);
    let (packets, error) = read(all.clone());
    assert!(error.is_none() && packets == [(last, 0)], "{error:?}");
    // Every section has its own.
    let (packets, error) = read(all.repeat(3));
    assert!(error.is_none() && packets == [(last, 0); 3], "{error:?}");

    let (packets, error) = read([all.clone(), interface(b""), packet(0)].concat());
    assert_eq!(packets.len(), 1);
    let error = error.unwrap();
    assert!(matches!(error.kind, CaptureErrorKind::TooManyInterfaces));
    assert_eq!((error.packet, error.offset), (2, all.len() as u64));
    let text = error.to_string();
    for part in ["the test: packet 2 at byte 81984", "more than 4096 interfaces", "were read"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn long_names_of_interfaces_are_cut_between_characters() {
    let cases =
        [(vec![b'x'; 60_000], LONGEST_NAME), ("é".repeat(200).into_bytes(), 254), (b"eth0".to_vec(), 4)];
    for (name, kept) in cases {
        let (packets, error) = read([section(), interface(&name), packet(0)].concat());
        assert!(error.is_none());
        assert_eq!(packets, [(0, kept)]);
    }
}

#[test]
fn a_block_longer_than_a_packet_with_options_is_refused_before_it_is_read() {
    let len = MAX_PACKET + MAX_OPTIONS + 4 + 12;
    for block_type in [1_u32, 2, 3, 6] {
        let begin = [&block_type.to_le_bytes()[..], &len.to_le_bytes()].concat();
        let (_, error) = read([section(), interface(b""), begin].concat());
        let text = error.unwrap().to_string();
        assert!(text.contains("at byte 48") && text.contains("2 MiB"), "{text}");
    }
    // Blocks of other types are passed over, however long.
    let long = block(0x0bad, &vec![7; 8 << 20]);
    let (packets, error) = read([section(), interface(b""), long, packet(0)].concat());
    assert!(error.is_none() && packets.len() == 1, "{error:?}");
}

/// A file in memory.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Original and captured length of each packet that is in the file after these frames were written.
fn written(options: WriterOptions, frames: &[usize]) -> Vec<(u32, usize)> {
    let file = Shared::default();
    let mut writer = PcapWriter::new_with(file.clone(), "memory", &["one"], options).unwrap();
    for len in frames {
        let frame: Vec<u8> = (0..*len).map(|at| at as u8).collect();
        writer.write(0, u64::MAX, Direction::Outbound, Some("a remark"), &frame).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    let bytes = file.0.lock().unwrap().clone();
    let mut reader = CaptureReader::new(Cursor::new(bytes), "memory").unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!((packet.comment, packet.time_ns), (Some("a remark"), Some(u64::MAX)));
        assert!(packet.bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        assert_eq!(packet.is_snapped(), packet.bytes.len() < packet.original_len as usize);
        found.push((packet.original_len, packet.bytes.len()));
    }
    found
}

#[test]
fn snap_len_keeps_the_first_bytes_and_the_length_on_the_wire() {
    let frames = [60, 128, 129, 4170];
    let with = |snap_len| written(WriterOptions::new().snap_len(snap_len), &frames);
    assert_eq!(with(128), [(60, 60), (128, 128), (129, 128), (4170, 128)]);
    assert_eq!(with(1), [(60, 1), (128, 1), (129, 1), (4170, 1)]);
    let whole = [(60, 60), (128, 128), (129, 129), (4170, 4170)];
    assert_eq!([with(0), with(u32::MAX)], [whole; 2]);
}

#[test]
fn max_packets_ends_the_file_and_not_the_writer() {
    for (most, expected) in [(0, 0), (1, 1), (3, 3), (u64::MAX, 5)] {
        let found = written(WriterOptions::new().max_packets(most), &[60; 5]);
        assert_eq!(found.len(), expected, "{most}");
    }
    let options = WriterOptions::new().max_packets(1);
    let mut writer = PcapWriter::new_with(Shared::default(), "memory", &["one"], options).unwrap();
    assert!(!writer.is_full());
    writer.write(0, 0, Direction::Unknown, None, &[1; 60]).unwrap();
    assert!(writer.is_full());
    // A wrong interface is an error still.
    assert!(writer.write(u32::MAX, 0, Direction::Unknown, None, &[1; 60]).is_err());
}
