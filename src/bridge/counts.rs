//! What a bridge counts.

use std::collections::BTreeMap;

use roce_packet::{Bth, Datagram, Direction, Syndrome};
use roce_sim::fault::Sightings;
use serde::Serialize;

/// One direction. Packets are RoCE packets; one that is for example delayed and marked counts for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Packets that arrived, and the bytes of their frames.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Packets that were given to the other device, and the bytes of their frames.
    pub(crate) forwarded_packets: u64,
    pub(crate) forwarded_bytes: u64,
    /// Frames that are not RoCE, and those that are broken; both pass as they are.
    pub(crate) other_frames: u64,
    pub(crate) malformed: u64,
    /// By rules and by chance.
    pub(crate) fault_dropped: u64,
    pub(crate) fault_marked: u64,
    pub(crate) corrupted: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) delayed: u64,
    pub(crate) cleared: u64,
    /// To be marked, but not ECN capable (or, by rules, marked already).
    pub(crate) not_markable: u64,
    /// By the queue.
    pub(crate) queue_dropped: u64,
    pub(crate) queue_marked: u64,
    /// In the queue now, and the most there were.
    pub(crate) queue_bytes: u64,
    pub(crate) queue_most_bytes: u64,
    /// Frames lost because the bridge held too many, or the device would not take them.
    pub(crate) no_room: u64,
    /// Pause frames to the sender, and those that came from the receiver.
    pub(crate) pauses_sent: u64,
    pub(crate) pauses_received: u64,
    /// Seen on the way, before anything was done to them.
    pub(crate) cnps: u64,
    pub(crate) naks: u64,
    pub(crate) rnr_naks: u64,
    pub(crate) retransmissions: u64,
}

impl Counts {
    /// All that were marked.
    pub(crate) const fn marked(&self) -> u64 {
        self.fault_marked + self.queue_marked
    }

    /// All that were lost.
    pub(crate) const fn dropped(&self) -> u64 {
        self.fault_dropped + self.queue_dropped + self.no_room
    }
}

/// What went to one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct QueuePairCounts {
    /// Its place in the order of appearance in this direction, from 1.
    pub(crate) relative_qp: u32,
    /// Its number.
    pub(crate) qpn: u32,
    pub(crate) packets: u64,
    /// Bytes of payload in them.
    pub(crate) payload_bytes: u64,
    /// Requests whose sequence number was seen before.
    pub(crate) retransmissions: u64,
    pub(crate) cnps: u64,
    pub(crate) naks: u64,
    pub(crate) rnr_naks: u64,
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
