//! Round trips, measured in bytes.

use crate::Ack;

/// Detects the acknowledgement of a packet that left after the last round began: `ack.seq > lastUpdateSeq` of
/// HPCC's algorithm 1, `SEG.ACK > DCTCP.WindowEnd` of RFC 8257.
///
/// The acknowledgement of everything that was in flight at that time does not end a round; the next one does.
/// With windows of one or two packets, a round would otherwise be half as long.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// Bytes that were in flight when the round began and are not acknowledged yet.
    left: u64,
}

impl Round {
    /// Handles an acknowledgement. Returns whether it ends the round; if so, the next round begins.
    pub(crate) fn ends(&mut self, ack: &Ack) -> bool {
        let ends = ack.bytes > self.left;
        if ends {
            self.begin(ack);
        } else {
            self.left -= ack.bytes;
        }
        ends
    }

    /// Begins a round with this acknowledgement.
    pub(crate) fn begin(&mut self, ack: &Ack) {
        self.left = ack.in_flight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a round ended when the last byte in flight was acknowledged; the paper waits one packet
    /// more.
    #[test]
    fn a_round_ends_with_the_first_packet_that_left_after_its_begin() {
        let ack = |bytes, in_flight| Ack { bytes, in_flight, ..Ack::default() };
        let mut round = Round::default();
        assert!(round.ends(&ack(1_000, 3_000)), "the first acknowledgement");
        assert_eq!([(); 3].map(|()| round.ends(&ack(1_000, 3_000))), [false; 3], "what was in flight");
        assert!(round.ends(&ack(1_000, 1_000)), "the first packet after that");
        assert!(!round.ends(&ack(1_000, 2_000)));
        assert!(!round.ends(&ack(0, 2_000)), "an acknowledgement without payload");
        assert!(round.ends(&ack(2_000, 0)));
        round.begin(&ack(0, 5_000));
        assert!(!round.ends(&ack(5_000, 5_000)));
        assert!(round.ends(&ack(u64::MAX, 0)));
    }
}
