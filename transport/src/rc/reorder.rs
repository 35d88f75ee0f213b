//! Early requests that a responder keeps, with selective repeat.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use roce_packet::{Datagram, Psn};

use crate::io::{implied_tail, is_implied_tail};

/// Packets ahead of the expected one. Memory is allocated for each packet on arrival and freed when the gap
/// is closed, so an empty buffer takes none. Most queue pairs never lose a packet, and space for `cap`
/// packets in each of thousands of queue pairs would exhaust the memory of a machine.
#[derive(Debug)]
pub(super) struct Reorder {
    /// The packets from `first` on, indexed by their distance from it. The last entry is always occupied.
    places: VecDeque<Option<Early>>,
    first: Psn,
    cap: u32,
    /// Length limit of a kept packet in bytes.
    longest: usize,
}

/// A packet that arrived early.
#[derive(Debug)]
pub(super) struct Early {
    bytes: Box<[u8]>,
    /// Number of implied bytes after `bytes` (see [`Received::implied`](crate::Received::implied)).
    implied: usize,
}

impl Early {
    fn new(datagram: &Datagram<'_>) -> Self {
        let (head, tail) = datagram.bytes();
        if is_implied_tail(tail) {
            return Self { bytes: head.into(), implied: tail.len() };
        }
        Self { bytes: [head, tail].concat().into_boxed_slice(), implied: 0 }
    }

    pub(super) fn datagram(&self) -> Option<Datagram<'_>> {
        Datagram::parse(&self.bytes, implied_tail(self.implied)?).ok()
    }
}

/// Headers and ICRC of the longest request.
const OVERHEAD: usize = 64;

/// The result of keeping an early packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The packet is kept, now or already before.
    Yes,
    /// The packet is too far ahead, or too long.
    No,
}

impl Reorder {
    pub(super) fn new(cap: u32, mtu: usize) -> Self {
        Self { places: VecDeque::new(), first: Psn::new(0), cap, longest: mtu + OVERHEAD }
    }

    /// Returns the maximum number of packets that are kept.
    pub(super) const fn cap(&self) -> u32 {
        self.cap
    }

    /// Keeps a packet that is ahead of `expected`.
    pub(super) fn keep(&mut self, expected: Psn, datagram: &Datagram<'_>) -> Kept {
        let ahead = expected.distance_to(datagram.bth().psn);
        if ahead >= self.cap || datagram.len() > self.longest {
            return Kept::No;
        }
        self.forget_before(expected);
        let place = ahead as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        if let Some(place @ None) = self.places.get_mut(place) {
            *place = Some(Early::new(datagram));
        }
        Kept::Yes
    }

    /// Tells whether a packet with this PSN would be kept, and is not yet.
    pub(super) fn is_missing(&self, expected: Psn, psn: Psn) -> bool {
        let place = self.first.distance_to(psn) as usize;
        expected.distance_to(psn) < self.cap && !matches!(self.places.get(place), Some(Some(_)))
    }

