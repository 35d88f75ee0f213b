//! Selective repeat: the requester sends only the packets again that the responder misses, and requests only
//! the responses again that it misses itself.

use alloc::collections::VecDeque;

use roce_packet::Psn;

use super::loss::LossRecovery;
use crate::recovery::SelectiveRepeat;

/// The state of selective repeat; see [`SelectiveRepeat`].
#[derive(Debug)]
pub(super) struct Selective {
    settings: SelectiveRepeat,
    /// The oldest unanswered PSN.
    una: Psn,
    /// The known states of the packets from `una` on. Nothing is known of packets behind them.
    known: VecDeque<Known>,
    /// Number of entries of `known` that are [absent](Known::is_absent).
    absent: u32,
    /// Trimmed packets that wait to be sent or requested again, all of them in flight and [`Known::Trimmed`]
    /// or [`Known::Asked`].
    trimmed: VecDeque<Psn>,
    /// The newest packet that reached the other end, if it overtook `una`.
    newest: Option<Psn>,
    /// Packets before this one were sent again, if it is behind `una`.
    repeated: Option<Psn>,
    /// The newest PSN up to which the responder has executed everything, if it is not before `una`.
    executed: Option<Psn>,
    /// End of the retransmission, `None` without one: packets before this one are sent again unless received.
    end: Option<Psn>,
    /// The first unsent packet when the loss was detected; a loss beyond it begins another episode.
    until: Option<Psn>,
}

/// The known state of the packet with a PSN in flight, which is a request without a response, or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The responder has the request.
    Received,
    /// The request was trimmed and waits to be sent again.
    Trimmed,
    /// The responder keeps the request for this response until it has those before.
    Kept,
    /// The response arrived.
    Answered,
    /// The response was trimmed and waits to be requested again.
    Asked,
    /// The packet was trimmed and then sent or requested again.
    Repeated,
}

impl Known {
    /// Tells whether a request packet is not in the network.
    const fn is_absent(self) -> bool {
        matches!(self, Self::Received | Self::Trimmed)
    }

    /// Tells whether the packet is to be sent or requested again.
    const fn waits(self) -> bool {
        matches!(self, Self::Trimmed | Self::Asked)
    }
}

impl Selective {
    pub(super) fn new(settings: &SelectiveRepeat) -> Self {
        Self {
            settings: *settings,
            una: Psn::new(0),
            known: VecDeque::new(),
            absent: 0,
            trimmed: VecDeque::new(),
            newest: None,
            repeated: None,
            executed: None,
            end: None,
            until: None,
        }
    }

    fn place(&self, psn: Psn) -> usize {
        self.una.distance_to(psn) as usize
    }

    fn known(&self, psn: Psn) -> Known {
        self.known.get(self.place(psn)).copied().unwrap_or(Known::Nothing)
    }

    /// Sets the state of a packet in flight.
    fn set(&mut self, psn: Psn, known: Known) {
        if psn.before(self.una) {
            return;
        }
        let place = self.place(psn);
        if place >= self.known.len() {
            self.known.resize(place + 1, Known::Nothing);
        }
        if let Some(entry) = self.known.get_mut(place) {
            let before = core::mem::replace(entry, known);
            self.absent = self.absent + u32::from(known.is_absent()) - u32::from(before.is_absent());
        }
    }

    /// Records that a packet has arrived where it belongs.
    fn note(&mut self, psn: Psn, known: Known) {
        if self.known(psn).waits() {
            // A copy arrived.
            self.trimmed.retain(|trimmed| *trimmed != psn);
        }
        self.set(psn, known);
    }

    /// Packets before `end` are lost. Returns the first packet of the retransmission that this starts, and
    /// whether it is the first of its loss episode.
    fn lose_before(&mut self, end: Psn, unsent: Psn) -> Option<(Psn, bool)> {
        // Packets that were sent again get time to arrive; the timer decides how long.
        let from = self.end.filter(|end| !end.before(self.una)).unwrap_or(self.una);
        if !from.before(end) {
            return None;
        }
        (self.end, self.repeated) = (Some(end), Some(end));
        Some((from, self.begins(unsent)))
    }

