//! Requests of one packet: atomics, ATOMIC WRITE and FLUSH.

use roce_packet::{AtomicEth, DatagramWriter, Feth, FlushSelectivity, Opcode, Reth};

use super::mode::Sending;
use super::requester::{RcRequester, writer};
use crate::io::TxSlot;
use crate::qp::QpCore;
use crate::segment::Sealed;
use crate::shared::Shared;
use crate::wr::{FlushPlacement, SendOp};

/// A request of one packet, in the form of its headers.
enum Single {
    CompareSwap(AtomicEth),
    FetchAdd(AtomicEth),
    AtomicWrite(Reth),
    Flush(Feth, Reth),
}

impl Single {
    fn of(op: &SendOp) -> Option<Self> {
        Some(match *op {
            SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
                Self::CompareSwap(AtomicEth { va: remote_addr, rkey: rkey.0, swap_or_add: swap, compare })
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                Self::FetchAdd(AtomicEth { va: remote_addr, rkey: rkey.0, swap_or_add: add, compare: 0 })
            }
            SendOp::AtomicWrite { remote_addr, rkey } => {
                Self::AtomicWrite(Reth { va: remote_addr, rkey: rkey.0, dma_len: 8 })
            }
            SendOp::Flush { remote_addr, rkey, length, placement, whole_region } => {
                let selectivity =
                    if whole_region { FlushSelectivity::WholeRegion } else { FlushSelectivity::Range };
                let feth = Feth {
                    global_visibility: placement.contains(FlushPlacement::GLOBAL_VISIBILITY),
                    persistence: placement.contains(FlushPlacement::PERSISTENCE),
                    selectivity,
                };
                Self::Flush(feth, Reth { va: remote_addr, rkey: rkey.0, dma_len: length })
            }
            SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteWithImm { .. }
            | SendOp::Read { .. }
            | SendOp::BindWindow { .. }
            | SendOp::LocalInvalidate { .. } => return None,
        })
    }

    fn write_headers(&self, writer: &mut DatagramWriter<'_>) -> Option<()> {
        match self {
            Self::CompareSwap(header) | Self::FetchAdd(header) => writer.atomic_eth(header).ok(),
            Self::AtomicWrite(reth) => writer.reth(reth).ok(),
            Self::Flush(feth, reth) => {
                writer.feth(feth).ok()?;
                writer.reth(reth).ok()
            }
        }
    }
}

impl RcRequester {
    /// Sends an atomic, ATOMIC WRITE or FLUSH: one packet with one PSN.
    pub(super) fn send_single(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
        sending: Sending,
    ) -> Option<Sealed> {
        let wqe = self.sq.get(self.cursor_wqe)?;
        let single = Single::of(&wqe.op)?;
        let opcode = match single {
            Single::CompareSwap(_) => Opcode::RC_COMPARE_SWAP,
            Single::FetchAdd(_) => Opcode::RC_FETCH_ADD,
            Single::AtomicWrite(_) => Opcode::RC_ATOMIC_WRITE,
            Single::Flush(..) => Opcode::RC_FLUSH,
        };
        let mut bth = core.bth(shared, opcode, self.cursor);
        bth.ack_req = true;
        let mut writer = writer(core, slot.buffer, &bth, wqe)?;
        single.write_headers(&mut writer)?;
        if let Single::AtomicWrite(_) = single {
            self.gather(core, shared, 0, writer.payload_slot(8).ok()?)?;
        }
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        self.note_response_awaited(core, shared, self.cursor, sending);
        self.advance_cursor(1, true);
        Some(sealed)
    }
}
