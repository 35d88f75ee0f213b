//! The link between the two engines: faults, delays and the order of arrivals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use roce_packet::{Opcode, Path};
use roce_transport::{Instant, Transmit};

use super::plan::Plan;
use crate::pair::Side;
use roce_fault::random::SplitMix64;
use roce_fault::{Delivery, FaultInjector, Verdict};

/// A packet on the link.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) to: Side,
    pub(super) path: Path,
    pub(super) identification: u16,
    pub(super) bytes: Vec<u8>,
    /// Whether bytes that the ICRC covers are damaged.
    pub(super) damaged: bool,
    /// Whether the packet is reduced to its headers.
    pub(super) trimmed: bool,
}

/// The handling of a sent packet by the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// The text in the ladder.
    pub(super) name: &'static str,
    /// The time at which the fault takes effect, if there is one. For a late packet, the effect is at its
    /// arrival.
    pub(super) disturbs: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Link {
    delay_ns: u64,
    gap_ns: u64,
    injectors: [FaultInjector; 2],
    /// The departure of the last packet in each direction.
    last: [Instant; 2],
    random: SplitMix64,
    trimmed_per_mille: usize,
    trims: SplitMix64,
    /// The maximum delay of a duplicate.
    latest_copy_ns: u64,
    poll_ns: u64,
    /// For each packet: the time of its handling, its arrival, its number and its index.
    arrivals: BinaryHeap<Reverse<(Instant, Instant, u64, usize)>>,
    packets: Vec<Option<InFlight>>,
    free: Vec<usize>,
    spare: Vec<Vec<u8>>,
    sequence: u64,
}

impl Link {
    pub(super) fn new(plan: &Plan) -> Self {
        let [a, b] = &plan.faults;
        Self {
            delay_ns: plan.link_delay_ns,
            gap_ns: plan.gap_ns,
            injectors: [
                FaultInjector::new(a.clone(), plan.seed),
                FaultInjector::new(b.clone(), plan.seed.wrapping_add(0x1234_5678)),
            ],
            last: [Instant::ZERO; 2],
            random: SplitMix64::new(plan.seed ^ 0x5555),
            trimmed_per_mille: plan.trimmed_per_mille.into(),
            trims: SplitMix64::new(plan.seed ^ 0xaaaa),
            latest_copy_ns: plan.timeout_ns(),
            poll_ns: plan.poll_ns,
            arrivals: BinaryHeap::new(),
            packets: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            sequence: 0,
        }
    }

    /// Accepts a packet that `from` sends at `now`, and applies the faults of the plan if `faults` is set.
    pub(super) fn send(
        &mut self,
        now: Instant,
        from: Side,
        transmit: &Transmit,
        bytes: &[u8],
        faults: bool,
    ) -> Fate {
        let leaves = now.max(self.last[from as usize].plus_nanos(self.gap_ns));
        self.last[from as usize] = leaves;
        let arrives = leaves.plus_nanos(self.delay_ns);
        let verdict = if faults {
            self.injectors[from as usize].inject(now, transmit.path.ecn(), bytes)
        } else {
            Verdict::UNTOUCHED
        };
        let Verdict::Deliver(delivery) = verdict else {
            return Fate { name: "lost", disturbs: Some(arrives) };
        };
        self.deliver(arrives, from.other(), (transmit, faults), bytes, &delivery)
    }

    fn deliver(
        &mut self,
        arrives: Instant,
        to: Side,
        (transmit, faults): (&Transmit, bool),
        bytes: &[u8],
        delivery: &Delivery,
    ) -> Fate {
        let behind = delivery.reorder.map_or(0, |reorder| u64::from(reorder.behind) * (self.gap_ns + 20));
        let at = arrives.plus_nanos(delivery.delay_ns + behind);
        let path = delivery.path(transmit.path);
        let mut packet = InFlight {
            to,
            path,
            identification: transmit.identification,
            bytes: self.spare.pop().unwrap_or_default(),
            damaged: false,
            trimmed: false,
        };
        packet.bytes.clear();
        packet.bytes.extend_from_slice(bytes);
        if faults && delivery.flips.is_empty() && self.trims.below(1_000) < self.trimmed_per_mille {
            let headers =
                Opcode(bytes.first().copied().unwrap_or_default()).info().map(|info| info.header_len);
            // Packets that contain only padding and ICRC after the headers are not trimmed.
            if let Some(len) = headers.filter(|len| len + 8 <= bytes.len()) {
                packet.trimmed = true;
                packet.bytes.truncate(len);
            }
        }
        delivery.flips.apply(&mut packet.bytes);
        // Routers can change byte 4 of the BTH, so the ICRC does not cover it.
        packet.damaged = delivery.flips.bits().any(|bit| bit / 8 != 4 && (bit as usize) < 8 * bytes.len());
        let (damaged, trimmed) = (packet.damaged, packet.trimmed);
        let mut latest = at;
        if delivery.duplicate {
            latest = at.plus_nanos(self.random.below(self.latest_copy_ns as usize) as u64);
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&packet.bytes);
            self.launch(latest, InFlight { bytes, ..packet });
        }
        self.launch(at, packet);
        let name = match (damaged, delivery.duplicate, at > arrives) {
            _ if trimmed => "trimmed",
            (true, ..) => "damaged",
            (_, true, _) => "doubled",
            (.., true) => "late",
            _ => "",
        };
        Fate { name, disturbs: (!name.is_empty()).then_some(latest) }
    }

    fn launch(&mut self, at: Instant, packet: InFlight) {
        self.sequence += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.packets.push(None);
            self.packets.len() - 1
        });
        self.packets[place] = Some(packet);
        let seen = Instant::from_nanos(at.as_nanos().next_multiple_of(self.poll_ns));
        self.arrivals.push(Reverse((seen, at, self.sequence, place)));
    }

    /// Returns the time at which the next packet is handled.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.arrivals.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes and returns the next packet that has arrived by `now`.
    pub(super) fn arrived(&mut self, now: Instant) -> Option<InFlight> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse((.., place)) = self.arrivals.pop()?;
        self.free.push(place);
        self.packets[place].take()
    }

    /// Returns the buffer of a packet for reuse.
    pub(super) fn recycle(&mut self, packet: InFlight) {
        self.spare.push(packet.bytes);
    }
}
