//! Captures for tests of the page.
#![allow(dead_code, reason = "every test file takes a part of it")]

use std::path::Path;

use roce_capture::CaptureReader;
use roce_packet::{
    Aeth, Bth, DatagramWriter, Encapsulation, FrameHeaders, MacAddr, Msn, Opcode, Path as PacketPath, Psn,
    Qpn, Reth, Syndrome,
};

/// Returns the bytes of the packets of a capture file.
pub(crate) fn packets(file: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().bytes.to_vec());
    }
    packets
}

/// Returns a classic capture file of Ethernet frames, one per microsecond.
pub(crate) fn pcap<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut file = Vec::new();
    let words = |file: &mut Vec<u8>, words: &[u32]| {
        words.iter().for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
    };
    // The magic number of times in microseconds, version 2.4, the snap length and the link type.
    words(&mut file, &[0xa1b2_c3d4, 0x0004_0002, 0, 0, 0x4_0000, 1]);
    for (time_us, frame) in (0_u32..).zip(frames) {
        let len = frame.len() as u32;
        words(&mut file, &[1_700_000_000 + time_us / 1_000_000, time_us % 1_000_000, len, len]);
        file.extend_from_slice(frame);
    }
    file
}

/// Number of bytes of each message of [`frame`].
pub(crate) const PAYLOAD: usize = 64;

/// Returns the frame of an RDMA WRITE of one packet, or the one that acknowledges it.
pub(crate) fn frame(is_answer: bool, psn: u32) -> Vec<u8> {
    let (requester, responder) = ([198, 18, 0, 1], [198, 18, 0, 2]);
    let (source, destination, qpn) =
        if is_answer { (responder, requester, 0x11) } else { (requester, responder, 0x22) };
    let path = PacketPath {
        encapsulation: Encapsulation::RoceV2,
        source: source.into(),
        destination: destination.into(),
        source_port: 49_152,
        traffic_class: 0x02,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    let opcode = if is_answer { Opcode::RC_ACKNOWLEDGE } else { Opcode::RC_RDMA_WRITE_ONLY };
    let mut bth = Bth::new(opcode, Qpn::new(qpn), Psn::new(psn));
    bth.ack_req = !is_answer;
    let mut datagram = [0; 128];
    let mut writer = DatagramWriter::new(&mut datagram, &bth).unwrap();
    if is_answer {
        let msn = Msn::new((psn + 1) & 0xff_ffff);
        writer.aeth(&Aeth { syndrome: Syndrome::Ack { credit_code: 31 }, msn }).unwrap();
    } else {
        writer.reth(&Reth { va: 0x1000, rkey: 0x1234, dma_len: PAYLOAD as u32 }).unwrap();
        writer.payload_slot(PAYLOAD).unwrap().fill(psn as u8);
    }
    let len = writer.len_with_icrc();
    let (to, from) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
    let headers = FrameHeaders::new(&path, 0, to, from, len).unwrap();
    writer.finish(&headers.envelope()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(&datagram[..len]);
    frame
}
