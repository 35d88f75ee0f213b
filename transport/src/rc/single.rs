//! Requests of one packet: atomics, ATOMIC WRITE and FLUSH.

use roce_packet::{AtomicEth, DatagramWriter, Feth, FlushSelectivity, Reth};

use crate::wr::{FlushPlacement, SendOp};

/// A request of one packet, in the form of its headers.
pub(super) enum Single {
    CompareSwap(AtomicEth),
    FetchAdd(AtomicEth),
    AtomicWrite(Reth),
    Flush(Feth, Reth),
}

impl Single {
    pub(super) fn of(op: &SendOp) -> Option<Self> {
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

    pub(super) fn write_headers(&self, writer: &mut DatagramWriter<'_>) -> Option<()> {
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
