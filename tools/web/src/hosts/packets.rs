//! Every packet that was on the link, as a capture at the senders would contain it.
//!
//! A capture shows what a fault injector of `roce` would record: a copy is a packet of its own, a damaged or
//! marked packet is recorded with its changes, and a delayed one at the end of its delay. A dropped packet is
//! recorded with a comment.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use roce_analysis::summary::operation_name;
use roce_analysis::words::duration;
use roce_analysis::{Analysis, Collector, Packet as Captured};
use roce_capture::{CaptureError, Direction, PcapWriter};
use roce_packet::outer::Link;
use roce_packet::{Datagram, Opcode, Operation, Path, Position, Psn, ROCE_UDP_PORT, Syndrome};
use roce_sim::pair::{OnLink, Side};
use roce_transport::Instant;

use crate::ethernet;

/// The comment on a packet that was dropped.
const DROPPED: &str = "dropped on the link";
/// The action that makes the ICRC wrong.
pub(super) const CORRUPT: &str = "corrupt";

/// A packet that is or was on the link.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) id: u64,
    pub(super) from: Side,
    /// The time at which it left.
    pub(super) sent: Instant,
    /// The time in the capture.
    seen: Instant,
    path: Path,
    identification: u16,
    /// BTH to ICRC.
    bytes: Vec<u8>,
    /// Opcode and PSN when it left.
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    /// Operation and PSN in words, as in a ladder.
    pub(super) label: String,
    /// The action of the user on it.
    pub(super) action: Option<&'static str>,
    pub(super) is_corrupt: bool,
    comment: Option<String>,
}

impl Packet {
    /// Returns the datagram, if its headers are whole.
    pub(super) fn datagram(&self) -> Option<Datagram<'_>> {
        Datagram::parse(&self.bytes, &[]).ok()
    }

    /// Returns the number of the bit that an action flips: the last one in front of the ICRC.
    pub(super) fn last_bit(&self) -> usize {
        (self.bytes.len() * 8).saturating_sub(33)
    }

    /// Returns the packet as an Ethernet frame, from its Ethernet header to its ICRC.
    pub(super) fn frame(&self) -> Vec<u8> {
        let ends = [self.path.destination, self.path.source].map(ethernet::address);
        // Both addresses are IPv4, and no packet is longer than the largest path MTU.
        ethernet::frame(&self.path, self.identification, ends, &self.bytes)
            .unwrap_or_else(|| self.bytes.clone())
    }

    /// Records that the link loses it.
    pub(super) fn drop_it(&mut self) {
        self.action = Some("drop");
        self.comment = Some(DROPPED.to_owned());
    }

    /// Returns whether the link lost it.
    fn is_dropped(&self) -> bool {
        self.comment.as_deref() == Some(DROPPED)
    }

    /// Records that it arrives later by this number of nanoseconds.
    pub(super) fn delay(&mut self, nanos: u64) {
        self.action = Some("delay");
        self.seen = self.seen.plus_nanos(nanos);
        self.comment = Some(format!("delayed on the link by {}", duration(nanos)));
    }

    /// Records that it arrives at `now`.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.action = Some("deliver now");
        self.seen = self.seen.min(now);
    }

    /// Records a change that the link made to it.
    pub(super) fn change(&mut self, action: &'static str, changed: &OnLink<'_>) {
        self.action = Some(action);
        self.is_corrupt |= action == CORRUPT;
        self.path = changed.path;
        self.bytes = changed.bytes.to_vec();
        self.comment = Some(format!("{action}ed on the link"));
    }
}

/// All packets, by their number.
#[derive(Debug, Default)]
pub(super) struct Packets(Vec<Packet>);

