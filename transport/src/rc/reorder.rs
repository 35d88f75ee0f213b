//! What a responder keeps that came too early, with selective repeat.

use alloc::boxed::Box;
use alloc::vec;

use roce_packet::{Datagram, Psn};

use super::reply::Reply;
use super::responder::RcResponder;
use crate::counters::count;
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::verdict::Verdict;

/// Room for packets ahead of the expected one, allocated once.
#[derive(Debug)]
pub(super) struct Reorder {
    /// As many as a power of two, so that PSNs find their slot also where they wrap around.
    slots: Box<[Slot]>,
    cap: u32,
}

#[derive(Clone, Debug)]
struct Slot {
    /// Whose packet it holds.
    psn: Option<Psn>,
    len: usize,
    bytes: Box<[u8]>,
}

/// Headers and ICRC of the longest request.
const OVERHEAD: usize = 64;

/// What became of a packet that came too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is kept, now or since before.
    Yes,
    /// It is too far ahead.
    No,
}

impl Reorder {
    pub(super) fn new(cap: u32, mtu: usize) -> Self {
        let slot = Slot { psn: None, len: 0, bytes: vec![0; mtu + OVERHEAD].into_boxed_slice() };
        Self { slots: vec![slot; cap.next_power_of_two() as usize].into_boxed_slice(), cap }
    }

    fn slot(&mut self, psn: Psn) -> Option<&mut Slot> {
        // The power of two at or above a cap of at least 1, so never 0.
        let index = psn.get() as usize & (self.slots.len() - 1);
        self.slots.get_mut(index)
    }

    /// Keeps a packet that is ahead of `expected`.
    pub(super) fn keep(&mut self, expected: Psn, datagram: &Datagram<'_>) -> Kept {
        let psn = datagram.bth().psn;
        if expected.distance_to(psn) >= self.cap {
            return Kept::No;
        }
        let Some(slot) = self.slot(psn) else { return Kept::No };
        if slot.psn == Some(psn) {
            return Kept::Yes;
        }
        let (head, tail) = datagram.covered();
        let icrc = datagram.icrc().to_le_bytes();
        let len = head.len() + tail.len() + icrc.len();
        let Some(room) = slot.bytes.get_mut(..len) else { return Kept::No };
        // `room` is exactly as long as the three pieces, so neither the splits nor the copies can fail.
        let (first, rest) = room.split_at_mut(head.len());
        let (second, third) = rest.split_at_mut(tail.len());
        first.copy_from_slice(head);
        second.copy_from_slice(tail);
        third.copy_from_slice(&icrc);
        (slot.psn, slot.len) = (Some(psn), len);
        Kept::Yes
    }

    /// Whether a packet with this PSN would be kept, and is not.
    pub(super) fn is_missing(&self, expected: Psn, psn: Psn) -> bool {
        let index = psn.get() as usize & (self.slots.len() - 1);
        expected.distance_to(psn) < self.cap
            && self.slots.get(index).is_some_and(|slot| slot.psn != Some(psn))
    }

    /// Takes the packet with this PSN out, with the buffer that it lies in.
    pub(super) fn take(&mut self, psn: Psn) -> Option<(Box<[u8]>, usize)> {
        let slot = self.slot(psn).filter(|slot| slot.psn == Some(psn))?;
        slot.psn = None;
        Some((core::mem::take(&mut slot.bytes), slot.len))
    }

    /// Gives the buffer back.
    pub(super) fn put_back(&mut self, psn: Psn, bytes: Box<[u8]>) {
        if let Some(slot) = self.slot(psn) {
            slot.bytes = bytes;
        }
    }
}

impl RcResponder {
    /// A packet ahead of the expected one, with selective repeat: it is kept, and its arrival is reported.
    pub(super) fn keep_early(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        let kept = self.reorder.as_mut().map_or(Kept::No, |reorder| reorder.keep(self.epsn, datagram));
        if kept == Kept::No {
            return self.gap(core, shared);
        }
        count!(shared, core, out_of_sequence);
        if !self.paused {
            self.nak_sent = true;
            self.reply = Some(Reply::Kept(datagram.bth().psn));
        }
        Verdict::Handled
    }

    /// The expected packet was executed: what was kept behind it follows, up to the next gap.
    pub(super) fn catch_up(&mut self, core: &mut QpCore, shared: &mut Shared) {
        let mut caught_up = false;
        while core.failure.is_none() {
            let psn = self.epsn;
            let Some((bytes, len)) = self.reorder.as_mut().and_then(|reorder| reorder.take(psn)) else {
                break;
            };
            let executed = bytes
                .get(..len)
                .and_then(|bytes| Datagram::parse(bytes, &[]).ok())
                .map(|datagram| self.execute(core, shared, &datagram));
            if let Some(reorder) = &mut self.reorder {
                reorder.put_back(psn, bytes);
            }
            caught_up = true;
            match executed {
                Some(Ok(())) => {}
                Some(Err(refusal)) => return self.refuse(core, shared, psn, refusal),
                None => break,
            }
        }
        if caught_up && core.failure.is_none() {
            // The peer waits for this one, whether or not a packet asked for it.
            self.owe_acknowledgement(core, shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SEND Only with four bytes of payload and an ICRC that is not checked here.
    fn send_only(psn: u8, payload: u8) -> [u8; 20] {
        let mut bytes = [0; 20];
        (bytes[0], bytes[11]) = (0x04, psn);
        bytes[12..16].fill(payload);
        bytes
    }

    fn keep(reorder: &mut Reorder, expected: u32, datagram: &[u8]) -> Kept {
        reorder.keep(Psn::new(expected), &Datagram::parse(datagram, &[]).unwrap())
    }

    /// A slot is empty once its packet was taken: 2^24 packets later the same PSN is another packet, which has neither come
    /// nor is kept already.
    #[test]
    fn what_was_taken_is_gone_when_its_number_comes_again() {
        let (psn, mut reorder) = (Psn::new(5), Reorder::new(4, 256));
        assert_eq!(keep(&mut reorder, 4, &send_only(5, 0xaa)), Kept::Yes);
        let (bytes, len) = reorder.take(psn).unwrap();
        assert_eq!(bytes[..len], send_only(5, 0xaa));
        reorder.put_back(psn, bytes);
        assert!(reorder.take(psn).is_none(), "it would be executed without having come");
        assert_eq!(keep(&mut reorder, 4, &send_only(5, 0xbb)), Kept::Yes);
        let (bytes, len) = reorder.take(psn).unwrap();
        assert_eq!(bytes[..len], send_only(5, 0xbb), "the old one was taken for it");
    }

    /// Slots are shared by PSNs that are a capacity apart.
    #[test]
    fn a_slot_gives_its_packet_for_its_own_number_only() {
        let mut reorder = Reorder::new(4, 256);
        assert_eq!(keep(&mut reorder, 4, &send_only(5, 1)), Kept::Yes);
        assert!(reorder.take(Psn::new(9)).is_none() && reorder.take(Psn::new(1)).is_none());
        // What was overtaken by a later round gives way to it.
        assert_eq!(keep(&mut reorder, 8, &send_only(9, 2)), Kept::Yes);
        assert!(reorder.take(Psn::new(5)).is_none() && reorder.take(Psn::new(9)).is_some());
        assert_eq!(keep(&mut reorder, 4, &send_only(8, 1)), Kept::No, "too far ahead");
    }
}
