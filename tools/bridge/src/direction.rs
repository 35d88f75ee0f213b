//! The processing of the frames from one side.

use std::collections::VecDeque;

use roce_fault::{BitFlips, Delivery, FaultInjector, Verdict};
use roce_packet::pause::PRIORITIES;
use roce_transport::Instant;

use super::counts::{Counts, Watch};
use super::packet::{self, NoPlace, Place};
use super::queue::{Packet, Queue};
use super::settings::DirectionSettings;
use super::touch::{Loss, Touch};
use roce_device::framed::pauses::Pauses;
use roce_device::whole::Offload;
use roce_fault::Held;

/// A frame that leaves.
#[derive(Clone, Debug)]
pub struct Leaving {
    pub bytes: Vec<u8>,
    pub offload: Offload,
    /// The changes that were made to the frame, if it is a RoCE packet.
    pub touch: Option<Touch>,
}

/// The fields of a packet besides its bytes.
#[derive(Clone, Copy)]
struct Meta {
    offload: Offload,
    place: Place,
    number: u64,
    touch: Touch,
}

pub(super) struct Direction {
    injector: FaultInjector,
    watch: Watch,
    held: Held<Meta>,
    /// Whether packets may contain in-band telemetry.
    knows_telemetry: bool,
    queue: Queue,
    /// Pauses that the receiver requested.
    pub(super) pauses: Pauses,
    /// Whether the device towards the receiver currently accepts no frames.
    pub(super) receiver_is_full: bool,
    /// Packets on the cable, with their arrival times.
    travelling: VecDeque<(Instant, Packet)>,
    /// Frames that pass unchanged, with their priority.
    passing: VecDeque<(u8, Leaving)>,
    /// Dropped packets, if they are captured.
    lost: Option<VecDeque<Leaving>>,
    pub(super) counts: Counts,
}

impl Direction {
    /// Creates a direction. `rates` are those of the links to the sender and to the receiver, if known.
    pub(super) fn new(settings: &DirectionSettings, seed: u64, rates: [Option<u64>; 2]) -> Self {
        Self {
            injector: FaultInjector::new(settings.faults.clone(), seed),
            watch: Watch::default(),
            held: Held::new(),
            knows_telemetry: settings.queue.telemetry,
            queue: Queue::new(settings.queue.clone(), seed, rates[0]),
            pauses: Pauses::new(rates[1]),
            receiver_is_full: false,
            travelling: VecDeque::new(),
            passing: VecDeque::new(),
            lost: None,
            counts: Counts::default(),
        }
    }

    /// Keeps dropped packets for [`poll_lost`](Self::poll_lost).
    pub(super) fn keep_lost(&mut self) {
        self.lost = Some(VecDeque::new());
    }

    pub(super) fn poll_lost(&mut self) -> Option<Leaving> {
        self.lost.as_mut()?.pop_front()
    }

    pub(super) const fn injector(&self) -> &FaultInjector {
        &self.injector
    }

    pub(super) const fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Handles a frame with its VLAN tag in place.
    pub(super) fn handle_frame(&mut self, now: Instant, bytes: &[u8], offload: Offload) {
        self.advance(now);
        // Frames that are joined, but not as datagrams, are not RoCE.
        match Place::find(bytes) {
            Ok(place)
                if !offload.is_joined() || (offload.udp_segment_len().is_some() && place.is_plain()) =>
            {
                packet::split(bytes, offload, &place, |bytes, offload| {
                    self.handle_packet(now, bytes, offload);
                });
            }
            Err(NoPlace::Malformed) => {
                self.counts.malformed += 1;
                self.pass(bytes, offload);
            }
            _ => self.pass(bytes, offload),
        }
        self.advance(now);
    }

    fn pass(&mut self, bytes: &[u8], offload: Offload) {
        self.counts.other_frames += 1;
        if self.passing.len() < MAX_PASSING {
            let leaving = Leaving { bytes: bytes.to_vec(), offload, touch: None };
            self.passing.push_back((packet::priority(bytes), leaving));
        } else {
            self.counts.no_room += 1;
        }
    }

    fn handle_packet(&mut self, now: Instant, bytes: &[u8], offload: Offload) {
        let Ok(place) = Place::find(bytes) else { return self.pass(bytes, offload) };
        self.counts.packets += 1;
        self.counts.bytes += bytes.len() as u64;
        let datagram = place.datagram(bytes);
        // Telemetry behind the datagram is not payload.
        let bare = if self.knows_telemetry { place.bare_datagram(bytes).0 } else { datagram };
        self.watch.observe(bare, &mut self.counts);
        let path = place.path(bytes);
        let verdict = self.injector.inject(now, path.ecn(), datagram);
        let mut touch = Touch { rule: self.injector.decided_by(), ..Touch::default() };
        let mut bytes = bytes.to_vec();
        let number = self.counts.packets;
        let Verdict::Deliver(delivery) = verdict else {
            touch.loss = Some(Loss::Fault);
            return self.lose(bytes, offload, touch);
        };
        if delivery != Delivery::UNTOUCHED {
            touch.delivery = Some(delivery);
            let class = delivery.path(path).traffic_class;
            if class != path.traffic_class {
                place.set_traffic_class(&mut bytes, class);
            }
            place.flip(&mut bytes, offload, &delivery.flips);
        }
        let meta = Meta { offload, place, number, touch };
        let copies = if delivery.duplicate { 2 } else { 1 };
        let waits = delivery.delay_ns > 0 || delivery.reorder.is_some();
        // Only the last copy is not cloned.
        for bytes in std::iter::repeat_n(bytes, copies) {
            if !waits {
                self.enqueue(now, meta, bytes);
                self.held.overtake();
            } else if !self.held.hold(
                now,
                &Delivery { flips: BitFlips::NONE, ..delivery },
                meta,
                [&bytes, &[]],
            ) {
                touch.loss = Some(Loss::Held);
                self.counts.no_room += 1;
                self.lose(bytes, offload, touch);
            }
        }
    }