    /// Returns the PSNs in flight of a READ behind other requests, which has room in the window.
    fn in_flight_of(&self, first: Psn, last: Psn) -> impl Iterator<Item = Psn> + use<> {
        let first = if first.before(self.una) { self.una } else { first };
        let count = if last.before(first) { 0 } else { first.distance_to(last) + 1 };
        (0..count.min(self.settings.cap())).map(move |step| first.add(step))
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

    fn note_received(&mut self, psn: Psn) {
        self.note(psn, Known::Received);
    }

    fn note_kept(&mut self, first: Psn, last: Psn) {
        for psn in self.in_flight_of(first, last) {
            if self.known(psn) == Known::Nothing {
                self.set(psn, Known::Kept);
            }
        }
    }

    fn note_answered(&mut self, psn: Psn, (first, last): (Psn, Psn)) {
        if self.known(psn) == Known::Kept {
            // The request was executed since, so the other responses were sent too.
            for psn in self.in_flight_of(first, last) {
                if self.known(psn) == Known::Kept {
                    self.set(psn, Known::Nothing);
                }
            }
        }
        self.note(psn, Known::Answered);
    }

    fn is_answered(&self, psn: Psn) -> bool {
        self.known(psn) == Known::Answered
    }

    fn answered_from(&self, psn: Psn) -> u32 {
        let from = self.known.iter().skip(self.place(psn));
        from.take_while(|known| **known == Known::Answered).count() as u32
    }

    fn note_executed(&mut self, psn: Psn) -> Option<Psn> {
        let first = self.executed.map_or(self.una, Psn::next);
        if psn.before(first) {
            return None;
        }
        self.executed = Some(psn);
        Some(first)
    }

    fn executed(&self) -> Option<Psn> {
        self.executed
    }

    fn overtaken_by(&mut self, unsent: Psn, arrived: Psn) -> Option<(Psn, bool)> {
        let una = self.una;
        let ahead = una.distance_to(arrived);
        if ahead == 0 || ahead >= una.distance_to(unsent) {
            return None;
        }
        if self.newest.is_none_or(|newest| newest.before(arrived)) {
            self.newest = Some(arrived);
        }
        // Packets shortly before it may be late instead of lost.
        let late = self.settings.reorder.min(ahead);
        self.lose_before(arrived.sub(late), unsent)
    }

    fn lateness(&self) -> Option<u64> {
        // A packet that the responder has or keeps, but has not answered, is sent again too: see `next`.
        let is_missing = matches!(self.known(self.una), Known::Nothing | Known::Received | Known::Kept);
        let is_late = self.settings.reorder > 0 && self.newest.is_some() && self.repeated.is_none();
        (is_late && is_missing).then(|| u64::from(self.settings.rto_low.max(1)) * 1_000)
    }

    fn on_late(&mut self, unsent: Psn) -> Option<(Psn, bool)> {
        let newest = self.newest.filter(|_| self.lateness().is_some())?;
        self.lose_before(newest, unsent)
    }

    fn on_trimmed(&mut self, trimmed: Psn) -> Option<bool> {
        let is_repeated = match self.known(trimmed) {
            Known::Nothing => false,
            Known::Repeated => true,
            Known::Received | Known::Trimmed | Known::Kept | Known::Answered | Known::Asked => return None,
        };
        self.set(trimmed, Known::Trimmed);
        self.trimmed.push_back(trimmed);
        Some(is_repeated)
    }

    fn on_trimmed_response(&mut self, trimmed: Psn) -> bool {
        if matches!(self.known(trimmed), Known::Answered | Known::Asked) {
            return false;
        }
        self.set(trimmed, Known::Asked);
        self.trimmed.push_back(trimmed);
        true
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

    fn begins(&mut self, unsent: Psn) -> bool {
        let is_first = self.until.is_none();
        self.until = self.until.or(Some(unsent));
        is_first
    }

    fn on_timeout(&mut self, unsent: Psn) {
        (self.end, self.repeated) = (Some(unsent), Some(unsent));
        self.until = Some(unsent);
        // Trimmed packets are sent again with the others.
        self.trimmed.clear();
        self.absent = 0;
        for known in &mut self.known {
            match known {
                Known::Received => self.absent += 1,
                Known::Answered => {}
                Known::Nothing | Known::Trimmed | Known::Kept | Known::Asked | Known::Repeated => {
                    *known = Known::Nothing;
                }
            }
        }
    }

    #[inline(never)]
    fn on_progress(&mut self, una: Psn) {
        self.trimmed.retain(|trimmed| !trimmed.before(una));
        let passed = self.place(una).min(self.known.len());
        let absent = self.known.drain(..passed).filter(|known| known.is_absent()).count();
        self.absent -= absent as u32;
        self.una = una;
        self.executed = self.executed.filter(|executed| !executed.before(una));
        self.newest = self.newest.filter(|newest| una.before(*newest));
        self.repeated = self.repeated.filter(|repeated| una.before(*repeated));
        if self.until.is_some_and(|until| !una.before(until)) {
            (self.end, self.until) = (None, None);
        }
    }

    fn on_go_back(&mut self, una: Psn) {
        *self = Self { una, ..Self::new(&self.settings) };
    }

    fn is_resending(&self) -> bool {
        self.end.is_some()
    }

    fn next(&self, cursor: Psn) -> Option<Psn> {
        let end = self.end?;
        let mut psn = cursor;
        while psn.before(end) {
            match self.known(psn) {
                Known::Nothing => return Some(psn),
                // The responder waits for the oldest packet, whatever it reported before.
                Known::Received | Known::Kept if psn == self.una => return Some(psn),
                // Trimmed packets are sent separately.
                Known::Received
                | Known::Trimmed
                | Known::Kept
                | Known::Answered
                | Known::Asked
                | Known::Repeated => {}
            }
            psn = psn.next();
        }
        None
    }

    fn requested_again(&mut self, last: Psn) {
        if self.end.is_some_and(|end| !last.before(end)) {
            self.end = Some(last.next());
        }
    }

    fn missing_from(&self, psn: Psn, most: u32) -> u32 {
        let Some(end) = self.end else { return most };
        let is_missing = |step: &u32| {
            let psn = psn.add(*step);
            psn.before(end) && matches!(self.known(psn), Known::Nothing | Known::Kept)
        };
        1 + (1..most).take_while(is_missing).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selective(reorder: u32, una: Psn) -> Selective {
        let mut selective = Selective::new(&SelectiveRepeat { reorder, ..SelectiveRepeat::default() });
        selective.on_go_back(una);
        selective
    }

    /// Handles the report of an early request.
    fn received(selective: &mut Selective, unsent: Psn, psn: Psn) -> Option<(Psn, bool)> {
        selective.note_received(psn);
        selective.overtaken_by(unsent, psn)
    }

    #[test]
    fn a_packet_is_late_and_not_lost_until_enough_others_have_overtaken_it() {
        // Near the end of the PSN space, to test the wraparound.
        let una = Psn::new(0xff_fffe);
        let unsent = una.add(20);
        let mut selective = selective(3, una);
        for ahead in 1..=3 {
            assert_eq!(received(&mut selective, unsent, una.add(ahead)), None, "{ahead} ahead");
            assert!(!selective.is_resending());
        }
        assert_eq!(received(&mut selective, unsent, una.add(4)), Some((una, true)), "it is lost");
        assert_eq!(selective.next(una), Some(una));
        assert_eq!(selective.next(una.add(1)), None, "the others may be late only");
        // Packets 5 and 7 are also missing; packet 5 is four before packet 9.
        for ahead in [6, 8] {
            let lost = received(&mut selective, unsent, una.add(ahead));
            assert_eq!(lost, Some((una.add(ahead - 5), false)));
            assert_eq!(selective.next(una.add(1)), None);
        }
        assert_eq!(received(&mut selective, unsent, una.add(9)), Some((una.add(5), false)));
        assert_eq!(selective.next(una.add(1)), Some(una.add(5)));
        selective.on_timeout(unsent);
        assert_eq!(
            selective.next(una.add(6)),
            Some(una.add(7)),
            "after a timeout everything is sent that is missing"
        );
    }

    #[test]
    fn the_oldest_packet_is_late_while_others_overtake_it() {
        let una = Psn::new(0xff_fffe);
        let (at, unsent) = (|ahead| una.add(ahead), una.add(20));
        let mut late = selective(5, una);
        assert_eq!((late.lateness(), late.on_late(unsent)), (None, None), "nothing overtook it");
        received(&mut late, unsent, at(2));
        received(&mut late, unsent, at(4));
        assert_eq!(late.lateness(), Some(100_000));
        assert_eq!(late.on_late(unsent), Some((una, true)));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|ahead| late.next(at(ahead))),
            [0, 1, 3, 3, 19].map(|ahead| Some(at(ahead)).filter(|_| ahead < 4))
        );
        assert_eq!((late.lateness(), late.on_late(unsent)), (None, None), "it was sent again");
        received(&mut late, unsent, at(8));
        late.on_progress(at(1));
        assert_eq!(late.lateness(), None, "this one too");
        late.on_progress(at(5));
        assert_eq!(late.lateness(), Some(100_000), "this one was not");
        late.note_kept(at(5), at(5));
        assert_eq!(late.lateness(), Some(100_000), "its response is missing");
        late.on_trimmed(at(6));
        late.on_progress(at(6));
        assert_eq!(late.lateness(), None, "it is sent again by itself");
        late.on_go_back(at(6));
        assert_eq!(late.lateness(), None);
    }

    #[test]
    fn no_packet_is_late_where_nothing_may_be_overtaken() {
        let una = Psn::new(0xff_fffe);
        let (at, unsent) = (|ahead| una.add(ahead), una.add(20));
        let mut strict = selective(0, una);
        assert_eq!(received(&mut strict, unsent, at(3)), Some((una, true)));
        assert_eq!(strict.lateness(), None);
        received(&mut strict, at(25), at(23));
        // The end of the episode.
        strict.on_progress(at(20));
        assert_eq!(strict.lateness(), None, "it was sent again");
    }

    /// Packets that have left the network take no room in a window.
    #[test]
    fn received_and_trimmed_packets_are_absent() {
        let una = Psn::new(0xff_fffe);
        let (at, unsent) = (|ahead| una.add(ahead), una.add(12));
        let mut selective = selective(16, una);
        for (ahead, absent) in [(2, 1), (2, 1), (5, 2)] {
            selective.note_received(at(ahead));
            assert_eq!(selective.absent(), absent);
        }
        let asks = [1, 3, 5, 3].map(|ahead| selective.on_trimmed(at(ahead)));
        assert_eq!(asks, [Some(false), Some(false), None, None]);
        assert_eq!((selective.absent(), selective.next_trimmed()), (4, Some(at(1))));
        selective.repeated_trimmed();
        assert_eq!((selective.absent(), selective.next_trimmed()), (3, Some(at(3))));
        // A copy of the next one arrives.
        selective.note_received(at(3));
        assert_eq!((selective.absent(), selective.next_trimmed()), (3, None));
        let asks = [0, 4, 1].map(|ahead| selective.on_trimmed(at(ahead)));
        assert_eq!(asks, [Some(false), Some(false), Some(true)], "the last one was sent again before");
        selective.on_progress(at(4));
        assert_eq!((selective.absent(), selective.next_trimmed()), (2, Some(at(4))));
        selective.on_timeout(unsent);
        assert_eq!((selective.absent(), selective.next_trimmed()), (1, None));
        selective.on_go_back(at(4));
        assert_eq!(selective.absent(), 0);
    }

    /// A READ of eight packets behind a request, whose request the responder keeps at first.
    #[test]
    fn missing_responses_are_requested_in_runs() {
        let una = Psn::new(0xff_fffe);
        let (at, unsent) = (|ahead| una.add(ahead), una.add(9));
        let mut selective = selective(0, una);
        selective.note_kept(at(1), at(8));
        assert_eq!(selective.overtaken_by(unsent, at(1)), Some((una, true)));
        assert_eq!((selective.next(una), selective.next(at(1))), (Some(una), None));
        assert_eq!(selective.absent(), 0, "a response takes no room in a window of requests");
        selective.on_progress(at(1));
        for ahead in [3, 7] {
            selective.note_answered(at(ahead), (at(1), at(8)));
            selective.overtaken_by(unsent, at(ahead));
        }
        let runs = [(1, 2), (4, 3)];
        let mut cursor = at(1);
        for (ahead, count) in runs {
            assert_eq!(selective.next(cursor), Some(at(ahead)));
            assert_eq!(selective.missing_from(at(ahead), 20), count);
            cursor = at(ahead + count);
        }
        assert_eq!(selective.next(cursor), None, "the last one is not overdue");
        assert!(selective.on_trimmed_response(at(4)) && !selective.on_trimmed_response(at(4)));
        assert!(!selective.on_trimmed_response(at(3)), "it arrived");
        assert_eq!((selective.next_trimmed(), selective.answered_from(at(3))), (Some(at(4)), 1));
        selective.note_answered(at(4), (at(1), at(8)));
        assert_eq!((selective.next_trimmed(), selective.answered_from(at(3))), (None, 2));
    }

    /// An executed request is news once, and is forgotten when it is acknowledged.
    #[test]
    fn executed_requests_are_new_once() {
        let una = Psn::new(0xff_fffe);
        let at = |ahead| una.add(ahead);
        let mut selective = selective(0, una);
        assert_eq!(selective.note_executed(at(3)), Some(una));
        assert_eq!((selective.note_executed(at(3)), selective.note_executed(at(2))), (None, None));
        assert_eq!((selective.note_executed(at(4)), selective.executed()), (Some(at(4)), Some(at(4))));
        selective.on_progress(at(5));
        assert_eq!(selective.executed(), None);
    }
}
