//! The counters of a bridge.

use std::collections::BTreeMap;

use roce_fault::Sightings;
use roce_packet::{Bth, Datagram, Direction, Syndrome};
use serde::Serialize;

/// The counters of one direction. Packets are RoCE packets; a packet that is delayed and marked counts for
/// both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets that arrived.
    pub packets: u64,
    /// Bytes of the frames of these packets.
    pub bytes: u64,
    /// Packets handed to the other device.
    pub forwarded_packets: u64,
    /// Bytes of the frames of these packets.
    pub forwarded_bytes: u64,
    /// Bytes of these packets on a cable, with preamble, frame check sequence and gap.
    pub forwarded_wire_bytes: u64,
    /// Frames that are not RoCE; they pass unchanged.
    pub other_frames: u64,
    /// Malformed frames; they pass unchanged.
    pub malformed: u64,
    /// Packets that rules or chance dropped.
    pub fault_dropped: u64,
    /// Packets that rules or chance marked CE.
    pub fault_marked: u64,
    /// Packets with bits that rules or chance flipped.
    pub corrupted: u64,
    /// Packets that rules or chance duplicated.
    pub duplicated: u64,
    /// Packets that rules or chance let later packets overtake.
    pub reordered: u64,
    /// Packets that rules or chance delayed.
    pub delayed: u64,
    /// Packets whose DSCP or ECN bits rules or chance cleared.
    pub cleared: u64,
    /// Packets chosen for a mark that are not ECN capable or, for marks by rules, are marked already.
    pub not_markable: u64,
    /// Packets that the queue dropped.
    pub queue_dropped: u64,
    /// Packets that the queue marked CE.
    pub queue_marked: u64,
    /// Packets with in-band telemetry to which the queue added a hop.
    pub telemetry_stamped: u64,
    /// Bytes in the queue now.
    pub queue_bytes: u64,
    /// The maximum number of bytes in the queue so far.
    pub queue_most_bytes: u64,
    /// Frames dropped because the bridge held too many, or because the device did not accept them.
    pub no_room: u64,
    /// Pause frames to the sender.
    pub pauses_sent: u64,
    /// Pause frames from the receiver.
    pub pauses_received: u64,
    /// Congestion notification packets that arrived.
    pub cnps: u64,
    /// NAKs that arrived, excluding RNR NAKs.
    pub naks: u64,
    /// RNR NAKs that arrived.
    pub rnr_naks: u64,
    /// Requests that arrived with a repeated PSN.
    pub retransmissions: u64,
}

impl Counts {
    /// Returns the number of all marked packets.
    pub const fn marked(&self) -> u64 {
        self.fault_marked + self.queue_marked
    }

    /// Returns the number of all dropped packets.
    pub const fn dropped(&self) -> u64 {
        self.fault_dropped + self.queue_dropped + self.no_room
    }
}

/// The packets to one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuePairCounts {
    /// Number of the queue pair in order of appearance in this direction, from 1.
    pub relative_qp: u32,
    /// The queue pair number.
    pub qpn: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes of payload in these packets.
    pub payload_bytes: u64,
    /// Requests with a repeated PSN.
    pub retransmissions: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// NAKs, excluding RNR NAKs.
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
}

/// Counters by queue pair.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sightings: Sightings,
    pub(super) queue_pairs: BTreeMap<u32, QueuePairCounts>,
}

impl Watch {
    /// Counts a packet, given from BTH to ICRC.
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