    fn enqueue(&mut self, now: Instant, meta: Meta, bytes: Vec<u8>) {
        let Meta { offload, place, number, touch } = meta;
        let priority = packet::priority(&bytes);
        let packet = Packet { bytes, offload, place, priority, number, touch };
        if let Some(mut packet) = self.queue.push(now, packet) {
            self.counts.queue_dropped += 1;
            packet.touch.loss = Some(Loss::Queue);
            self.lose(packet.bytes, packet.offload, packet.touch);
        }
    }

    fn lose(&mut self, bytes: Vec<u8>, offload: Offload, touch: Touch) {
        if let Some(lost) = &mut self.lost {
            lost.push_back(Leaving { bytes, offload, touch: Some(touch) });
        }
    }

    /// Does the work that is due up to `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        let mut due = Vec::new();
        self.held.release(now, |meta, bytes| {
            due.push((*meta, bytes.to_vec()));
            true
        });
        for (meta, bytes) in due {
            self.enqueue(now, meta, bytes);
        }
        while !self.is_blocked() {
            let Some(served) = self.queue.serve(now, &mut self.pauses) else { break };
            self.travelling.push_back(served);
        }
    }

    /// Returns whether packets must stay in the queue because the cable or the device is full.
    fn is_blocked(&self) -> bool {
        self.receiver_is_full || self.travelling.len() >= MAX_TRAVELLING
    }

    /// Returns the next frame for the other device.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Leaving> {
        if let Some((priority, _)) = self.passing.front()
            && !self.pauses.is_paused(now, *priority)
        {
            return self.passing.pop_front().map(|(_, leaving)| leaving);
        }
        if self.travelling.front()?.0 > now {
            return None;
        }
        let (_, packet) = self.travelling.pop_front()?;
        self.counts.forwarded_packets += 1;
        self.counts.forwarded_bytes += packet.bytes.len() as u64;
        self.counts.forwarded_wire_bytes += packet.wire_bytes();
        Some(Leaving { bytes: packet.bytes, offload: packet.offload, touch: Some(packet.touch) })
    }

    /// Returns the pauses that are due to the sender, by priority.
    pub(super) fn poll_pauses(&mut self, now: Instant) -> Option<[Option<u16>; PRIORITIES]> {
        let request = self.queue.poll_pauses(now);
        self.counts.pauses_sent += u64::from(request.is_some());
        request
    }

    pub(super) fn timeout(&mut self, now: Instant) -> Option<Instant> {
        let own = [self.held.next_due(), self.queue.next_refresh()].into_iter().flatten().min();
        if self.receiver_is_full {
            return own;
        }
        // The query removes a pause that has ended.
        for priority in 0..PRIORITIES as u8 {
            self.pauses.is_paused(now, priority);
        }
        let travelling = self.travelling.front().map(|(there, _)| *there);
        let passing = if self.passing.is_empty() { None } else { self.pauses.next_end().or(Some(now)) };
        let queue = if self.is_blocked() { None } else { self.queue.next(now, &mut self.pauses) };
        [own, travelling, passing, queue].into_iter().flatten().min()
    }

    pub(super) fn counts(&self) -> Counts {
        let faults = self.injector.counters();
        let [queue_bytes, queue_most_bytes] = self.queue.bytes();
        Counts {
            fault_dropped: faults.dropped,
            fault_marked: faults.marked,
            corrupted: faults.corrupted,
            duplicated: faults.duplicated,
            reordered: faults.reordered,
            delayed: faults.delayed,
            cleared: faults.cleared,
            not_markable: faults.not_markable + self.queue.not_markable,
            queue_marked: self.queue.marked,
            telemetry_stamped: self.queue.stamped,
            queue_bytes,
            queue_most_bytes,
            ..self.counts
        }
    }
}

/// Returns whether a frame is a MAC control frame, which stays on its link (IEEE 802.3 annex 31B).
pub(super) fn is_mac_control(bytes: &[u8]) -> bool {
    bytes.get(12..14) == Some(&[0x88, 0x08])
}

/// Maximum number of other frames that wait for a full device.
const MAX_PASSING: usize = 4096;
/// Maximum number of packets on the cable: 10 Gb/s with 1 KiB for 200 ms.
const MAX_TRAVELLING: usize = 1 << 18;
