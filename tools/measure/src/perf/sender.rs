//! The side that posts requests on all queue pairs.

use std::collections::VecDeque;

use roce_exchange::ToolError;
use roce_transport::{Payload, RKey, SendFlags, SendOp, SendWr, Sge};

use super::buffers::Geometry;
use super::content::Learned;
use super::end::{End, Lane};
use super::verify::Atomics;
use super::{AtomicOp, LONGEST_LIST, Test, Verb};

/// Number of requests that are posted at once.
const BATCH: usize = 16;
/// Bits of a work request number that count messages. The bits above contain the queue pair; the highest bit
/// is [`RECEIVE`].
const NUMBER_BITS: u32 = 48;
/// The bit that is set in the work request numbers of receives.
const RECEIVE: u64 = 1 << 63;

/// The parts of a work request number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId {
    pub(super) qp: usize,
    pub(super) number: u64,
    pub(super) is_receive: bool,
}

impl WorkId {
    pub(super) fn to_wr_id(self) -> u64 {
        let receive = if self.is_receive { RECEIVE } else { 0 };
        receive | (self.qp as u64) << NUMBER_BITS | self.number & ((1 << NUMBER_BITS) - 1)
    }

    pub(super) fn from_wr_id(wr_id: u64) -> Self {
        let qp = (wr_id & !RECEIVE) >> NUMBER_BITS;
        Self { qp: qp as usize, number: wr_id & ((1 << NUMBER_BITS) - 1), is_receive: wr_id & RECEIVE != 0 }
    }
}

/// The progress of one queue pair.
#[derive(Clone, Copy, Debug)]
struct Progress {
    posted: u64,
    /// The number of requests up to the last signaled one.
    visible: u64,
    completed: u64,
    /// The number of messages, if the test has a fixed number.
    limit: Option<u64>,
    /// Whether it is in the queue of queue pairs that may have room.
    is_queued: bool,
}

impl Progress {
    fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.completed >= limit)
    }
}

#[derive(Debug)]
pub(super) struct Sender {
    geometry: Geometry,
    lanes: Vec<Progress>,
    /// Queue pairs that may have room, each once. With this queue, the time of a post does not depend on
    /// their number.
    queue: VecDeque<usize>,
    /// Number of queue pairs whose messages are not all complete.
    open: usize,
    /// Outstanding requests, all queue pairs together, and their limit.
    outstanding: u64,
    most_outstanding: u64,
    /// Maximum number of outstanding requests of each queue pair.
    depth: u64,
    /// The number of requests for each signaled one.
    every: u64,
    /// The number of requests that are posted at once, if it is given.
    list: Option<usize>,
    /// For READs from an original: the known messages of each slot of each queue pair.
    learned: Vec<Learned>,
    atomics: Vec<Atomics>,
}

impl Sender {
    pub(super) fn new(end: &End, geometry: Geometry) -> Self {
        let plan = &end.plan;
        let depth = match plan.test {
            Test::Latency => 1,
            Test::Bandwidth if plan.lands() => end.buffers.landing_slots(geometry.size).min(plan.tx_depth),
            Test::Bandwidth => plan.tx_depth,
        };
        let places = if plan.verb == Verb::Read { plan.num_qp * geometry.slots } else { 0 };
        Self {
            geometry,
            lanes: vec![
                Progress {
                    posted: 0,
                    visible: 0,
                    completed: 0,
                    limit: plan.iterations(),
                    is_queued: true
                };
                plan.num_qp
            ],
            queue: (0..plan.num_qp).collect(),
            open: plan.num_qp,
            outstanding: 0,
            most_outstanding: plan.in_flight.map_or(u64::MAX, |most| most as u64),
            depth: depth as u64,
            every: plan.cq_mod.min(depth) as u64,
            list: plan.post_list.map(|list| list.min(depth)),
            learned: (0..places).map(|_| Learned::new(1)).collect(),
            atomics: (0..plan.num_qp).map(|_| Atomics::new(plan.atomic, geometry.slots)).collect(),
        }
    }

