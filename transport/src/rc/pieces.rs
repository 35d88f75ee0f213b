//! How many packets a request has, and how many of them are asked for at once.

use crate::segment::packets;
use crate::shared::Shared;
use crate::sq::Wqe;
use crate::wr::Course;

/// How many packets of a READ with `left` packets are asked for at once. Half of all PSNs or more must never
/// be outstanding, because an older PSN could not be told from a newer one (IBTA 9.7.2).
pub(super) fn read_piece(shared: &Shared, left: u32) -> u32 {
    const MOST: u32 = 1 << 22;
    match shared.config.max_read_packets {
        0 => left.min(MOST),
        limit => left.min(limit).min(MOST),
    }
}

/// Payload bytes of a message in its packets before the one with this index.
pub(super) fn payload_before(wqe: &Wqe, index: u32, mtu: usize) -> u64 {
    u64::from(wqe.len).min(u64::from(index) * mtu as u64)
}

/// How many PSNs a request takes.
pub(super) fn packets_of(wqe: &Wqe, mtu: usize) -> u32 {
    match wqe.op.course() {
        Course::Single => 1,
        Course::Segments | Course::Read | Course::Local => packets(wqe.len, mtu),
    }
}
