//! Writes frames that a RoCE receiver must reject to a capture file for `roce inject`. Each is wrong in one
//! field.
//!
//! Run `cargo run --example frames -- frames.pcapng`, then `roce explain frames.pcapng:2`, then `roce inject
//! frames.pcapng …`. The recipe is in docs/how-to/fuzzing.md.

use std::error::Error;

use roce_capture::{Direction, PcapWriter};
use roce_packet::{
    Bth, DatagramWriter, Encapsulation, FrameHeaders, MacAddr, Opcode, Path, Psn, Qpn, ROCE_UDP_PORT, Reth,
};

/// The parts of an RDMA WRITE that may differ from a correct one.
#[derive(Clone)]
struct Packet {
    bth: Bth,
    reth: Reth,
    payload: Vec<u8>,
}

impl Packet {
    /// Writes the frame. The ICRC is always right, so that a receiver checks the other fields.
    fn frame(&self, path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut datagram = vec![0; 4200];
        let mut writer = DatagramWriter::new(&mut datagram, &self.bth)?;
        writer.reth(&self.reth)?;
        writer.payload_slot(self.payload.len())?.copy_from_slice(&self.payload);
        let len = writer.len_with_icrc();
        let (to, from) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
        let headers = FrameHeaders::new(path, 0, to, from, len)?;
        writer.finish(&headers.envelope())?;
        let mut frame = vec![0; headers.len_bytes()];
        headers.emit(&mut frame)?;
        frame.extend_from_slice(&datagram[..len]);
        Ok(frame)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("give the file to write, such as frames.pcapng")?;
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: [198, 18, 0, 1].into(),
        destination: [198, 18, 0, 2].into(),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    let good = Packet {
        bth: Bth::new(Opcode::RC_RDMA_WRITE_ONLY, Qpn::new(0x12), Psn::new(7)),
        reth: Reth { va: 0x1000, rkey: 0x1234, dma_len: 13 },
        payload: b"hello, world!".to_vec(),
    };
    let mut packets = vec![("what it should look like", good.clone())];
    let mut add = |what, change: &dyn Fn(&mut Packet)| {
        let mut packet = good.clone();
        change(&mut packet);
        packets.push((what, packet));
    };
    add("a reserved opcode", &|packet| packet.bth.opcode = Opcode(0x1f));
    add("a middle packet of no message", &|packet| packet.bth.opcode = Opcode::RC_RDMA_WRITE_MIDDLE);
    add("a queue pair that nobody has", &|packet| packet.bth.dest_qp = Qpn::new(0xff_fffe));
    add("a PSN far ahead", &|packet| packet.bth.psn = Psn::new(0x80_0000));
    add("more announced than sent", &|packet| packet.reth.dma_len = u32::MAX);
    add("an address that wraps around", &|packet| packet.reth.va = u64::MAX);
    add("more payload than any path MTU", &|packet| packet.payload = vec![0; 4100]);

    let mut writer = PcapWriter::create(file.as_ref(), &["frames"])?;
    for (index, (what, packet)) in (0..).zip(&packets) {
        writer.write(0, index * 1_000_000, Direction::Unknown, Some(what), &packet.frame(&path)?)?;
    }
    writer.flush()?;
    println!("{} frames to UDP port {ROCE_UDP_PORT} are in {file}", packets.len());
    Ok(())
}
