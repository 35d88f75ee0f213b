//! WRITEs of two engines in one thread, with many queue pairs, memory regions or completion queues. Each
//! batch uses other objects than the batch before, far apart in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roce_packet::{PathMtu, Qpn};
use roce_sim::direct::Direct;
use roce_sim::pair::{Settings, Side};
use roce_transport::{
    Access, CqId, EngineConfig, Memory, QpCapabilities, QpType, RKey, SendOp, SendWr, Wc, WcStatus,
    WordMemory,
};
use serde_json::{Value, json};

use super::median::median;
use crate::outcome::Outcome;
use crate::usage::{processor_time, resident_bytes};

/// Messages that are posted before anything is sent.
const BATCH: usize = 64;
/// Bytes of a message.
const SIZE: usize = 64;
const BATCHES: usize = 600;
/// Distance between two objects of a batch. The number is prime, so that a batch uses different objects.
const STEP: usize = 7_919;
/// First address of the regions of a curve, and the distance between two.
const REGIONS_AT: u64 = 0x50_0000_0000;
const REGION_STEP: u64 = 4096;
/// Below this number, the memory and the time of single objects cannot be seen.
const LEAST_OBJECTS: usize = 1_000;

/// The kind of objects whose number grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One completion queue, one region.
    QueuePairs,
    /// One queue pair.
    Regions,
    /// Each with a queue pair.
    CompletionQueues,
}

/// The objects of both sides. Lists have one or many elements.
struct World {
    direct: Direct,
    pairs: Vec<Qpn>,
    cqs: Vec<CqId>,
    targets: Vec<Target>,
    /// Messages that a region has room for: a batch, or one if there are enough regions.
    slots: usize,
}

/// A memory region of the far side.
struct Target {
    memory: Arc<WordMemory>,
    addr: u64,
    rkey: RKey,
}

