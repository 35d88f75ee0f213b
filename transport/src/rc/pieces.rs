//! The number of packets of a request, and of a piece of a READ.

use crate::segment::packets;
use crate::shared::Shared;
use crate::sq::Wqe;
use crate::wr::Course;

/// Returns the number of packets of a READ to request at once, if `left` packets are left. Fewer than half of
/// all PSNs may be outstanding, because otherwise older PSNs cannot be distinguished from newer ones (IBTA
/// 9.7.2).
pub(super) fn read_piece(shared: &Shared, left: u32) -> u32 {
    const MOST: u32 = 1 << 22;
    match shared.config.max_read_packets {
        0 => left.min(MOST),
        limit => left.min(limit).min(MOST),
    }
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
