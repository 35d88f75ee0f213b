//! Replays one direction of a connection: the requests of one end, and the answers of the other.
//!
//! The replay keeps the state that both ends must have, as far as the captured packets show it. It decides
//! for each packet whether it is new, sent again or overtaken, and why. It judges nothing: see
//! [`crate::verdict`].
//!
//! PSNs are unwrapped to 64 bits. They count from [`ORIGIN`], so that earlier ones stay positive.

mod answers;
mod facts;
mod player;
mod reads;
mod requests;

use roce_packet::Direction;

use crate::record::{Bits, Record};

pub use facts::*;

use player::Player;

/// Replays one direction. `indices` are those of the records of both streams, in the order of their capture.
#[must_use]
pub fn replay(records: &[Record], indices: &[usize], half: Half) -> Replay {
    let mut player = Player::new(records, indices, half);
    for &index in indices {
        let Some(record) = records.get(index) else { continue };
        let direction = record.info().map(|info| info.direction);
        let is_request = Some(record.stream) == half.requests && direction == Some(Direction::Request);
        let is_answer = Some(record.stream) == half.answers && direction == Some(Direction::Response);
        if !(is_request || is_answer) || record.bits.contains(Bits::COPY) {
            continue;
        }
        if !record.is_sound() {
            player.out.broken.push(index);
        } else if is_request {
            player.request(index, record);
        } else {
            player.answer(index, record);
        }
    }
    player.finish()
}

#[cfg(test)]
mod tests;