    /// Returns the number of messages sent on each queue pair.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.posted).collect()
    }

    /// Returns the number of messages sent on all queue pairs together.
    pub(super) fn posted(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.posted).sum()
    }

    /// Returns the number of messages completed on all queue pairs together.
    pub(super) fn completed(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.completed).sum()
    }

    /// Returns the number of messages, as far as it is known.
    pub(super) fn expected(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.limit.unwrap_or(lane.posted)).sum()
    }

    pub(super) fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Ends the test after the outstanding messages, and one more if the last request is not signaled.
    pub(super) fn close(&mut self) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.limit = Some(lane.posted + u64::from(lane.visible < lane.posted));
            if !lane.is_done() && !lane.is_queued {
                lane.is_queued = true;
                self.queue.push_back(index);
            }
        }
        self.open = self.lanes.iter().filter(|lane| !lane.is_done()).count();
    }

    /// Posts as many requests as possible. Returns their number.
    pub(super) fn post(&mut self, end: &End) -> Result<u64, ToolError> {
        let mut all = 0;
        while self.outstanding < self.most_outstanding
            && let Some(index) = self.queue.pop_front()
        {
            self.lanes[index].is_queued = false;
            loop {
                let count = match self.list {
                    Some(list) if list > BATCH => self.post_some::<LONGEST_LIST>(end, index)?,
                    _ => self.post_some::<BATCH>(end, index)?,
                };
                all += count;
                self.outstanding += count;
                if count < self.list.unwrap_or(BATCH) as u64 {
                    break;
                }
            }
            // This queue pair may have room of its own, and is the first to continue.
            if self.outstanding >= self.most_outstanding {
                self.lanes[index].is_queued = true;
                self.queue.push_front(index);
            }
        }
        Ok(all)
    }

    /// Posts one list of at most `N` requests, or of the given length.
    fn post_some<const N: usize>(&mut self, end: &End, index: usize) -> Result<u64, ToolError> {
        let (lane, progress) = (&end.lanes[index], self.lanes[index]);
        let free = self.depth.saturating_sub(progress.posted - progress.completed);
        let left = progress.limit.map_or(u64::MAX, |limit| limit.saturating_sub(progress.posted));
        let room = self.list.unwrap_or(N).min(N);
        let allowed = self.most_outstanding - self.outstanding;
        let count = free.min(left).min(allowed).min(room as u64) as usize;
        // A list is posted only if there is room for all of it. After the time is up, only the rest of the
        // list is posted.
        if count == 0 || self.list.is_some() && free < room as u64 {
            return Ok(0);
        }
        let mut elements = [([Sge::default(); 2], 0); N];
        let size = self.geometry.size;
        let is_inline = !end.plan.lands() && size <= end.plan.inline;
        let mut inline = Vec::new();
        for (place, number) in elements[..count].iter_mut().zip(progress.posted..) {
            if is_inline {
                inline.push(end.buffers.message_bytes(index, &self.geometry, number));
            } else if end.plan.lands() {
                *place = ([end.buffers.landing(index, size, number), Sge::default()], 1);
            } else {
                *place = end.buffers.message(index, &self.geometry, number);
            }
        }
        let mut list = [SendWr::new(0, SendOp::Send, &[]); N];
        let mut visible = progress.visible;
        for (place, wr) in list[..count].iter_mut().enumerate() {
            let number = progress.posted + place as u64;
            let is_visible = (number + 1).is_multiple_of(self.every) || progress.limit == Some(number + 1);
            if is_visible {
                visible = number + 1;
            }
            let (elements, used) = &elements[place];
            *wr = SendWr {
                wr_id: WorkId { qp: index, number, is_receive: false }.to_wr_id(),
                op: operation(end, lane, self.geometry.offset(number)),
                flags: if is_visible { SendFlags::SIGNALED } else { SendFlags::empty() },
                payload: match inline.get(place) {
                    Some(bytes) => Payload::Inline(bytes),
                    None => Payload::Elements(&elements[..*used]),
                },
                destination: lane.destination.as_deref().copied(),
                remote_srqn: 0,
            };
        }
        lane.qp.post_send_list(&list[..count])?;
        self.lanes[index] = Progress { posted: progress.posted + count as u64, visible, ..progress };
        Ok(count as u64)
    }

    /// Handles a completion, which covers all earlier requests of its queue pair. Returns their number.
    pub(super) fn complete(&mut self, end: &End, id: WorkId) -> Result<u64, ToolError> {
        let Some(lane) = self.lanes.get_mut(id.qp) else { return Ok(0) };
        let (first, after) = (lane.completed, id.number + 1);
        let was_done = lane.is_done();
        lane.completed = after;
        self.outstanding -= after.saturating_sub(first);
        self.open -= usize::from(lane.is_done() && !was_done);
        if !lane.is_queued {
            lane.is_queued = true;
            self.queue.push_back(id.qp);
        }
        match end.plan.verb {
            Verb::Read => {
                for number in first..after {
                    let place = (number % self.geometry.slots as u64) as usize;
                    let learned = &mut self.learned[id.qp * self.geometry.slots + place];
                    end.check_read(id.qp, &self.geometry, number, learned)?;
                }
            }
            Verb::Atomic => {
                for number in first..after {
                    end.check_atomic(id.qp, number, &mut self.atomics[id.qp])?;
                }
            }
            Verb::Write | Verb::Send => {}
        }
        Ok(after.saturating_sub(first))
    }
}

/// Returns the operation of a request on the data at `offset` in the peer's memory.
fn operation(end: &End, lane: &Lane, offset: usize) -> SendOp {
    let remote_addr = lane.remote.vaddr.wrapping_add(offset as u64);
    let rkey = RKey(lane.remote.rkey);
    match (end.plan.verb, end.plan.atomic) {
        (Verb::Send, _) => SendOp::Send,
        (Verb::Write, _) => SendOp::Write { remote_addr, rkey },
        (Verb::Read, _) => SendOp::Read { remote_addr, rkey },
        (Verb::Atomic, AtomicOp::FetchAdd) => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        (Verb::Atomic, AtomicOp::CompareSwap) => {
            SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_work_requests_say_what_they_were() {
        for is_receive in [false, true] {
            let id = WorkId { qp: 16_383, number: (1 << 48) - 1, is_receive };
            assert_eq!(WorkId::from_wr_id(id.to_wr_id()), id);
        }
    }
}