impl World {
    fn new(kind: Kind, count: usize) -> Outcome<Self> {
        let most = 1 << 20;
        let config =
            EngineConfig { max_qp: most, max_cq: most, max_mr: most, ..EngineConfig::from_number(5) };
        let mut direct = Direct::new(&config, BATCH * SIZE);
        let share = BATCH.div_ceil(count).max(4);
        let of_pairs = if kind == Kind::Regions { BATCH } else { share };
        let capabilities = QpCapabilities {
            max_send_wr: of_pairs,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let settings = Settings { mtu: PathMtu::Mtu1024, capabilities, ..Settings::default() };
        let (mut pairs, mut cqs, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..if kind == Kind::Regions { 1 } else { count } {
            if kind == Kind::CompletionQueues {
                for side in [Side::A, Side::B] {
                    let host = direct.host_mut(side);
                    host.cq = host.engine.create_cq(share)?;
                }
            }
            pairs.push(direct.connect(QpType::Rc, &settings)[0]);
            if kind == Kind::CompletionQueues || cqs.is_empty() {
                cqs.push(direct.host(Side::A).cq);
            }
        }
        let regions = if kind == Kind::Regions { count } else { 1 };
        let slots = if regions < BATCH { BATCH } else { 1 };
        for index in 0..regions as u64 {
            let memory = Arc::new(WordMemory::new(slots * SIZE));
            let host = direct.host_mut(Side::B);
            let (pd, addr) = (host.pd, REGIONS_AT + index * REGION_STEP);
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let region = host.engine.register(pd, addr, memory.clone(), access)?;
            targets.push(Target { memory, addr: region.addr, rkey: region.rkey });
        }
        Ok(Self { direct, pairs, cqs, targets, slots })
    }

    /// Sends one batch, whose first object is `first` and whose first message is `number`. Returns the time
    /// until all messages have completed, without the checks.
    fn batch(&mut self, first: usize, number: u64) -> Outcome<Duration> {
        let picks: [usize; BATCH] = std::array::from_fn(|slot| first.wrapping_add(slot * STEP));
        for slot in 0..BATCH {
            let content = message(number + slot as u64);
            self.direct.write(Side::A, slot * SIZE, &content);
        }
        let begun = Instant::now();
        for (slot, pick) in picks.iter().enumerate() {
            let Target { addr, rkey, .. } = self.targets[pick % self.targets.len()];
            let op = SendOp::Write { remote_addr: addr + self.offset(slot) as u64, rkey };
            let element = [self.direct.host(Side::A).element(slot * SIZE, SIZE)];
            let (now, qpn) = (self.direct.now, self.pairs[pick % self.pairs.len()]);
            let wr = SendWr::new(number + slot as u64, op, &element);
            self.direct.host_mut(Side::A).engine.post_send(now, qpn, &wr)?;
        }
        self.direct.drive();
        let (mut completions, mut done) = ([Wc::default(); BATCH], 0);
        for pick in picks {
            if done < BATCH {
                let cq = self.cqs[pick % self.cqs.len()];
                done += self.direct.host_mut(Side::A).engine.poll_cq(cq, &mut completions[done..])?;
            }
        }
        let took = begun.elapsed();
        self.check(&picks, number, &mut completions[..done])?;
        // Time advances, so that deadlines are handled as well.
        self.direct.now = self.direct.now.plus_nanos(10_000);
        let now = self.direct.now;
        for side in [Side::A, Side::B] {
            self.direct.host_mut(side).engine.handle_timeout(now, Duration::ZERO);
        }
        Ok(took)
    }

    /// Returns the offset of a message in its region.
    fn offset(&self, slot: usize) -> usize {
        slot % self.slots * SIZE
    }

    /// Checks that every message has completed once, on its queue pair, and has arrived in its region.
    fn check(&self, picks: &[usize; BATCH], number: u64, completions: &mut [Wc]) -> Outcome<()> {
        completions.sort_unstable_by_key(|wc| wc.wr_id);
        if completions.len() != BATCH {
            return Err(format!("{} of {BATCH} messages have completed", completions.len()).into());
        }
        for (slot, (wc, pick)) in completions.iter().zip(picks).enumerate() {
            let expected = number + slot as u64;
            let qpn = self.pairs[pick % self.pairs.len()];
            if (wc.wr_id, wc.status, wc.qpn) != (expected, WcStatus::Success, qpn) {
                return Err(format!("message {expected} did not complete: {wc:?}").into());
            }
            let mut found = [0; SIZE];
            self.targets[pick % self.targets.len()].memory.read(self.offset(slot), &mut found)?;
            if found != message(expected) {
                return Err(format!("message {expected} arrived damaged").into());
            }
        }
        Ok(())
    }
}

fn message(number: u64) -> [u8; SIZE] {
    let mut bytes = [number as u8 ^ 0x5a; SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Measures the time of a WRITE with `count` objects, and of the creation of an object.
pub(crate) fn operations(kind: Kind, count: usize) -> Outcome<Value> {
    if count.is_multiple_of(STEP) {
        return Err(format!("a batch of multiples of {STEP} objects would use one object only").into());
    }
    let (memory, begun) = (resident_bytes()?, processor_time());
    let mut world = World::new(kind, count)?;
    let created = (processor_time() - begun).as_secs_f64();
    let grown = resident_bytes()?.saturating_sub(memory);
    let mut times = Vec::with_capacity(BATCHES);
    for batch in 0..BATCHES {
        let first = batch * (BATCH * STEP + 1);
        times.push(world.batch(first, (batch * BATCH) as u64)?.as_secs_f64());
    }
    let counters = world.direct.host(Side::A).engine.counters();
    if counters.retransmitted_packets + counters.dropped() != 0 {
        return Err("packets were sent again or dropped".into());
    }
    // Both sides have queue pairs and completion queues; only one has the regions.
    let created_objects = if kind == Kind::Regions { count } else { 2 * count } as f64;
    let of_object = |value: f64| (count >= LEAST_OBJECTS).then_some(value / created_objects);
    Ok(json!({
        "x": count, "seconds": median(&mut times) / BATCH as f64, "messages": BATCHES * BATCH,
        "creation_seconds": of_object(created), "object_bytes": of_object(grown as f64),
    }))
}
