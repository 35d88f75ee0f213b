//! The side that receives SENDs.

use roce_exchange::ToolError;
use roce_exchange::content::STAMP;
use roce_transport::{RecvWr, Wc};

use super::Test;
use super::buffers::Geometry;
use super::content::Learned;
use super::end::End;
use super::sender::WorkId;
use super::verify::lost;
use crate::harness::check_length;

/// The progress of one queue pair.
#[derive(Debug)]
struct ReceiveProgress {
    posted: u64,
    taken: u64,
    /// The smallest possible number of the next message from this program.
    next: u64,
    learned: Learned,
}

#[derive(Debug)]
pub(super) struct Receiver {
    geometry: Geometry,
    lanes: Vec<ReceiveProgress>,
    limit: Option<u64>,
}

impl Receiver {
    /// Posts the receives.
    pub(super) fn new(end: &End, geometry: Geometry) -> Result<Self, ToolError> {
        let lane =
            |_| ReceiveProgress { posted: 0, taken: 0, next: 0, learned: Learned::new(geometry.slots) };
        let lanes = (0..end.plan.num_qp).map(lane).collect();
        let mut receiver = Self { geometry, lanes, limit: end.plan.iterations() };
        let slots = end.buffers.landing_slots(geometry.size).min(end.plan.rx_depth);
        for qp in 0..end.plan.num_qp {
            for _ in 0..slots {
                receiver.post(end, qp)?;
            }
        }
        Ok(receiver)
    }

    fn post(&mut self, end: &End, qp: usize) -> Result<(), ToolError> {
        let lane = &mut self.lanes[qp];
        if self.limit.is_some_and(|limit| lane.posted >= limit) {
            return Ok(());
        }
        let element = end.buffers.landing(qp, self.geometry.size, lane.posted);
        let wr_id = WorkId { qp, number: lane.posted, is_receive: true }.to_wr_id();
        end.lanes[qp].qp.post_recv(&RecvWr { wr_id, elements: &[element] })?;
        lane.posted += 1;
        Ok(())
    }

    pub(super) fn received(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.taken).collect()
    }

    pub(super) fn taken(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.taken).sum()
    }

    pub(super) fn expected(&self) -> u64 {
        self.lanes.iter().map(|lane| self.limit.unwrap_or(lane.taken)).sum()
    }

    pub(super) fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.lanes.iter().all(|lane| lane.taken >= limit))
    }

    /// Takes a message: checks it, and posts its buffer again.
    pub(super) fn take(&mut self, end: &End, id: WorkId, wc: &Wc) -> Result<(), ToolError> {
        let Some(lane) = self.lanes.get_mut(id.qp) else { return Ok(()) };
        let (size, message) = (self.geometry.size, lane.taken);
        check_length(message, size, (wc.byte_len as usize).saturating_sub(end.plan.headroom()))?;
        let read = |start: usize, out: &mut [u8]| end.buffers.landed(id.qp, size, id.number, start, out);
        let mut stamp = [0; STAMP];
        let stamped = &mut stamp[..size.min(STAMP)];
        read(0, stamped);
        // The messages of a latency test arrive one at a time and do not carry a number.
        let is_counted = end.plan.is_reliable() || end.plan.test == Test::Latency;
        let number = if is_counted { lane.next } else { number_of(stamped, lane.next) };
        end.check_message((id.qp, message), &self.geometry, Some(number), &read, &mut lane.learned)?;
        lane.taken += 1;
        if end.agreement.is_ours {
            lane.next = number.saturating_add(1);
            if let Some(limit) = self.limit
                && lane.next >= limit
                && lane.taken < limit
            {
                return Err(lost(id.qp, limit, lane.taken));
            }
        }
        self.post(end, id.qp)
    }
}

/// Returns the number of a message that starts with these bytes, if messages may be missing. It is the first
/// matching number from `next` on.
fn number_of(stamp: &[u8], next: u64) -> u64 {
    let mut bytes = [0; STAMP];
    bytes[..stamp.len()].copy_from_slice(stamp);
    let low = u64::from_le_bytes(bytes);
    if stamp.len() == STAMP {
        return low;
    }
    let modulus = 1_u64 << (8 * stamp.len());
    next.wrapping_add(low.wrapping_sub(next) % modulus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_short_message_is_the_first_that_fits() {
        assert_eq!(number_of(&[5], 5), 5);
        assert_eq!(number_of(&[5], 6), 261);
        assert_eq!(number_of(&[0, 1], 3), 256);
        assert_eq!(number_of(&7_u64.to_le_bytes(), 9), 7);
    }
}
