//! The port of a switch: the simulator's queues by priority in front of a rate, marks, pauses.
//!
//! Time is that of the packets, not of the caller. A packet begins to leave when it has arrived and its
//! predecessor has left, even if the caller notices later. Therefore the rate is exact, however rarely the
//! caller polls.

use roce_fault::random::SplitMix64;
use roce_packet::pause::{MAX_QUANTA, PRIORITIES, pause_duration_ns};
use roce_packet::{Ecn, TelemetryHop, wire_len};
use roce_sim::net::{Class, Egress, Time};
use roce_transport::Instant;

use super::packet::Place;
use super::settings::QueueSettings;
use super::touch::Touch;
use roce_device::framed::pauses::{ASSUMED_BITS_PER_SECOND, Pauses};
use roce_device::whole::Offload;

/// A packet in the bridge.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) offload: Offload,
    pub(super) place: Place,
    pub(super) priority: u8,
    /// The number of the packet in its direction.
    pub(super) number: u64,
    pub(super) touch: Touch,
}

impl Packet {
    /// Returns the bytes of the packet on a cable.
    pub(super) fn wire_bytes(&self) -> u64 {
        wire_len(self.bytes.len()) as u64
    }
}

pub(super) struct Queue {
    settings: QueueSettings,
    seed: u64,
    /// The number of this queue among the ports of a network, for in-band telemetry.
    port: u32,
    /// Packets with their arrival times.
    egress: Egress<(Instant, Packet)>,
    /// The time when the last packet has left, in picoseconds, which would exceed 64 bits after 213 days.
    free_ps: u128,
    /// For each priority whose sender is paused: the time of the next refresh.
    pausing: [Option<Instant>; PRIORITIES],
    /// Half of the longest pause on the link of the sender.
    refresh_ns: u64,
    pub(super) marked: u64,
    pub(super) not_markable: u64,
    /// Packets with in-band telemetry to which a hop was added.
    pub(super) stamped: u64,
    /// Bytes on the cable of all packets that have left.
    sent_bytes: u64,
}

impl Queue {
    /// Creates a queue. `sender_rate` is the rate of the link to the sender in bits per second, if known.
    pub(super) fn new(settings: QueueSettings, seed: u64, sender_rate: Option<u64>) -> Self {
        let rate = sender_rate.filter(|rate| *rate > 0).unwrap_or(ASSUMED_BITS_PER_SECOND);
        Self {
            settings,
            seed,
            // Bridges of one network need different seeds to be distinguished in telemetry.
            port: SplitMix64::new(seed).draw() as u32,
            egress: Egress::default(),
            free_ps: 0,
            pausing: [None; PRIORITIES],
            refresh_ns: pause_duration_ns(MAX_QUANTA, rate) / 2,
            marked: 0,
            not_markable: 0,
            stamped: 0,
            sent_bytes: 0,
        }
    }

