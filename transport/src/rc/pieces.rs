//! The number of packets of a request, and of a piece of a READ.

use roce_packet::Psn;

use crate::segment::packets;
use crate::shared::Shared;
use crate::sq::Wqe;
use crate::wr::Course;

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
