//! A capture of WRITEs and acknowledgements on several connections, on standard output. Some requests are
//! sent twice, because the first copy has no answer.

use std::io;

use roce_capture::{Direction, PcapWriter};
use roce_packet::{
    Aeth, Bth, DatagramWriter, Encapsulation, FrameHeaders, MacAddr, Msn, Opcode, Path, Psn, Qpn, Reth,
    Syndrome,
};
use serde_json::{Value, json};

use crate::outcome::Outcome;

const CONNECTIONS: u32 = 16;
/// One of this many messages is sent twice.
const RESENT_EVERY: u64 = 500;
const PAYLOAD: usize = 64;
/// Time from one packet to the next, and from a request without an answer to its next copy, in nanoseconds.
const STEP_NS: u64 = 1_000;
const TIMEOUT_NS: u64 = 5_000_000;
const START_NS: u64 = 1_700_000_000_000_000_000;

struct Writer {
    capture: PcapWriter,
    time_ns: u64,
    left: usize,
    identification: u16,
    frame: Vec<u8>,
}

/// A packet of a connection.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Request,
    Answer,
}

impl Writer {
    /// Writes a packet unless the capture has all of its packets. Returns whether it was written.
    fn packet(&mut self, connection: u32, psn: u32, kind: Kind) -> Outcome<bool> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
        self.left = left;
        let side = |end: u8| [198, 18, connection as u8, end].into();
        let (source, destination) =
            if kind == Kind::Request { (side(1), side(2)) } else { (side(2), side(1)) };
        let path = Path {
            encapsulation: Encapsulation::RoceV2,
            source,
            destination,
            source_port: 0xc000 + connection as u16,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        };
        let mut datagram = [0; 128];
        let (opcode, qpn) = match kind {
            Kind::Request => (Opcode::RC_RDMA_WRITE_ONLY, 0x200 + connection),
            Kind::Answer => (Opcode::RC_ACKNOWLEDGE, 0x100 + connection),
        };
        let bth = Bth { ack_req: kind == Kind::Request, ..Bth::new(opcode, Qpn::new(qpn), Psn::new(psn)) };
        let mut writer = DatagramWriter::new(&mut datagram, &bth)?;
        match kind {
            Kind::Request => {
                writer.reth(&Reth { va: 0x7f00_0000_0000, rkey: 0x1234, dma_len: PAYLOAD as u32 })?;
                writer.payload_slot(PAYLOAD)?.fill(psn as u8);
            }
            Kind::Answer => {
                writer.aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(psn + 1) })?;
            }
        }
        let len = writer.len_with_icrc();
        let mac = |end| MacAddr([2, 0, 0, 0, 0, end]);
        let headers = FrameHeaders::new(&path, self.identification, mac(2), mac(1), len)?;
        writer.finish(&headers.envelope())?;
        self.frame.resize(headers.len_bytes(), 0);
        headers.emit(&mut self.frame)?;
        self.frame.extend_from_slice(&datagram[..len]);
        self.capture.write(0, self.time_ns, Direction::Unknown, None, &self.frame)?;
        self.identification = self.identification.wrapping_add(1);
        self.time_ns += STEP_NS;
        Ok(true)
    }
}

/// Writes a capture of `packets` packets. Returns what an analysis must find.
pub(crate) fn write(packets: usize) -> Outcome<Value> {
    let capture = PcapWriter::new(io::stdout(), "standard output", &["scale"])?;
    let mut writer =
        Writer { capture, time_ns: START_NS, left: packets, identification: 0, frame: Vec::new() };
    let (mut messages, mut resent) = (0_u64, 0_u64);
    while writer.left > 0 {
        let connection = (messages % u64::from(CONNECTIONS)) as u32;
        let psn = (messages / u64::from(CONNECTIONS)) as u32 & Psn::MASK;
        writer.packet(connection, psn, Kind::Request)?;
        messages += 1;
        if messages.is_multiple_of(RESENT_EVERY) {
            writer.time_ns += TIMEOUT_NS;
            resent += u64::from(writer.packet(connection, psn, Kind::Request)?);
        }
        writer.packet(connection, psn, Kind::Answer)?;
    }
    writer.capture.flush()?;
    let connections = messages.min(CONNECTIONS.into());
    Ok(json!({"packets": packets, "connections": connections, "messages": messages, "resent": resent}))
}
