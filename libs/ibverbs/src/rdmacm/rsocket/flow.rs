//! Accounting of outstanding messages and bytes: byte rings and message numbers. This module performs no I/O.

use std::collections::VecDeque;

/// Maximum number of outstanding messages that do not use credits.
pub(super) const CONTROLS: u16 = 4;
/// Length of the first transfer of a call; each further transfer is as long as all previous ones together.
pub(super) const FIRST_TRANSFER: usize = 2048;
/// Maximum length of a transfer.
pub(super) const LONGEST_TRANSFER: usize = 65536;

/// The sending half of a stream.
pub(super) struct Sending {
    size: usize,
    position: usize,
    free_bytes: usize,
    free_requests: u16,
    free_controls: u16,
    depth: u16,
    sent: u16,
    allowed: u16,
}

impl Sending {
    pub(super) fn new(size: usize, depth: u16) -> Self {
        let free_requests = depth.saturating_sub(CONTROLS);
        Self {
            size,
            position: 0,
            free_bytes: size,
            free_requests,
            free_controls: CONTROLS,
            depth: free_requests,
            sent: 0,
            allowed: 0,
        }
    }

    /// Records that the peer accepts messages up to this number.
    pub(super) fn allow(&mut self, number: u16) {
        self.allowed = number;
    }

    /// Returns the number of bytes that can be sent now in one piece, at most `target`, the room of the peer.
    pub(super) fn room(&self, target: usize) -> usize {
        if self.free_requests == 0 || self.sent == self.allowed {
            return 0;
        }
        self.free_bytes.min(self.size - self.position).min(target)
    }

    /// Takes bytes of the ring for a message; returns their position.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let at = self.position;
        self.position = (at + bytes) % self.size;
        self.free_bytes -= bytes;
        self.free_requests -= 1;
        self.sent = self.sent.wrapping_add(1);
        at
    }

    /// Returns the number of bytes that can be written now in one piece, without a message about them.
    pub(super) fn room_for_writes(&self) -> usize {
        if self.free_requests == 0 { 0 } else { self.free_bytes.min(self.size - self.position) }
    }

    /// Takes bytes of the ring for a write; returns their position.
    pub(super) fn take_for_write(&mut self, bytes: usize) -> usize {
        let sent = self.sent;
        let at = self.take(bytes);
        self.sent = sent;
        at
    }

    /// Returns whether a message can be sent that uses a credit but no data of the ring.
    pub(super) fn has_credit(&self) -> bool {
        self.free_requests > 0 && self.sent != self.allowed
    }

    /// Records that a message with data, or a write, has completed.
    pub(super) fn complete(&mut self, bytes: usize) {
        self.free_bytes += bytes;
        self.free_requests += 1;
    }

    /// Takes the place of a message without data. Returns whether one was free.
    pub(super) fn take_control(&mut self) -> bool {
        let is_free = self.free_controls > 0;
        self.free_controls -= u16::from(is_free);
        is_free
    }

    pub(super) fn has_control(&self) -> bool {
        self.free_controls > 0
    }

    pub(super) fn complete_control(&mut self) {
        self.free_controls += 1;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free_requests == self.depth && self.free_controls == CONTROLS
    }
}

/// The receiving half of a stream. The peer writes one half of the ring while this end reads the other.
pub(super) struct Receiving {
    size: usize,
    depth: u16,
    messages: VecDeque<usize>,
    /// Bytes of all these messages.
    held: usize,
    position: usize,
    /// Bytes that were read and not announced again.
    free: usize,
    /// The half to announce next.
    next_half: usize,
    consumed: u16,
    announce_at: u16,
}

impl Receiving {
    pub(super) fn new(size: usize, depth: u16) -> Self {
        Self {
            size,
            depth,
            messages: VecDeque::new(),
            held: 0,
            position: 0,
            free: size / 2,
            next_half: size / 2,
            consumed: 0,
            announce_at: depth / 2,
        }
    }

    /// Records an arrived message. Returns `false` if the peer sends more than it may.
    pub(super) fn arrive(&mut self, bytes: usize) -> bool {
        if self.messages.len() >= usize::from(self.depth) || bytes > self.size - self.held {
            return false;
        }
        self.held += bytes;
        self.messages.push_back(bytes);
        true
    }

