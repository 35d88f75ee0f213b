//! How a message is cut into packets: shared by RC and UC, on both ways (IBTA 9.4, table 35).

use roce_packet::{DatagramWriter, Envelope, Ieth, Opcode, Path, Reth};

use crate::io::{Batch, Transmit};
use crate::sq::Wqe;
use crate::wr::SendOp;

/// Which packet of its message: the difference is the opcode.
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

/// How many packets a message of `len` bytes takes; an empty one takes one.
#[inline]
pub(crate) fn packets(len: u32, mtu: usize) -> u32 {
    // Path MTUs are powers of two up to 4096.
    let mtu = mtu as u32;
    len.div_ceil(mtu).max(1)
}

/// The part of a SEND or WRITE that one packet carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) opcode: Opcode,
    pub(crate) offset: u32,
    pub(crate) len: usize,
    pub(crate) is_end: bool,
}

/// Packet `index` of `wqe`. `base` is 0x00 for RC and 0x20 for UC. `None` for an operation that is not
/// cut into packets.
#[inline]
pub(crate) fn segment(base: u8, wqe: &Wqe, index: u32, mtu: usize) -> Option<Segment> {
    let offset = index * mtu as u32;
    let place = Place::of(index, wqe.psns);
    let operation = match (&wqe.op, place) {
        (SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_), Place::First) => 0x00,
        (SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_), Place::Middle) => 0x01,
        (SendOp::Send, Place::Last) => 0x02,
        (SendOp::SendWithImm(_), Place::Last) => 0x03,
        (SendOp::Send, Place::Only) => 0x04,
        (SendOp::SendWithImm(_), Place::Only) => 0x05,
        (SendOp::SendWithInvalidate(_), Place::Last) => 0x16,
        (SendOp::SendWithInvalidate(_), Place::Only) => 0x17,
        (SendOp::Write { .. } | SendOp::WriteWithImm { .. }, Place::First) => 0x06,
        (SendOp::Write { .. } | SendOp::WriteWithImm { .. }, Place::Middle) => 0x07,
        (SendOp::Write { .. }, Place::Last) => 0x08,
        (SendOp::WriteWithImm { .. }, Place::Last) => 0x09,
        (SendOp::Write { .. }, Place::Only) => 0x0a,
        (SendOp::WriteWithImm { .. }, Place::Only) => 0x0b,
        _ => return None,
    };
    let len = (wqe.len.saturating_sub(offset) as usize).min(mtu);
    Some(Segment { opcode: Opcode(base | operation), offset, len, is_end: place.is_end() })
}

/// Writes the extended headers of a SEND or WRITE packet after its BTH.
#[inline]
pub(crate) fn write_headers(
    writer: &mut DatagramWriter<'_>,
    wqe: &Wqe,
    index: u32,
    is_end: bool,
) -> Option<()> {
    match wqe.op {
        SendOp::Write { remote_addr, rkey } if index == 0 => {
            writer.reth(&Reth { va: remote_addr, rkey: rkey.0, dma_len: wqe.len }).ok()
        }
        SendOp::WriteWithImm { remote_addr, rkey, imm } => {
            if index == 0 {
                writer.reth(&Reth { va: remote_addr, rkey: rkey.0, dma_len: wqe.len }).ok()?;
            }
            if is_end { writer.imm_dt(&imm).ok() } else { Some(()) }
        }
        SendOp::SendWithImm(imm) if is_end => writer.imm_dt(&imm).ok(),
        SendOp::SendWithInvalidate(rkey) if is_end => writer.ieth(&Ieth { rkey: rkey.0 }).ok(),
        _ => Some(()),
    }
}

/// Adds the ICRC and says where the datagram goes.
#[inline]
pub(crate) fn seal(writer: DatagramWriter<'_>, path: &Path, batch: &Batch) -> Option<Transmit> {
    let identification = batch.identification(path, writer.len_with_icrc());
    let len = if batch.is_unsealed() {
        writer.finish_unsealed().ok()?
    } else {
        writer.finish(&Envelope::new(path, identification)).ok()?
    };
    Some(Transmit { path: *path, len, identification })
}
