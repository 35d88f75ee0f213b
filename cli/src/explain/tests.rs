use roce_packet::{Bth, DatagramWriter, Encapsulation, FrameHeaders, MacAddr, Opcode, Path, Psn, Qpn, Reth};

use super::*;
use crate::decode::fields::hex;
use crate::decode::walk::{Framed, Icrc};

/// Builds the example with the packet crate.
fn example() -> Vec<u8> {
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        source_port: 49_513,
        traffic_class: 0x02,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    let payload = b"hello, world!";
    let mut datagram = [0; 128];
    let mut bth = Bth::new(Opcode::RC_RDMA_WRITE_ONLY, Qpn::new(0x12), Psn::new(0x5eed));
    bth.ack_req = true;
    let mut writer = DatagramWriter::new(&mut datagram, &bth).unwrap();
    let dma_len = payload.len() as u32;
    writer.reth(&Reth { va: 0x7f00_dead_b000, rkey: 0x1234, dma_len }).unwrap();
    writer.payload_slot(payload.len()).unwrap().copy_from_slice(payload);
    let len = writer.len_with_icrc();
    let (to, from) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
    let headers = FrameHeaders::new(&path, 0, to, from, len).unwrap();
    assert_eq!(writer.finish(&headers.envelope()).unwrap(), len);
    let mut frame = vec![0; headers.len_bytes() + len];
    headers.emit(&mut frame).unwrap();
    frame[headers.len_bytes()..].copy_from_slice(&datagram[..len]);
    frame
}

fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut register = u32::MAX;
    for byte in bytes {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 };
        }
    }
    !register
}

#[test]
fn the_example_equals_the_frame_of_the_packet_crate() {
    let frame = example();
    assert_eq!(EXAMPLE, hex(&frame));
}

#[test]
fn the_crc_of_the_covered_bytes_is_the_icrc() {
    let frame = example();
    for (from, bytes) in [(FirstHeader::Eth, &frame[..]), (FirstHeader::Ip, &frame[14..])] {
        let framed = if from == FirstHeader::Eth { Framed::ethernet(bytes) } else { Framed::ip(bytes) };
        let walk = Walk::new(framed, ROCE_UDP_PORT);
        let explanation = Explanation { bytes, origin: Origin::Digits { from, was_guessed: false }, walk };
        let Some(Icrc::Checked(check, _)) = explanation.icrc() else { panic!("no ICRC") };
        assert!(check.is_good());
        let covered = explanation.covered();
        let input = [0xff; 8].into_iter().chain(covered.into_iter().flat_map(|(_, bytes)| bytes));
        assert_eq!(crc32(input), check.computed);
    }
}
