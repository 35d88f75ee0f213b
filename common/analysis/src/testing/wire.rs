//! Packets for tests: two hosts, each with one queue pair.

use std::net::Ipv4Addr;

use roce_packet::mad::{CmMad, CmMessage, MAD_LEN};
use roce_packet::outer::Link;
use roce_packet::{
    Aeth, Bth, DatagramWriter, Deth, Ecn, Encapsulation, Envelope, FrameHeaders, MacAddr, Msn, Opcode, Path,
    Psn, Qpn, Reth, Syndrome,
};

use crate::analysis::{Analysis, Collector};
use crate::copies::Tap;
use crate::record::{Extension, Packet};

/// UDP port of RoCE v2.
pub(crate) const PORT: u16 = 4791;

/// A packet to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sketch {
    pub(crate) opcode: Opcode,
    pub(crate) from: u8,
    pub(crate) to: u8,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) ack_req: bool,
    pub(crate) ecn: Ecn,
    pub(crate) dscp: u8,
    pub(crate) payload: usize,
    pub(crate) extension: Extension,
    /// Identification of the IPv4 header.
    pub(crate) identification: u16,
}

impl Sketch {
    /// A packet of host 1 for queue pair 0x22 of host 2, or of host 2 for queue pair 0x11 of host 1.
    pub(crate) fn new(from: u8, opcode: Opcode, psn: u32) -> Self {
        let (to, qpn) = if from == 1 { (2, 0x22) } else { (1, 0x11) };
        Self {
            opcode,
            from,
            to,
            qpn,
            psn,
            ack_req: false,
            ecn: Ecn::Capable0,
            dscp: 26,
            payload: 0,
            extension: Extension::None,
            identification: 0,
        }
    }

    /// With an Identification of the IPv4 header.
    pub(crate) fn numbered(self, identification: u16) -> Self {
        Self { identification, ..self }
    }

    /// A SEND of one packet with 1024 bytes.
    pub(crate) fn send(from: u8, psn: u32) -> Self {
        Self { payload: 1024, ack_req: true, ..Self::new(from, Opcode::RC_SEND_ONLY, psn) }
    }

    pub(crate) fn marked(self) -> Self {
        Self { ecn: Ecn::CongestionExperienced, ..self }
    }

    pub(crate) fn answer(from: u8, psn: u32, syndrome: Syndrome, msn: u32) -> Self {
        let extension = Extension::Aeth(syndrome, Msn::new(msn));
        Self { extension, ..Self::new(from, Opcode::RC_ACKNOWLEDGE, psn) }
    }

    pub(crate) fn ack(from: u8, psn: u32, msn: u32) -> Self {
        Self::answer(from, psn, Syndrome::ACK_UNLIMITED, msn)
    }

    pub(crate) fn read(from: u8, psn: u32, len: u32) -> Self {
        let extension = Extension::Reth(Reth { va: 0x1000, rkey: 7, dma_len: len });
        Self { extension, ack_req: true, ..Self::new(from, Opcode::RC_RDMA_READ_REQUEST, psn) }
    }

    pub(crate) fn cnp(from: u8) -> Self {
        Self { payload: 16, ..Self::new(from, Opcode::CNP, 0) }
    }

    fn path(&self) -> Path {
        let address = |host| Ipv4Addr::new(198, 18, 0, host).into();
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: address(self.from),
            destination: address(self.to),
            source_port: 0xc123,
            traffic_class: self.dscp << 2 | self.ecn.bits(),
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }

    pub(crate) fn frame(&self, content: &[u8]) -> Vec<u8> {
        let path = self.path();
        let mut buffer = vec![0; 8192];
        let mut bth = Bth::new(self.opcode, Qpn::new(self.qpn), Psn::new(self.psn));
        bth.ack_req = self.ack_req;
        let mut writer = DatagramWriter::new(&mut buffer, &bth).unwrap();
        match self.extension {
            Extension::None => {}
            Extension::Reth(reth) => writer.reth(&reth).unwrap(),
            Extension::Aeth(syndrome, msn) => writer.aeth(&Aeth { syndrome, msn }).unwrap(),
            Extension::Deth(deth) => writer.deth(&deth).unwrap(),
            other => panic!("tests do not write {other:?}"),
        }
        match content {
            [] => writer.payload_slot(self.payload).unwrap().fill(self.psn as u8),
            content => writer.payload_slot(content.len()).unwrap().copy_from_slice(content),
        }
        let len = writer.finish(&Envelope::new(&path, self.identification)).unwrap();
        frame_of(&path, self.identification, &buffer[..len])
    }
}

