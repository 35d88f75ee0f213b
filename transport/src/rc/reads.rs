//! READ requests: one for each piece, and their turns at the rate of
//! [`EngineConfig::read_rate`](crate::EngineConfig::read_rate).

use roce_packet::{Opcode, Reth};

use super::mode::Sending;
use super::pieces::{left_of_piece, payload_before};
use super::requester::{RcRequester, writer};
use crate::congestion::{ReadResponse, ReadTurn};
use crate::io::TxSlot;
use crate::qp::QpCore;
use crate::segment::Sealed;
use crate::shared::Shared;
use crate::sq::Progress;
use crate::timer::Timer;
use crate::wr::SendOp;

impl RcRequester {
    /// Writes the request for the piece at the cursor into `slot`.
    pub(super) fn send_read(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
        sending: Sending,
    ) -> Option<Sealed> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let SendOp::Read { remote_addr, rkey } = wqe.op else { return None };
        let mtu = core.mtu();
        let index = wqe.first_psn.distance_to(self.cursor);
        let left = wqe.psns.saturating_sub(index);
        let piece = self.piece_at_cursor(shared, wqe, sending);
        let offset = index * mtu as u32;
        let end = if piece == left { wqe.len } else { offset + piece * mtu as u32 };
        let mut bth = core.bth(shared, Opcode::RC_RDMA_READ_REQUEST, self.cursor);
        bth.ack_req = true;
        let mut writer = writer(core, slot.buffer, &bth, wqe)?;
        let va = remote_addr.wrapping_add(u64::from(offset));
        writer.reth(&Reth { va, rkey: rkey.0, dma_len: end - offset }).ok()?;
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        self.note_response_awaited(core, shared, self.cursor.add(piece - 1), sending);
        self.advance_cursor(piece, piece == left);
        Some(sealed)
    }

    /// Tells whether the READ at the cursor, with a response of `psns` packets in total, must wait for its
    /// turn ([`EngineConfig::read_rate`](crate::EngineConfig::read_rate)). In that case sets the timer.
    /// Probes do not wait. A request for a trimmed response counts, but does not wait either: the link has
    /// time for the response, which did not arrive.
    pub(super) fn waits_for_turn(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        psns: u32,
        sending: Sending,
    ) -> bool {
        if shared.reads.is_none() || sending == Sending::Probe {
            return false;
        }
        let response = self.response_at_cursor(shared, psns, core.mtu(), sending);
        let (Some(response), Some(outgoing), Some(pace)) = (response, &core.outgoing, &mut shared.reads)
        else {
            return false;
        };
        if sending == Sending::Trimmed {
            pace.take_turn(shared.now, (core.number, outgoing.path()), response, true);
            return false;
        }
        // The run of responses to request again may become shorter or longer while it waits. It keeps its
        // turn, because with each change it would have to wait behind all others again.
        let psn = self.cursor;
        let known = self.read_turn.filter(|turn| turn.psn == psn);
        let turn = known.unwrap_or_else(|| {
            let at = pace.take_turn(shared.now, (core.number, outgoing.path()), response, false);
            ReadTurn { at, psn }
        });
        let waits = shared.now < turn.at;
        self.read_turn = Some(turn).filter(|_| waits);
        core.deadlines.set(Timer::Turn, Some(turn.at).filter(|_| waits));
        if waits
            && known.is_none()
            && self.cursor != self.unsent
            && core.deadlines.get(Timer::Retry).is_some()
        {
            self.arm(core, shared);
        }
        waits
    }

    /// Returns the response that the READ request at the cursor asks for.
    fn response_at_cursor(
        &self,
        shared: &Shared,
        psns: u32,
        mtu: usize,
        sending: Sending,
    ) -> Option<ReadResponse> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let (index, packets) = match wqe.progress {
            Progress::Started => {
                (wqe.first_psn.distance_to(self.cursor), self.piece_at_cursor(shared, wqe, sending))
            }
            Progress::Posted | Progress::Done => (0, left_of_piece(shared, psns, 0)),
        };
        let payload = payload_before(wqe, index + packets, mtu) - payload_before(wqe, index, mtu);
        Some(ReadResponse { packets, payload })
    }
}
