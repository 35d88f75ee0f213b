//! What a bridge counts.

use std::collections::BTreeMap;

use roce_fault::Sightings;
use roce_packet::{Bth, Datagram, Direction, Syndrome};
use serde::Serialize;

/// One direction. Packets are RoCE packets; one that is for example delayed and marked counts for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets that arrived, and the bytes of their frames.
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were given to the other device, and the bytes of their frames.
    pub forwarded_packets: u64,
    pub forwarded_bytes: u64,
    /// Frames that are not RoCE, and those that are broken; both pass as they are.
    pub other_frames: u64,
    pub malformed: u64,
    /// By rules and by chance.
    pub fault_dropped: u64,
    pub fault_marked: u64,
    pub corrupted: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub delayed: u64,
    pub cleared: u64,
    /// To be marked, but not ECN capable (or, by rules, marked already).
    pub not_markable: u64,
    /// By the queue.
    pub queue_dropped: u64,
    pub queue_marked: u64,
    /// In the queue now, and the most there were.
    pub queue_bytes: u64,
    pub queue_most_bytes: u64,
    /// Frames lost because the bridge held too many, or the device would not take them.
    pub no_room: u64,
    /// Pause frames to the sender, and those that came from the receiver.
    pub pauses_sent: u64,
    pub pauses_received: u64,
    /// Seen on the way, before anything was done to them.
    pub cnps: u64,
    pub naks: u64,
    pub rnr_naks: u64,
    pub retransmissions: u64,
}

impl Counts {
    /// All that were marked.
    pub const fn marked(&self) -> u64 {
        self.fault_marked + self.queue_marked
    }

    /// All that were lost.
    pub const fn dropped(&self) -> u64 {
        self.fault_dropped + self.queue_dropped + self.no_room
    }
}

/// What went to one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuePairCounts {
    /// Its place in the order of appearance in this direction, from 1.
    pub relative_qp: u32,
    /// Its number.
    pub qpn: u32,
    pub packets: u64,
    /// Bytes of payload in them.
    pub payload_bytes: u64,
    /// Requests whose sequence number was seen before.
    pub retransmissions: u64,
    pub cnps: u64,
    pub naks: u64,
    pub rnr_naks: u64,
}

/// Counts by queue pair.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sightings: Sightings,
    pub(super) queue_pairs: BTreeMap<u32, QueuePairCounts>,
}

impl Watch {
    /// Takes in a packet, BTH to ICRC.
    pub(super) fn observe(&mut self, datagram: &[u8], counts: &mut Counts) {
        let Ok((bth, _)) = Bth::parse(datagram) else { return };
        let sighting = self.sightings.observe(&bth);
        let direction = bth.opcode.info().map(|info| info.direction);
        let parsed = Datagram::parse(datagram, &[]).ok();
        let syndrome = parsed.as_ref().and_then(|it| it.aeth()).map(|it| it.syndrome);
        let is_cnp = u64::from(direction == Some(Direction::Cnp));
        let is_nak = u64::from(matches!(syndrome, Some(Syndrome::Nak(_))));
        let is_rnr = u64::from(matches!(syndrome, Some(Syndrome::RnrNak { .. })));
        let is_again = u64::from(sighting.pass > 1 && direction == Some(Direction::Request));
        counts.cnps += is_cnp;
        counts.naks += is_nak;
        counts.rnr_naks += is_rnr;
        counts.retransmissions += is_again;
        let Some(relative_qp) = sighting.relative_qp else { return };
        let one = self.queue_pairs.entry(relative_qp).or_default();
        one.relative_qp = relative_qp;
        one.qpn = bth.dest_qp.get();
        one.packets += 1;
        one.payload_bytes += parsed.map_or(0, |it| it.payload_len() as u64);
        one.cnps += is_cnp;
        one.naks += is_nak;
        one.rnr_naks += is_rnr;
        one.retransmissions += is_again;
    }
}