    pub(super) fn has_data(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Returns the position and number of the next bytes in one piece, at most `most`.
    pub(super) fn next(&self, most: usize) -> (usize, usize) {
        let message = self.messages.front().copied().unwrap_or_default();
        (self.position, message.min(most).min(self.size - self.position))
    }

    /// Records an arrived message that has no data but uses a credit.
    pub(super) fn arrive_empty(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Records that these bytes have been read.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.position = (self.position + bytes) % self.size;
        self.free += bytes;
        self.held -= bytes;
        if let Some(message) = self.messages.front_mut() {
            *message -= bytes;
            if *message == 0 {
                self.messages.pop_front();
                self.consumed = self.consumed.wrapping_add(1);
            }
        }
    }

    /// Returns whether the peer should be told about free space.
    pub(super) fn is_due(&self) -> bool {
        self.free >= self.size / 2 || self.consumed.wrapping_sub(self.announce_at).cast_signed() >= 0
    }

    /// Returns the announcement: the number of the last message, and the position of a free half.
    pub(super) fn announce(&mut self) -> (u16, Option<usize>) {
        self.announce_at = self.consumed.wrapping_add(self.depth / 2);
        let half = (self.free >= self.size / 2).then_some(self.next_half);
        if half.is_some() {
            self.free -= self.size / 2;
            self.next_half = if self.next_half == 0 { self.size / 2 } else { 0 };
        }
        (self.consumed.wrapping_add(self.depth), half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_need_credit_room_and_a_place_in_the_queue() {
        let mut sending = Sending::new(100, CONTROLS + 2);
        assert_eq!(sending.room(50), 0, "no credit");
        sending.allow(3);
        assert_eq!(sending.room(50), 50, "the peer has less room");
        assert_eq!((sending.take(60), sending.room(50)), (0, 40));
        assert_eq!((sending.take(40), sending.room(50)), (60, 0));
        assert!(!sending.is_idle());
        sending.complete(60);
        assert_eq!((sending.room(50), sending.take(10)), (50, 0));
        sending.complete(40);
        assert_eq!(sending.room(50), 0, "three messages were allowed");
        sending.complete(10);
        assert!(sending.is_idle());
        assert!((0..CONTROLS).all(|_| sending.take_control()) && !sending.take_control());
    }

    #[test]
    fn a_write_takes_room_and_a_request_and_no_credit() {
        let mut sending = Sending::new(100, CONTROLS + 2);
        assert!(!sending.has_credit());
        assert_eq!((sending.room_for_writes(), sending.take_for_write(60)), (100, 0));
        assert_eq!((sending.room_for_writes(), sending.take_for_write(40)), (40, 60));
        assert_eq!(sending.room_for_writes(), 0);
        sending.complete(60);
        sending.allow(1);
        assert!(sending.has_credit() && sending.room(50) == 50, "no message was sent");
        let mut receiving = Receiving::new(100, 2);
        receiving.announce();
        receiving.arrive_empty();
        assert!(receiving.is_due() && receiving.announce().0 == 3);
    }

    #[test]
    fn the_second_half_is_announced_at_once_and_each_half_when_it_was_read() {
        let mut receiving = Receiving::new(100, 8);
        assert!(receiving.is_due());
        assert_eq!(receiving.announce(), (8, Some(50)));
        assert!(!receiving.is_due() && receiving.arrive(50) && receiving.arrive(50));
        assert!(!receiving.arrive(1), "more than there is room for");
        assert_eq!(receiving.next(30), (0, 30));
        receiving.consume(30);
        assert!(!receiving.is_due());
        assert_eq!(receiving.next(30), (30, 20));
        receiving.consume(20);
        assert!(receiving.is_due());
        assert_eq!(receiving.announce(), (9, Some(0)));
    }

    #[test]
    fn credits_are_announced_after_half_of_the_queue_also_across_zero() {
        let mut receiving = Receiving::new(1000, 8);
        receiving.announce();
        for round in 1..20_000_u32 {
            for _ in 0..4 {
                assert!(!receiving.is_due() && receiving.arrive(1));
                receiving.consume(1);
            }
            assert!(receiving.is_due());
            assert_eq!(receiving.announce().0, (round * 4 + 8) as u16);
        }
    }
}
