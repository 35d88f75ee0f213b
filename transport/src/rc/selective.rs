//! Selective repeat: the requester sends only the packets again that the responder misses.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use roce_packet::Psn;

use super::loss::LossRecovery;
use crate::recovery::SelectiveRepeat;

/// The state of selective repeat; see [`SelectiveRepeat`].
#[derive(Debug)]
pub(super) struct Selective {
    settings: SelectiveRepeat,
    /// The known state of each packet in flight, by the low bits of its PSN. Empty until a state is known.
    known: Box<[Known]>,
    /// Number of entries of `known` that are [absent](Known::is_absent).
    absent: u32,
    /// Trimmed packets that wait to be sent again, all of them in flight and [`Known::Trimmed`].
    trimmed: VecDeque<Psn>,
    trimmed_response: Option<Psn>,
    /// End of the retransmission, `None` without one: packets before this one are sent again unless received.
    end: Option<Psn>,
    /// The first unsent packet when the loss was detected; a loss beyond it begins another episode.
    until: Option<Psn>,
}

/// The known state of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The responder has the packet.
    Received,
    /// The packet was trimmed and waits to be sent again.
    Trimmed,
    /// The packet was trimmed and then sent again.
    Repeated,
}

impl Known {
    /// Tells whether the packet is not in the network.
    const fn is_absent(self) -> bool {
        matches!(self, Self::Received | Self::Trimmed)
    }
}

impl Selective {
    pub(super) fn new(settings: &SelectiveRepeat) -> Self {
        Self {
            settings: *settings,
            known: Box::default(),
            absent: 0,
            trimmed: VecDeque::new(),
            trimmed_response: None,
            end: None,
            until: None,
        }
    }

    /// Returns the index of a PSN in `known`; it is out of range while `known` is empty.
    fn slot(&self, psn: Psn) -> usize {
        psn.get() as usize & self.known.len().wrapping_sub(1)
    }

    fn known(&self, psn: Psn) -> Known {
        self.known.get(self.slot(psn)).copied().unwrap_or(Known::Nothing)
    }

    fn set(&mut self, psn: Psn, known: Known) {
        if self.known.is_empty() && known != Known::Nothing {
            let slots = self.settings.cap().next_power_of_two() as usize;
            self.known = vec![Known::Nothing; slots].into_boxed_slice();
        }
        let slot = self.slot(psn);
        if let Some(place) = self.known.get_mut(slot) {
            let before = core::mem::replace(place, known);
            self.absent = self.absent + u32::from(known.is_absent()) - u32::from(before.is_absent());
        }
    }
}

impl LossRecovery for Selective {
    fn selects(&self) -> bool {
        true
    }

    fn window(&self) -> u32 {
        self.settings.cap()
    }

    fn timeout(&self, in_flight: u32) -> Option<u64> {
        let SelectiveRepeat { rto_low, rto_high, few, .. } = self.settings;
        let micros = if in_flight <= few { rto_low } else { rto_high };
        Some(u64::from(micros.max(1)) * 1_000)
    }

    fn on_received(&mut self, una: Psn, unsent: Psn, received: Psn) -> Option<(Psn, bool)> {
        let ahead = una.distance_to(received);
        if ahead == 0 || ahead >= self.settings.cap() || ahead >= una.distance_to(unsent) {
            return None;
        }
        if self.known(received) == Known::Trimmed {
            // A copy arrived.
            self.trimmed.retain(|trimmed| *trimmed != received);
        }
        self.set(received, Known::Received);
        // Packets shortly before it may be late instead of lost.
        let late = self.settings.reorder.min(ahead);
        let end = received.sub(late);
        // Packets that were sent again get time to arrive; the timer decides how long.
        let from = self.end.filter(|end| !end.before(una)).unwrap_or(una);
        if !from.before(end) {
            return None;
        }
        self.end = Some(end);
        Some((from, self.begins(unsent)))
    }

    fn on_trimmed(&mut self, trimmed: Psn) -> Option<bool> {
        let is_repeated = match self.known(trimmed) {
            Known::Nothing => false,
            Known::Repeated => true,
            Known::Received | Known::Trimmed => return None,
        };
        self.set(trimmed, Known::Trimmed);
        self.trimmed.push_back(trimmed);
        Some(is_repeated)
    }

    fn next_trimmed(&self) -> Option<Psn> {
        self.trimmed.front().copied()
    }

    fn repeated_trimmed(&mut self) {
        if let Some(psn) = self.trimmed.pop_front() {
            self.set(psn, Known::Repeated);
        }
    }

    fn absent(&self) -> u32 {
        self.absent
    }

    fn trimmed_response(&mut self) -> &mut Option<Psn> {
        &mut self.trimmed_response
    }

    fn begins(&mut self, unsent: Psn) -> bool {
        let is_first = self.until.is_none();
        self.until = self.until.or(Some(unsent));
        is_first
    }