/// Returns the Ethernet frame of a datagram.
pub(crate) fn frame_of(path: &Path, identification: u16, datagram: &[u8]) -> Vec<u8> {
    let [to, from] = [2, 1].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let headers = FrameHeaders::new(path, identification, to, from, datagram.len()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(datagram);
    frame
}

/// Captures of packets.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    packets: Vec<(Tap, Option<u64>, Vec<u8>)>,
    /// Number of captures, if there are more than those with packets.
    captures: u16,
}

/// Returns the first interface of a capture.
const fn first(capture: u16) -> Tap {
    Tap { capture, interface: 0 }
}

impl Wire {
    /// Adds a packet to the first capture at a time in microseconds.
    pub(crate) fn at_us(&mut self, time_us: u64, sketch: Sketch) {
        self.add(0, time_us * 1000, sketch);
    }

    pub(crate) fn add(&mut self, capture: u16, time_ns: u64, sketch: Sketch) {
        self.packets.push((first(capture), Some(time_ns), sketch.frame(&[])));
    }

    /// Adds a packet to an interface of the first capture.
    pub(crate) fn on_interface(&mut self, interface: u16, time_ns: u64, sketch: Sketch) {
        self.packets.push((Tap { capture: 0, interface }, Some(time_ns), sketch.frame(&[])));
    }

    /// Says that there are this many captures, some of them without packets.
    pub(crate) fn of_captures(&mut self, captures: u16) {
        self.captures = captures;
    }

    pub(crate) fn without_time(&mut self, sketch: Sketch) {
        self.packets.push((first(0), None, sketch.frame(&[])));
    }

    /// Adds bytes as they are.
    pub(crate) fn raw(&mut self, capture: u16, time_ns: u64, bytes: Vec<u8>) {
        self.packets.push((first(capture), Some(time_ns), bytes));
    }

    /// Adds a packet with one bit of its payload inverted.
    pub(crate) fn damaged(&mut self, capture: u16, time_ns: u64, sketch: Sketch) {
        let mut frame = sketch.frame(&[]);
        let at = frame.len() - 8;
        frame[at] ^= 1;
        self.raw(capture, time_ns, frame);
    }

    /// Adds a packet to the first capture with one bit of its queue pair number inverted.
    pub(crate) fn with_another_qpn(&mut self, time_us: u64, sketch: Sketch) {
        const QPN: usize = 14 + 20 + 8 + 5;

        let mut frame = sketch.frame(&[]);
        frame[QPN] ^= 0x40;
        self.raw(0, time_us * 1000, frame);
    }

    /// Adds the first fragment of a packet, which lacks the second half.
    pub(crate) fn first_fragment(&mut self, capture: u16, time_ns: u64, sketch: Sketch) {
        const ETHERNET: usize = 14;

        let mut frame = sketch.frame(&[]);
        frame.truncate(ETHERNET + 20 + 512);
        frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&(20_u16 + 512).to_be_bytes());
        // More fragments follow, and DF is clear.
        frame[ETHERNET + 6] = 0x20;
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let words = frame[ETHERNET..ETHERNET + 20].chunks(2);
        let sum: u32 = words.map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        self.raw(capture, time_ns, frame);
    }

    /// Adds a message of connection management to the first capture.
    pub(crate) fn cm(&mut self, time_us: u64, from: u8, transaction_id: u64, message: CmMessage) {
        self.cm_at(0, time_us * 1000, from, transaction_id, message);
    }

    /// Adds a message of connection management. Its PSN follows from the time in milliseconds at its sender,
    /// so a message that is sent again has another one.
    pub(crate) fn cm_at(
        &mut self,
        capture: u16,
        time_ns: u64,
        from: u8,
        transaction_id: u64,
        message: CmMessage,
    ) {
        let mut content = [0; MAD_LEN];
        CmMad::new(transaction_id, message).emit(&mut content);
        let deth = Deth { q_key: roce_packet::mad::GSI_Q_KEY, source_qp: Qpn::GSI };
        let mut sketch = Sketch::new(from, Opcode::UD_SEND_ONLY, 0);
        // Each tap sees a packet within 5 ms.
        sketch.psn = (time_ns / 5_000_000) as u32;
        sketch.qpn = 1;
        sketch.extension = Extension::Deth(deth);
        self.packets.push((first(capture), Some(time_ns), sketch.frame(&content)));
    }

    pub(crate) fn analyze(&self) -> Analysis {
        let mut collector = Collector::new(PORT).with_captures(self.captures);
        let mut numbers = [0; 4];
        for (tap, time_ns, bytes) in &self.packets {
            let number = &mut numbers[usize::from(tap.capture)];
            *number += 1;
            collector.add(&Packet {
                capture: tap.capture,
                interface: tap.interface,
                number: *number,
                time_ns: *time_ns,
                link: Link::Ethernet,
                wire_len: bytes.len(),
                is_dropped: false,
                bytes,
            });
        }
        collector.analyze()
    }
}
