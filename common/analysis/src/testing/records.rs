//! Records, and the captures of the repository.

use std::path::Path;

use roce_capture::CaptureReader;
use roce_packet::outer::Link;
use roce_packet::{Encapsulation, Msn, Opcode, Psn, Qpn, Syndrome};

use crate::record::{Bits, Extension, Place, Record, StreamId, StreamKey};
use crate::stream::Streams;
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
                is_dropped: false,
                bytes: packet.bytes,
            });
        }
    }
    collector.analyze()
}

/// Records of several streams between two hosts.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) streams: Streams,
    pub(crate) records: Vec<Record>,
    pub(crate) now_ns: u64,
}

impl Traffic {
    /// Adds a packet from host 1 to host 2, or back, a microsecond after the last one.
    pub(crate) fn add(&mut self, is_back: bool, qpn: u32, opcode: Opcode, psn: u32) -> &mut Record {
        self.now_ns += 1000;
        let hosts = [[198, 18, 0, 1], [198, 18, 0, 2]];
        let [source, destination] = if is_back { [hosts[1], hosts[0]] } else { hosts };
        let key = StreamKey {
            source: source.into(),
            destination: destination.into(),
            encapsulation: Encapsulation::RoceV2,
            qpn: Qpn::new(qpn),
        };
        let is_answer = opcode == Opcode::RC_ACKNOWLEDGE;
        let answer = Extension::Aeth(Syndrome::ACK_UNLIMITED, Msn::new(0));
        let record = Record {
            place: Place { capture: 0, number: self.records.len() as u64 + 1 },
            interface: 0,
            time_ns: self.now_ns,
            stream: StreamId(0),
            opcode,
            psn: Psn::new(psn),
            bits: Bits::GOOD_ICRC | Bits::MIG_REQ,
            version: 0,
            pad: 0,
            p_key: 0xffff,
            traffic_class: 0,
            pcp: None,
            source_port: 0xc000,
            identification: 0,
            payload_len: if is_answer { 0 } else { 64 },
            wire_len: 122,
            extension: if is_answer { answer } else { Extension::None },
            icrc: qpn << 16 ^ psn,
            payload_crc: 0,
            problem: None,
        };
        let stream = self.streams.add(key, &record);
        self.records.push(Record { stream, ..record });
        self.records.last_mut().expect("it was added")
    }

    /// Adds a request to a queue pair of host 2.
    pub(crate) fn request(&mut self, qpn: u32, psn: u32) -> &mut Record {
        self.add(false, qpn, Opcode::RC_SEND_ONLY, psn)
    }

    /// Adds an acknowledgement to a queue pair of host 1.
    pub(crate) fn ack(&mut self, qpn: u32, psn: u32) -> &mut Record {
        self.add(true, qpn, Opcode::RC_ACKNOWLEDGE, psn)
    }
}