    fn on_timeout(&mut self, _una: Psn, unsent: Psn) {
        self.end = Some(unsent);
        self.until = Some(unsent);
        // Trimmed packets are sent again with the others.
        self.trimmed.clear();
        self.absent = 0;
        for known in &mut self.known {
            if *known == Known::Received {
                self.absent += 1;
            } else {
                *known = Known::Nothing;
            }
        }
    }

    #[inline(never)]
    fn on_progress(&mut self, before: Psn, una: Psn) {
        self.trimmed.retain(|trimmed| !trimmed.before(una));
        let passed = before.distance_to(una);
        if passed as usize >= self.known.len() {
            self.known.fill(Known::Nothing);
            self.absent = 0;
        } else {
            for step in 0..passed {
                self.set(before.add(step), Known::Nothing);
            }
        }
        if self.until.is_some_and(|until| !una.before(until)) {
            (self.end, self.until) = (None, None);
        }
    }

    fn on_go_back(&mut self) {
        self.known.fill(Known::Nothing);
        self.absent = 0;
        self.trimmed.clear();
        self.trimmed_response = None;
        (self.end, self.until) = (None, None);
    }

    fn is_resending(&self) -> bool {
        self.end.is_some()
    }

    fn next(&self, una: Psn, cursor: Psn) -> Option<Psn> {
        let end = self.end?;
        let mut psn = cursor;
        while psn.before(end) {
            match self.known(psn) {
                Known::Nothing => return Some(psn),
                // The responder waits for the oldest packet, whatever it reported before.
                Known::Received if psn == una => return Some(psn),
                // Trimmed packets are sent separately.
                Known::Received | Known::Trimmed | Known::Repeated => {}
            }
            psn = psn.next();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_late_and_not_lost_until_enough_others_have_overtaken_it() {
        let mut selective = Selective::new(&SelectiveRepeat { reorder: 3, ..SelectiveRepeat::default() });
        // Near the end of the PSN space, to test the wraparound.
        let una = Psn::new(0xff_fffe);
        let unsent = una.add(20);
        for ahead in 1..=3 {
            assert_eq!(selective.on_received(una, unsent, una.add(ahead)), None, "{ahead} ahead");
            assert!(!selective.is_resending());
        }
        assert_eq!(selective.on_received(una, unsent, una.add(4)), Some((una, true)), "it is lost");
        assert_eq!(selective.next(una, una), Some(una));
        assert_eq!(selective.next(una, una.add(1)), None, "the others may be late only");
        // Packets 5 and 7 are also missing; packet 5 is four before packet 9.
        for ahead in [6, 8] {
            assert_eq!(selective.on_received(una, unsent, una.add(ahead)), Some((una.add(ahead - 5), false)));
            assert_eq!(selective.next(una, una.add(1)), None);
        }
        assert_eq!(selective.on_received(una, unsent, una.add(9)), Some((una.add(5), false)));
        assert_eq!(selective.next(una, una.add(1)), Some(una.add(5)));
        selective.on_timeout(una, unsent);
        assert_eq!(
            selective.next(una, una.add(6)),
            Some(una.add(7)),
            "after a timeout everything is sent that is missing"
        );
    }

    /// Packets that have left the network take no room in a window.
    #[test]
    fn received_and_trimmed_packets_are_absent() {
        let mut selective = Selective::new(&SelectiveRepeat { reorder: 16, ..SelectiveRepeat::default() });
        let una = Psn::new(0xff_fffe);
        let (at, unsent) = (|ahead| una.add(ahead), una.add(12));
        for (ahead, absent) in [(2, 1), (2, 1), (5, 2)] {
            selective.on_received(una, unsent, at(ahead));
            assert_eq!(selective.absent(), absent);
        }
        let asks = [1, 3, 5, 3].map(|ahead| selective.on_trimmed(at(ahead)));
        assert_eq!(asks, [Some(false), Some(false), None, None]);
        assert_eq!((selective.absent(), selective.next_trimmed()), (4, Some(at(1))));
        selective.repeated_trimmed();
        assert_eq!((selective.absent(), selective.next_trimmed()), (3, Some(at(3))));
        // A copy of the next one arrives.
        selective.on_received(una, unsent, at(3));
        assert_eq!((selective.absent(), selective.next_trimmed()), (3, None));
        let asks = [0, 4, 1].map(|ahead| selective.on_trimmed(at(ahead)));
        assert_eq!(asks, [Some(false), Some(false), Some(true)], "the last one was sent again before");
        selective.on_progress(una, at(4));
        assert_eq!((selective.absent(), selective.next_trimmed()), (2, Some(at(4))));
        selective.on_timeout(at(4), unsent);
        assert_eq!((selective.absent(), selective.next_trimmed()), (1, None));
        selective.on_go_back();
        assert_eq!(selective.absent(), 0);
    }
}
