//! The port of a switch: queues by priority in front of a rate, marks, pauses.
//!
//! Time is that of the packets and not that of whoever calls: a packet begins to leave when the one before it has
//! left and it is there, also if this is noticed later. So the rate is exact, however rarely somebody looks.

use std::collections::VecDeque;

use roce_packet::pause::{MAX_QUANTA, PRIORITIES, pause_duration_ns};
use roce_packet::{Ecn, wire_len};
use roce_transport::Instant;

use super::packet::Place;
use super::settings::{QueueSettings, marks};
use super::touch::Touch;
use roce_device::framed::pauses::{ASSUMED_BITS_PER_SECOND, Pauses};
use roce_device::whole::Offload;

/// A packet on its way.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) offload: Offload,
    pub(super) place: Place,
    pub(super) priority: u8,
    /// Which packet of its direction it is.
    pub(super) number: u64,
    pub(super) touch: Touch,
}

impl Packet {
    /// Bytes that it takes of a cable.
    fn wire_bytes(&self) -> u64 {
        wire_len(self.bytes.len()) as u64
    }
}

pub(super) struct Queue {
    settings: QueueSettings,
    seed: u64,
    waiting: [VecDeque<(Instant, Packet)>; PRIORITIES],
    bytes: [u64; PRIORITIES],
    /// When the last packet has left, in picoseconds.
    free_ps: u128,
    /// Priorities whose sender is paused, and when that must be said again.
    pausing: [Option<Instant>; PRIORITIES],
    /// Half of the longest pause on the link of the sender.
    refresh_ns: u64,
    pub(super) most_bytes: u64,
    pub(super) marked: u64,
    pub(super) not_markable: u64,
}

impl Queue {
    /// `sender_rate` is that of the link to the sender, in bits a second, if it is known.
    pub(super) fn new(settings: QueueSettings, seed: u64, sender_rate: Option<u64>) -> Self {
        let rate = sender_rate.filter(|rate| *rate > 0).unwrap_or(ASSUMED_BITS_PER_SECOND);
        Self {
            settings,
            seed,
            waiting: [const { VecDeque::new() }; PRIORITIES],
            bytes: [0; PRIORITIES],
            free_ps: 0,
            pausing: [None; PRIORITIES],
            refresh_ns: pause_duration_ns(MAX_QUANTA, rate) / 2,
            most_bytes: 0,
            marked: 0,
            not_markable: 0,
        }
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Takes a packet, or gives it back if there is no room.
    pub(super) fn push(&mut self, now: Instant, packet: Packet) -> Option<Packet> {
        let index = usize::from(packet.priority & 7);
        let bytes = self.bytes[index] + packet.bytes.len() as u64;
        if bytes > self.settings.limit_bytes {
            return Some(packet);
        }
        self.bytes[index] = bytes;
        self.waiting[index].push_back((now, packet));
        self.most_bytes = self.most_bytes.max(self.total_bytes());
        None
    }

    /// The next packet that begins to leave up to `now`, and when it arrives at the far end of the cable.
    pub(super) fn serve(&mut self, now: Instant, pauses: &mut Pauses) -> Option<(Instant, Packet)> {
        let may_leave =
            |priority: &usize| !self.waiting[*priority].is_empty() && !pauses.is_paused(now, *priority as u8);
        let Some(index) = (0..PRIORITIES).rev().find(may_leave) else {
            // What waits for the end of a pause cannot have left before.
            if self.total_bytes() > 0 {
                self.free_ps = self.free_ps.max(picoseconds(now));
            }
            return None;
        };
        let (arrived, _) = self.waiting[index].front()?;
        let start = self.free_ps.max(picoseconds(*arrived));
        if start > picoseconds(now) {
            return None;
        }
        let (_, mut packet) = self.waiting[index].pop_front()?;
        self.bytes[index] -= packet.bytes.len() as u64;
        self.mark(&mut packet, self.bytes[index]);
        let taken_ps = match self.settings.rate {
            Some(rate) => u128::from(packet.wire_bytes()) * 8_000_000_000_000 / u128::from(rate.get()),
            None => 0,
        };
        self.free_ps = start + taken_ps;
        let there = Instant::from_nanos((self.free_ps / 1000) as u64).plus_nanos(self.settings.delay_ns);
        Some((there, packet))
    }

    fn mark(&mut self, packet: &mut Packet, queued: u64) {
        let draw = (mixed(self.seed ^ mixed(packet.number)) >> 32) as u32;
        if !marks(self.settings.marking, queued, draw) {
            return;
        }
        let path = packet.place.headers.path();
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

    /// When [`serve`](Self::serve) may have something again, given that it has nothing now.
    pub(super) fn next(&self, now: Instant, pauses: &mut Pauses) -> Option<Instant> {
        if self.total_bytes() == 0 {
            return None;
        }
        let mut times = (0..PRIORITIES).filter(|index| !self.waiting[*index].is_empty());
        if times.any(|index| !pauses.is_paused(now, index as u8)) {
            return Some(Instant::from_nanos(self.free_ps.div_ceil(1000) as u64));
        }
        pauses.next_end()
    }

    /// For each priority what its sender must be told: the quanta of a pause, or 0 for its end.
    pub(super) fn poll_pauses(&mut self, now: Instant) -> Option<[Option<u16>; PRIORITIES]> {
        let mut told = [None; PRIORITIES];
        for (index, told) in told.iter_mut().enumerate() {
            let Some(pausing) = self.pausing.get_mut(index).filter(|_| self.settings.pfc >> index & 1 == 1)
            else {
                continue;
            };
            let bytes = self.bytes[index];
            let is_due = pausing.is_none_or(|again| again <= now);
            if pausing.is_some() && bytes <= self.settings.xon_bytes {
                *pausing = None;
                *told = Some(0);
            } else if is_due && (bytes > self.settings.xoff_bytes || pausing.is_some()) {
                *pausing = Some(now.plus_nanos(self.refresh_ns));
                *told = Some(MAX_QUANTA);
            }
        }
        told.iter().any(Option::is_some).then_some(told)
    }

    /// When a pause must be said again.
    pub(super) fn next_refresh(&self) -> Option<Instant> {
        self.pausing.iter().flatten().min().copied()
    }
}

fn picoseconds(time: Instant) -> u128 {
    u128::from(time.as_nanos()) * 1000
}

/// The finalizer of splitmix64: every bit of the number changes half of the bits of the result.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
