//! Segmentation of messages into packets, for sending and receiving with RC and UC (IBTA 9.4, table 35).

use core::num::NonZeroU16;

use roce_packet::icrc::Seed;
use roce_packet::{DatagramWriter, Envelope, Ieth, Opcode, Path, Qpn, Reth, Transport};

use crate::io::{Batch, Transmit};
use crate::sq::Wqe;
use crate::wr::SendOp;

/// The position of a packet in its message, which determines the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    pub(crate) fn of(index: u32, packets: u32) -> Self {
        match (index == 0, index + 1 >= packets) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Returns the number of packets of a message of `len` bytes, at least one.
#[inline]
pub(crate) fn packets(len: u32, mtu: usize) -> u32 {
    // Path MTUs are powers of two up to 4096, which the compiler does not know; it would use a division.
    let whole = len >> mtu.trailing_zeros();
    let rest = len & (mtu as u32).wrapping_sub(1);
    (whole + u32::from(rest > 0)).max(1)
}

/// The part of a SEND or WRITE in one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) opcode: Opcode,
    pub(crate) offset: u32,
    pub(crate) len: usize,
    pub(crate) is_end: bool,
}

/// Returns packet `index` of `wqe`, or `None` for an operation that is not segmented.
#[inline]
pub(crate) fn segment(transport: Transport, wqe: &Wqe, index: u32, mtu: usize) -> Option<Segment> {
    let offset = index * mtu as u32;
    let place = Place::of(index, wqe.psns);
    let opcode = match (&wqe.op, place) {
        (SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_), Place::First) => {
            Opcode::RC_SEND_FIRST
        }
        (SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_), Place::Middle) => {
            Opcode::RC_SEND_MIDDLE
        }
        (SendOp::Send, Place::Last) => Opcode::RC_SEND_LAST,
        (SendOp::SendWithImm(_), Place::Last) => Opcode::RC_SEND_LAST_WITH_IMM,
        (SendOp::SendWithInvalidate(_), Place::Last) => Opcode::RC_SEND_LAST_WITH_INVALIDATE,
        (SendOp::Send, Place::Only) => Opcode::RC_SEND_ONLY,
        (SendOp::SendWithImm(_), Place::Only) => Opcode::RC_SEND_ONLY_WITH_IMM,
        (SendOp::SendWithInvalidate(_), Place::Only) => Opcode::RC_SEND_ONLY_WITH_INVALIDATE,
        (SendOp::Write { .. } | SendOp::WriteWithImm { .. }, Place::First) => Opcode::RC_RDMA_WRITE_FIRST,
        (SendOp::Write { .. } | SendOp::WriteWithImm { .. }, Place::Middle) => Opcode::RC_RDMA_WRITE_MIDDLE,
        (SendOp::Write { .. }, Place::Last) => Opcode::RC_RDMA_WRITE_LAST,
        (SendOp::WriteWithImm { .. }, Place::Last) => Opcode::RC_RDMA_WRITE_LAST_WITH_IMM,
        (SendOp::Write { .. }, Place::Only) => Opcode::RC_RDMA_WRITE_ONLY,
        (SendOp::WriteWithImm { .. }, Place::Only) => Opcode::RC_RDMA_WRITE_ONLY_WITH_IMM,
        (
            SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::BindWindow { .. }
            | SendOp::LocalInvalidate { .. },
            _,
        ) => return None,
    };
    let len = (wqe.len.saturating_sub(offset) as usize).min(mtu);
    Some(Segment { opcode: opcode.with_transport(transport), offset, len, is_end: place.is_end() })
}

/// Writes the extended headers of a SEND or WRITE packet after its BTH.
#[inline]
pub(crate) fn write_headers(
    writer: &mut DatagramWriter<'_>,
    wqe: &Wqe,
    index: u32,
    is_end: bool,
) -> Option<()> {
    if let SendOp::Write { remote_addr, rkey } | SendOp::WriteWithImm { remote_addr, rkey, .. } = wqe.op
        && index == 0
    {
        writer.reth(&Reth { va: remote_addr, rkey: rkey.0, dma_len: wqe.len }).ok()?;
    }
    match wqe.op {
        SendOp::SendWithImm(imm) | SendOp::WriteWithImm { imm, .. } if is_end => writer.imm_dt(&imm).ok(),
        SendOp::SendWithInvalidate(rkey) if is_end => writer.ieth(&Ieth { rkey: rkey.0 }).ok(),
        SendOp::Send
        | SendOp::SendWithImm(_)
        | SendOp::SendWithInvalidate(_)
        | SendOp::Write { .. }
        | SendOp::WriteWithImm { .. } => Some(()),
        SendOp::Read { .. }
        | SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. }
        | SendOp::BindWindow { .. }
        | SendOp::LocalInvalidate { .. } => None,
    }
}

/// A path with the contribution of its headers to the ICRC of each datagram. It is computed once, because a
/// queue pair keeps its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownPath {
    path: Path,
    seed: Seed,
}

impl KnownPath {
    #[inline]
    pub(crate) fn new(path: Path) -> Self {
        Self { seed: Seed::new(&Envelope::new(&path, 0)), path }
    }

    #[inline]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[inline]
    pub(crate) fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Finishes the datagram with its ICRC.
    #[inline]
    pub(crate) fn seal(&self, writer: DatagramWriter<'_>, remote_qpn: Qpn, batch: &Batch) -> Option<Sealed> {
        let identification = batch.identification(&self.path, remote_qpn, writer.len_with_icrc());
        let len = if batch.is_unsealed() {
            writer.finish_unsealed().ok()?
        } else {
            writer.finish_from(&self.seed, identification).ok()?
        };
        // Longer datagrams do not fit into an IP packet. The small result is returned in a register.
        Some(Sealed { len: NonZeroU16::new(u16::try_from(len).ok()?)?, remote_qpn, identification })
    }
}

/// A finished datagram: a [`Transmit`] without its path. The path is added where the datagram leaves the
/// engine, because copying it through all functions took a tenth of the time of a small packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    /// Bytes from BTH to ICRC inclusive.
    pub(crate) len: NonZeroU16,
    pub(crate) identification: u16,
    pub(crate) remote_qpn: Qpn,
}

impl Sealed {
    #[inline]
    pub(crate) fn on(self, path: &Path) -> Transmit {
        let Self { len, remote_qpn, identification } = self;
        Transmit::new(*path, remote_qpn, len.get().into(), identification)
    }
}
