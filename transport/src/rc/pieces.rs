//! READs, which are requested in pieces: how long the pieces are, and when their requests leave.

use roce_packet::{Opcode, Psn, Reth};

use super::mode::Sending;
use super::requester::{RcRequester, writer};
use crate::congestion::{ReadResponse, ReadTurn};
use crate::io::TxSlot;
use crate::qp::QpCore;
use crate::segment::{Sealed, packets};
use crate::shared::Shared;
use crate::sq::{Progress, Wqe};
use crate::timer::Timer;
use crate::wr::{Course, SendOp};

/// Returns the maximum number of packets in a piece of a READ. Fewer than half of all PSNs may be
/// outstanding, because otherwise older PSNs cannot be distinguished from newer ones (IBTA 9.7.2).
fn most_of_piece(shared: &Shared) -> u32 {
    const MOST: u32 = 1 << 22;
    match shared.config.max_read_packets {
        0 => MOST,
        limit => limit.min(MOST),
    }
}

/// Returns the number of response packets from this index to the end of the piece, if the whole response has
/// `psns` packets. Each piece is requested by one packet.
pub(super) fn left_of_piece(shared: &Shared, psns: u32, index: u32) -> u32 {
    let most = most_of_piece(shared);
    psns.saturating_sub(index).min(most - index % most)
}

/// Returns the first and the last PSN of the piece that contains this PSN of the request `wqe`.
pub(super) fn piece_of(shared: &Shared, wqe: &Wqe, psn: Psn) -> (Psn, Psn) {
    let index = wqe.first_psn.distance_to(psn);
    let (before, after) = (index % most_of_piece(shared), left_of_piece(shared, wqe.psns, index));
    (psn.sub(before), psn.add(after.saturating_sub(1)))
}

/// Returns the number of pieces of the request `wqe` that end in the `count` packets from this index on.
pub(super) fn pieces_ended(shared: &Shared, wqe: &Wqe, index: u32, count: u32) -> u32 {
    let (most, end) = (most_of_piece(shared), index + count);
    let ends_short = end == wqe.psns && !end.is_multiple_of(most);
    end / most - index / most + u32::from(ends_short)
}

/// Returns the payload bytes of a message in the packets before the one with this index.
pub(super) fn payload_before(wqe: &Wqe, index: u32, mtu: usize) -> u64 {
    u64::from(wqe.len).min(u64::from(index) * mtu as u64)
}

/// Returns the number of PSNs of a request.
pub(super) fn packets_of(wqe: &Wqe, mtu: usize) -> u32 {
    match wqe.op.course() {
        Course::Single => 1,
        Course::Segments | Course::Read | Course::Local => packets(wqe.len, mtu),
    }
}

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
            pace.take_turn(shared.now, outgoing.path(), response);
            return false;
        }
        // The run of responses to request again may become shorter or longer while it waits. It keeps its
        // turn, because with each change it would have to wait behind all others again.
        let psn = self.cursor;
        let known = self.read_turn.filter(|turn| turn.psn == psn);
        let turn = known.unwrap_or_else(|| {
            let at = pace.take_turn(shared.now, outgoing.path(), response);
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