    /// Returns the number of bytes in the queue now, and its maximum.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.egress.bytes(), self.egress.most_bytes()]
    }

    /// Queues a packet, or returns it if there is no room.
    pub(super) fn push(&mut self, now: Instant, packet: Packet) -> Option<Packet> {
        let index = usize::from(packet.priority & 7);
        let len = packet.bytes.len() as u32;
        if self.egress.bytes_of(index) + u64::from(len) > self.settings.limit_bytes {
            return Some(packet);
        }
        self.egress.push(index, len, (now, packet));
        None
    }

    /// Returns the next packet that begins to leave up to `now`, and its arrival time at the far end of the
    /// cable.
    pub(super) fn serve(&mut self, now: Instant, pauses: &mut Pauses) -> Option<(Instant, Packet)> {
        let Some(index) = self.egress.next(paused(now, pauses), &[Class::Strict; PRIORITIES]) else {
            // A packet that waits for the end of a pause cannot have left earlier.
            if !self.egress.is_empty() {
                self.free_ps = self.free_ps.max(picoseconds(now));
            }
            return None;
        };
        let (arrived, _) = self.egress.front(index)?;
        let start = self.free_ps.max(picoseconds(*arrived));
        if start > picoseconds(now) {
            return None;
        }
        let (_, mut packet) = self.egress.pop(index)?;
        self.mark(&mut packet, self.egress.bytes_of(index));
        let rate = self.settings.rate;
        if self.settings.telemetry
            && let Some(rate) = rate
        {
            let began = (start / 1000) as u64;
            let hop = TelemetryHop::new(rate.get(), began, self.sent_bytes, self.egress.bytes());
            self.stamped +=
                u64::from(packet.place.stamp(&mut packet.bytes, packet.offload, (hop, self.port)));
        }
        self.sent_bytes += packet.wire_bytes();
        let taken = rate.map_or(Time::ZERO, |rate| Time::to_send(packet.wire_bytes(), rate.get()));
        self.free_ps = start + u128::from(taken.as_ps());
        let there = Instant::from_nanos((self.free_ps / 1000) as u64).plus_nanos(self.settings.delay_ns);
        Some((there, packet))
    }

    fn mark(&mut self, packet: &mut Packet, queued: u64) {
        // The draw depends only on the seed and the number, so a packet has the same draw at any packet rate.
        let number = SplitMix64::new(packet.number).draw();
        let draw = || (SplitMix64::new(self.seed ^ number).draw() >> 32) as u32;
        if !self.settings.marking.marks(queued, draw) {
            return;
        }
        let path = packet.place.path(&packet.bytes);
        match path.ecn() {
            Ecn::Capable0 | Ecn::Capable1 => {
                packet.touch.queue_mark = Some(queued);
                self.marked += 1;
                packet.place.set_traffic_class(&mut packet.bytes, path.traffic_class | 0b11);
            }
            Ecn::NotCapable => self.not_markable += 1,
            Ecn::CongestionExperienced => {}
        }
    }

    /// Returns when [`serve`](Self::serve) may return a packet again, if it returns none now.
    pub(super) fn next(&self, now: Instant, pauses: &mut Pauses) -> Option<Instant> {
        if self.egress.is_empty() {
            return None;
        }
        if self.egress.sendable(paused(now, pauses)) != 0 {
            return Some(Instant::from_nanos(self.free_ps.div_ceil(1000) as u64));
        }
        pauses.next_end()
    }

    /// Returns the pauses that are due to the sender: for each priority the quanta of a pause, or 0 for its
    /// end.
    pub(super) fn poll_pauses(&mut self, now: Instant) -> Option<[Option<u16>; PRIORITIES]> {
        let mut request = [None; PRIORITIES];
        for (index, quanta) in request.iter_mut().enumerate() {
            let Some(pausing) = self.pausing.get_mut(index).filter(|_| self.settings.pfc >> index & 1 == 1)
            else {
                continue;
            };
            let bytes = self.egress.bytes_of(index);
            let is_due = pausing.is_none_or(|again| again <= now);
            if pausing.is_some() && bytes <= self.settings.xon_bytes {
                *pausing = None;
                *quanta = Some(0);
            } else if is_due && (bytes > self.settings.xoff_bytes || pausing.is_some()) {
                *pausing = Some(now.plus_nanos(self.refresh_ns));
                *quanta = Some(MAX_QUANTA);
            }
        }
        request.iter().any(Option::is_some).then_some(request)
    }

    /// Returns the time of the next refresh of a pause.
    pub(super) fn next_refresh(&self) -> Option<Instant> {
        self.pausing.iter().flatten().min().copied()
    }
}

/// Returns the priorities that the receiver has paused, one bit each.
fn paused(now: Instant, pauses: &mut Pauses) -> u8 {
    let is_paused = |priority: &u8| pauses.is_paused(now, *priority);
    (0..PRIORITIES as u8).filter(is_paused).fold(0, |mask, priority| mask | 1 << priority)
}

fn picoseconds(time: Instant) -> u128 {
    u128::from(time.as_nanos()) * 1000
}
