//! Creates frames and captures for tests.

use std::io::{self, Write};
use std::path::Path;

use roce_capture::{Direction, PcapWriter};
use roce_packet::{
    Bth, DatagramWriter, Encapsulation, FrameHeaders, HeaderSet, MacAddr, Opcode, Path as PacketPath, Psn,
    Qpn, Reth,
};

pub(crate) const SOURCE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const DESTINATION_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Returns the path of the frames: between two addresses for tests.
pub(crate) fn path() -> PacketPath {
    PacketPath {
        encapsulation: Encapsulation::RoceV2,
        source: [198, 18, 7, 1].into(),
        destination: [198, 18, 7, 2].into(),
        source_port: 49_513,
        traffic_class: 0x02,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

/// Returns a frame to queue pair 0x12, written with the packet crate.
pub(crate) fn frame(opcode: Opcode, psn: Psn, payload: &[u8]) -> Vec<u8> {
    frame_on(&path(), opcode, psn, payload)
}

/// Returns such a frame on another path.
pub(crate) fn frame_on(path: &PacketPath, opcode: Opcode, psn: Psn, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 4200];
    let bth = Bth::new(opcode, Qpn::new(0x12), psn);
    let mut writer = DatagramWriter::new(&mut datagram, &bth).unwrap();
    if opcode.info().unwrap().headers.contains(HeaderSet::RETH) {
        let dma_len = payload.len() as u32;
        writer.reth(&Reth { va: 0x7f00_dead_b000, rkey: 0x1234, dma_len }).unwrap();
    }
    writer.payload_slot(payload.len()).unwrap().copy_from_slice(payload);
    let len = writer.len_with_icrc();
    let headers = FrameHeaders::new(path, 0, DESTINATION_MAC, SOURCE_MAC, len).unwrap();
    writer.finish(&headers.envelope()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(&datagram[..len]);
    frame
}

/// Writes frames to a capture file, one per millisecond.
pub(crate) fn write_capture(file: &Path, frames: &[Vec<u8>]) {
    let mut writer = PcapWriter::create(file, &["test0"]).unwrap();
    for (index, frame) in (0..).zip(frames) {
        let time_ns = 1_700_000_000_000_000_000 + index * 1_000_000;
        writer.write(0, time_ns, Direction::Unknown, None, frame).unwrap();
    }
    writer.flush().unwrap();
}

/// Writes the first blocks of a pcapng file with one Ethernet interface.
pub(crate) fn pcapng_header(out: &mut impl Write) -> io::Result<()> {
    let section: [u32; 7] = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
    let interface: [u32; 5] = [1, 20, 1, 0, 20];
    for word in section.into_iter().chain(interface) {
        out.write_all(&word.to_le_bytes())?;
    }
    Ok(())
}

/// Writes a packet of a pcapng file, with a comment of less than 64 KiB.
pub(crate) fn pcapng_packet(out: &mut impl Write, frame: &[u8], comment: Option<&str>) -> io::Result<()> {
    let mut body = Vec::new();
    for word in [0, 0, 0, frame.len() as u32, frame.len() as u32] {
        body.extend_from_slice(&u32::to_le_bytes(word));
    }
    body.extend_from_slice(frame);
    body.resize(body.len().next_multiple_of(4), 0);
    if let Some(comment) = comment {
        let len = u16::try_from(comment.len()).expect("an option has a length of 16 bits");
        body.extend_from_slice(&1_u16.to_le_bytes());
        body.extend_from_slice(&len.to_le_bytes());
        body.extend_from_slice(comment.as_bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend_from_slice(&[0; 4]);
    }
    let len = body.len() as u32 + 12;
    out.write_all(&6_u32.to_le_bytes())?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(&body)?;
    out.write_all(&len.to_le_bytes())
}