impl Packets {
    /// Records a packet that has left.
    pub(super) fn record(&mut self, packet: &OnLink<'_>) {
        let datagram = Datagram::parse(packet.bytes, &[]).ok();
        let bth = datagram.as_ref().map(|datagram| *datagram.bth());
        self.0.push(Packet {
            id: packet.number,
            from: packet.from,
            sent: packet.sent,
            seen: packet.sent,
            path: packet.path,
            identification: packet.identification,
            bytes: packet.bytes.to_vec(),
            opcode: bth.map_or(Opcode(0), |bth| bth.opcode),
            psn: bth.map_or(Psn::new(0), |bth| bth.psn),
            label: datagram.as_ref().map(label).unwrap_or_default(),
            action: None,
            is_corrupt: false,
            comment: None,
        });
    }

    /// Records the copy of a packet, which follows it by this number of nanoseconds.
    pub(super) fn copy(&mut self, id: u64, copy: u64, after_ns: u64) {
        let Some(packet) = self.get(id) else { return };
        let seen = packet.seen.plus_nanos(after_ns);
        let comment = Some(format!("a copy of packet {id}, made on the link"));
        let packet = Packet { id: copy, seen, action: Some("duplicate"), comment, ..packet.clone() };
        self.0.push(packet);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: u64) -> Option<&Packet> {
        let index = self.0.binary_search_by_key(&id, |packet| packet.id).ok()?;
        self.0.get(index)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Packet> {
        let index = self.0.binary_search_by_key(&id, |packet| packet.id).ok()?;
        self.0.get_mut(index)
    }

    /// Returns the packets in the order of the capture.
    fn captured(&self) -> Vec<&Packet> {
        let mut packets: Vec<&Packet> = self.0.iter().collect();
        packets.sort_by_key(|packet| (packet.seen, packet.id));
        packets
    }

    /// Returns what `roce` finds in the capture.
    pub(super) fn analyze(&self) -> Analysis {
        let mut collector = Collector::new(ROCE_UDP_PORT).with_captures(1);
        for (number, packet) in (1..).zip(self.captured()) {
            let frame = packet.frame();
            collector.add(&Captured {
                capture: 0,
                interface: 0,
                number,
                time_ns: Some(packet.seen.as_nanos()),
                link: Link::Ethernet,
                wire_len: frame.len(),
                is_dropped: packet.is_dropped(),
                bytes: &frame,
            });
        }
        collector.analyze()
    }

    /// Returns the capture as a pcapng file.
    pub(super) fn pcap(&self) -> Result<Vec<u8>, CaptureError> {
        let buffer = Buffer::default();
        let mut writer = PcapWriter::new(buffer.clone(), "the capture", &["link"])?;
        for packet in self.captured() {
            let direction = match packet.from {
                Side::A => Direction::Outbound,
                Side::B => Direction::Inbound,
            };
            let time_ns = packet.seen.as_nanos();
            writer.write(0, time_ns, direction, packet.comment.as_deref(), &packet.frame())?;
        }
        writer.flush()?;
        Ok(buffer.take())
    }
}

/// Bytes that a [`PcapWriter`] writes.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the operation and the PSN of a packet, in the words of a ladder.
fn label(datagram: &Datagram<'_>) -> String {
    let (info, psn) = (datagram.info(), datagram.bth().psn.get());
    match datagram.aeth().map(|aeth| aeth.syndrome) {
        Some(Syndrome::RnrNak { timer }) => {
            return format!("RNR NAK {psn}, wait {}", duration(timer.delay_ns()));
        }
        Some(Syndrome::Nak(code)) => return format!("NAK {psn}, {code}"),
        Some(Syndrome::Ack { .. } | Syndrome::Reserved(_)) | None => {}
    }
    let name = match info.operation {
        Operation::Cnp => return "CNP".to_owned(),
        Operation::ReadResponse => "READ data",
        other => operation_name(other),
    };
    let position = match info.position {
        Position::First => " first",
        Position::Middle => " middle",
        Position::Last => " last",
        Position::Only => "",
    };
    let immediate = if info.has_immediate() { " imm" } else { "" };
    format!("{name}{position}{immediate} {psn}")
}