    /// Removes and returns the packet with this PSN. Earlier packets are discarded.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Early> {
        if self.places.is_empty() {
            return None;
        }
        self.forget_before(psn);
        let early = self.places.front_mut()?.take();
        if self.places.len() == 1 {
            self.places = VecDeque::new();
        }
        early
    }

    /// Discards the packets before `psn`, which becomes `first`.
    fn forget_before(&mut self, psn: Psn) {
        let passed = (self.first.distance_to(psn) as usize).min(self.places.len());
        self.places.drain(..passed);
        self.first = psn;
        if self.places.is_empty() {
            self.places = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a SEND Only with four bytes of payload and an ICRC that is not checked here.
    fn send_only(psn: u8, payload: u8) -> [u8; 20] {
        let mut bytes = [0; 20];
        (bytes[0], bytes[11]) = (0x04, psn);
        bytes[12..16].fill(payload);
        bytes
    }

    fn keep(reorder: &mut Reorder, expected: u32, datagram: &[u8]) -> Kept {
        reorder.keep(Psn::new(expected), &Datagram::parse(datagram, &[]).unwrap())
    }

    fn take(reorder: &mut Reorder, psn: u32) -> Option<Box<[u8]>> {
        reorder.take(Psn::new(psn)).map(|early| early.bytes)
    }

    /// After 2^24 packets the same PSN names another packet, which has neither arrived nor been kept.
    #[test]
    fn what_was_taken_is_gone_when_its_number_comes_again() {
        let mut reorder = Reorder::new(4, 256);
        for payload in [0xaa, 0xbb] {
            assert_eq!(keep(&mut reorder, 4, &send_only(5, payload)), Kept::Yes);
            assert_eq!(take(&mut reorder, 4), None, "this one has not come");
            assert_eq!(take(&mut reorder, 5).unwrap()[..], send_only(5, payload));
            assert_eq!(take(&mut reorder, 5), None, "it would be executed without having come");
        }
    }

    /// A READ takes several PSNs at once; packets that were kept for these PSNs are discarded with it.
    #[test]
    fn a_place_gives_its_packet_for_its_own_number_only() {
        let mut reorder = Reorder::new(4, 256);
        assert_eq!(keep(&mut reorder, 4, &send_only(5, 1)), Kept::Yes);
        assert_eq!(keep(&mut reorder, 4, &send_only(5, 2)), Kept::Yes, "a copy");
        let missing = [4, 5, 6, 7, 8].map(|psn| reorder.is_missing(Psn::new(4), Psn::new(psn)));
        assert_eq!(missing, [true, false, true, true, false], "the last one is too far ahead");
        assert_eq!(keep(&mut reorder, 8, &send_only(9, 3)), Kept::Yes);
        assert_eq!(keep(&mut reorder, 4, &send_only(8, 4)), Kept::No, "too far ahead");
        assert!(
            reorder.is_missing(Psn::new(8), Psn::new(8)) && !reorder.is_missing(Psn::new(8), Psn::new(9))
        );
        assert_eq!(take(&mut reorder, 9).unwrap()[..], send_only(9, 3));
    }

    /// The expected packet may be refused after it was taken, for example because no receive is posted. It
    /// then arrives again, and the packets after it are still kept.
    #[test]
    fn a_packet_that_is_refused_leaves_those_behind_it() {
        let mut reorder = Reorder::new(8, 256);
        for psn in [5, 6, 8] {
            assert_eq!(keep(&mut reorder, 4, &send_only(psn, psn)), Kept::Yes);
        }
        assert!(take(&mut reorder, 5).is_some() && reorder.is_missing(Psn::new(5), Psn::new(5)));
        assert_eq!(keep(&mut reorder, 5, &send_only(7, 7)), Kept::Yes);
        assert_eq!(take(&mut reorder, 5), None);
        for psn in [6, 7, 8] {
            assert_eq!(take(&mut reorder, psn).unwrap()[..], send_only(psn as u8, psn as u8));
        }
    }

    /// Regression: room for `cap` packets of the path MTU was reserved for each queue pair, up to 32 MiB.
    #[test]
    fn memory_is_taken_for_early_packets_only_and_given_back() {
        let bytes = |reorder: &Reorder| {
            let early = reorder.places.iter().flatten().map(|early| early.bytes.len());
            reorder.places.capacity() * size_of::<Option<Early>>() + early.sum::<usize>()
        };
        let mut reorder = Reorder::new(4_096, 4_096);
        assert_eq!(bytes(&reorder), 0);
        for psn in [9, 6, 5] {
            assert_eq!(keep(&mut reorder, 4, &send_only(psn, 1)), Kept::Yes);
        }
        assert!((1..1_000).contains(&bytes(&reorder)), "{}", bytes(&reorder));
        assert!(take(&mut reorder, 5).is_some() && take(&mut reorder, 6).is_some());
        assert!(bytes(&reorder) > 0);
        assert!(take(&mut reorder, 9).is_some());
        assert_eq!(bytes(&reorder), 0);
    }

    /// Only the headers of an implied datagram are kept.
    #[test]
    fn implied_bytes_take_no_memory() {
        let headers = &send_only(5, 0)[..12];
        let tail = implied_tail(4_096 + 4).unwrap();
        let datagram = Datagram::parse(headers, tail).unwrap();
        let mut reorder = Reorder::new(4, 4_096);
        assert_eq!(reorder.keep(Psn::new(4), &datagram), Kept::Yes);
        let early = reorder.take(Psn::new(5)).unwrap();
        assert_eq!((early.bytes.len(), early.datagram().unwrap().payload_len()), (12, 4_096));
        // Zeros from another source are kept like other bytes.
        let datagram = Datagram::parse(headers, &[0; 8]).unwrap();
        assert_eq!(reorder.keep(Psn::new(4), &datagram), Kept::Yes);
        assert_eq!(reorder.take(Psn::new(5)).unwrap().bytes.len(), 20);
    }
}
