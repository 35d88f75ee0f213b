//! Responder resources: READs and atomics whose answer is sent, or sent again (IBTA 9.7.5.1.2).

use alloc::collections::VecDeque;

use roce_packet::{Msn, Psn};

use super::flight::FEW_UNDER_WAY;
use crate::Instant;
use crate::congestion::LostAfter;
use crate::ids::{PdId, RKey};

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// READ: the bytes of the range, read when each packet is written. `binding` is that of the key when the
    /// request was executed.
    Read { pd: PdId, va: u64, rkey: RKey, len: u32, binding: u32 },
    /// Atomic: the original value.
    Atomic { original: u64 },
    /// ATOMIC WRITE or FLUSH: an empty READ Response Only.
    Empty,
}

/// An answer that is being sent: the remaining part of the range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) psn: Psn,
    pub(super) va: u64,
    pub(super) left: u32,
    /// Whether a packet of this response has left; decides between First and Middle.
    pub(super) begun: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) first_psn: Psn,
    pub(super) psns: u32,
    /// The MSN in the answer.
    pub(super) msn: Msn,
    pub(super) answer: Answer,
    /// The part of the answer that is still to be sent, or `None` if there is nothing to send.
    pub(super) sending: Option<Sending>,
    /// Whether the whole answer was sent at least once.
    pub(super) answered: bool,
    /// The part of a READ response that was sent last, or `None` before the first packet.
    pub(super) train: Option<Train>,
}

/// The reason why a peer requests a READ response again.
pub(super) enum Repeated {
    /// The response was lost.
    Lost(LostAfter),
    /// The response was lost, but too few packets were in flight to fill a queue.
    OfFew,
    /// The loss is already known: the peer has requested another response of the same loss.
    Known,
    /// The response has not left yet.
    Unsent,
}

/// Packets of a READ response that left consecutively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    /// The first PSN, and the time at which it left.
    pub(super) first: Psn,
    pub(super) began: Instant,
    /// The time at which the last packet left, once it has.
    pub(super) ended: Option<Instant>,
    /// Number of known losses when the train began.
    pub(super) round: u32,
    /// The first packet of the preceding responses that left without a pause, and the time at which it left.
    pub(super) stream: (Psn, Instant),
}

impl Train {
    /// Begins a train at `psn`. It continues the stream of `before` if there was no pause between them.
    pub(super) fn after(before: Option<&Self>, psn: Psn, now: Instant, round: u32) -> Self {
        const LONGEST: u32 = 1 << 20;
        let joins = |before: &&Self| {
            let (first, began) = before.stream;
            before.round == round
                && first.distance_to(psn) < LONGEST
                && before.ended.is_some_and(|ended| now.since(ended) <= ended.since(began) / 8)
        };
        let stream = before.filter(joins).map_or((psn, now), |before| before.stream);
        Self { first: psn, began: now, ended: None, round, stream }
    }
}

impl Resource {
    /// Tells whether a new resource may take this place.
    fn is_free(&self) -> bool {
        self.sending.is_none() || self.answered
    }

    fn contains(&self, psn: Psn) -> bool {
        self.first_psn.distance_to(psn) < self.psns
    }

    /// Returns the first PSN of this answer that has not left yet.
    fn unsent(&self) -> Psn {
        let end = self.first_psn.add(self.psns);
        self.sending.filter(|sending| sending.begun).map_or(end, |sending| sending.psn)
    }

    /// Returns the reason for a repeated request from `psn` on. The answers before `unsent` have left.
    pub(super) fn repeated_from(&self, psn: Psn, unsent: Psn, now: Instant, round: u32) -> Repeated {
        let Some(train) = self.train else { return Repeated::Unsent };
        let sent = match self.sending {
            Some(sending) if !sending.begun => return Repeated::Known,
            Some(sending) => train.first.distance_to(sending.psn),
            None => train.first.distance_to(self.first_psn.add(self.psns)),
        };
        let packets = train.first.distance_to(psn);
        if packets >= self.psns {
            return Repeated::Known;
        }
        if packets >= sent {
            return Repeated::Unsent;
        }
        if train.round != round {
            return Repeated::Known;
        }
        let whole = train.ended.unwrap_or(now).since(train.began);
        // The packets of a train are spaced evenly, and `sent` is greater than `packets`.
        let time = whole / sent * packets;
        let delay = now.since(train.began).saturating_sub(time);
        let (first, began) = train.stream;
        if first.distance_to(unsent) < FEW_UNDER_WAY {
            return Repeated::OfFew;
        }
        let (packets, time) = (first.distance_to(psn), train.began.since(began) + time);
        Repeated::Lost(LostAfter { packets, time, delay, by_timeout: false, psn })
    }
}

/// The last `max_dest_rd_atomic` READs and atomics, in the order of their PSNs.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    limit: usize,
    /// With selective repeat: parts of READ responses to be sent again, before all others. Each is a copy of
    /// its resource.
    parts: VecDeque<Resource>,
    /// Number of resources with something to send. It changes whenever a `sending` becomes or ceases to be
    /// `Some`, so it is at least 1 while such a resource exists.
    waiting: usize,
}

impl Resources {
    /// Sets the maximum number of resources. Memory for all is allocated with the first one, because most
    /// queue pairs of a large number never use any.
    pub(super) fn set_limit(&mut self, limit: u8) {
        self.limit = usize::from(limit);
        self.make_room(self.limit);
    }

    /// Drops the oldest resources beyond `count`, as long as their first answers have left.
    fn make_room(&mut self, count: usize) {
        while self.ring.len() > count && self.ring.front().is_some_and(Resource::is_free) {
            self.drop_oldest();
        }
    }

    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.parts.clear();
        self.waiting = 0;
    }

    fn drop_oldest(&mut self) {
        if let Some(resource) = self.ring.pop_front()
            && resource.sending.is_some()
        {
            self.waiting -= 1;
        }
    }

    /// Tells whether one more request fits. The oldest resource is replaced unless its first answer is still
    /// being sent: in that case the peer exceeds its limit of outstanding requests. A repeated answer does
    /// not count, because a peer that sends a new request has received the answer.
    pub(super) fn has_room(&self) -> bool {
        // More than `limit` resources exist if the limit was lowered.
        let kept = || self.ring.iter().skip_while(|resource| resource.is_free()).count();
        self.limit > 0 && (self.ring.len() < self.limit || kept() < self.limit)
    }

    pub(super) fn push(&mut self, resource: Resource) {
        self.make_room(self.limit.saturating_sub(1));
        if resource.sending.is_some() {
            self.waiting += 1;
        }
        if self.ring.capacity() < self.limit {
            self.ring.reserve_exact(self.limit - self.ring.len());
        }
        self.ring.push_back(resource);
    }

    /// Returns the record of the latest request that used `psn`. An older record with the same PSN may exist
    /// after the PSNs wrapped around.
    pub(super) fn find(&mut self, psn: Psn) -> Option<&mut Resource> {
        self.ring.iter_mut().rev().find(|resource| resource.contains(psn))
    }

    /// Returns the first PSN after all packets that have left, or `None` if none has.
    pub(super) fn unsent(&self) -> Option<Psn> {
        self.ring.iter().rev().find(|resource| resource.train.is_some()).map(Resource::unsent)
    }

    /// Makes a resource send its answer (again). Call this after [`Self::find`] with the same PSN.
    pub(super) fn send_again(&mut self, psn: Psn, sending: Sending) {
        if let Some(resource) = self.ring.iter_mut().rev().find(|resource| resource.contains(psn))
            && resource.sending.replace(sending).is_none()
        {
            self.waiting += 1;
        }
    }

    /// Sends a part of the answer with the PSN `part.psn` again, apart from what is still to be sent of it.
    /// Does nothing if the part is still to be sent anyway. Returns `false` if `most` parts wait already.
    pub(super) fn send_part(&mut self, part: Sending, mtu: u32, most: u32) -> bool {
        let Some(resource) = self.ring.iter().rev().find(|resource| resource.contains(part.psn)) else {
            return false;
        };
        let mut part = part;
        if let Some(rest) = resource.sending {
            if !part.psn.before(rest.psn) {
                return true;
            }
            part.left = part.left.min(part.psn.distance_to(rest.psn).saturating_mul(mtu));
        }
        let mut waiting = self.parts.iter_mut().filter_map(|known| known.sending.as_mut());
        if let Some(known) = waiting.find(|known| known.psn == part.psn) {
            known.left = known.left.max(part.left);
            return true;
        }
        if self.parts.len() >= most as usize {
            return false;
        }
        self.parts.push_back(Resource { sending: Some(part), ..*resource });
        self.waiting += 1;
        true
    }

    /// Returns the number of parts to be sent again.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Tells whether no resource has anything to send.
    pub(super) const fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the part to be sent again, or the oldest resource with something to send.
    pub(super) fn next(&mut self) -> Option<&mut Resource> {
        if self.waiting == 0 {
            return None;
        }
        let parts = self.parts.iter_mut();
        parts.chain(self.ring.iter_mut().filter(|resource| resource.sending.is_some())).next()
    }

    /// Records that the first packet of the answer returned by [`Self::next`] leaves now.
    pub(super) fn begins(&mut self, psn: Psn, now: Instant, round: u32) {
        if !self.parts.is_empty() {
            return;
        }
        let Some(position) = self.ring.iter().position(|resource| resource.sending.is_some()) else { return };
        let before = position.checked_sub(1).and_then(|before| self.ring.get(before));
        let is_neighbour = |before: &&Resource| before.first_psn.add(before.psns) == psn;
        let before = before.filter(is_neighbour).and_then(|before| before.train.as_ref());
        let train = Train::after(before, psn, now, round);
        if let Some(resource) = self.ring.get_mut(position) {
            resource.train = Some(train);
        }
    }

    /// Returns the number of answers and parts that are still to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Records that the resource returned by [`Self::next`] has nothing left to send.
    pub(super) fn finished(&mut self, now: Instant) {
        if self.parts.pop_front().is_some() {
            self.waiting -= 1;
        } else if let Some(resource) = self.ring.iter_mut().find(|resource| resource.sending.is_some()) {
            if let Some(train) = &mut resource.train {
                train.ended = Some(now);
            }
            resource.sending = None;
            resource.answered = true;
            self.waiting -= 1;
        }
    }

    /// Discards all answers that are still to be sent.
    pub(super) fn abandon(&mut self) {
        for resource in &mut self.ring {
            resource.sending = None;
        }
        self.parts.clear();
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a lower limit dropped answers that had not left yet.
    #[test]
    fn a_lower_limit_keeps_the_answers_that_have_not_left() {
        let mut resources = Resources::default();
        resources.set_limit(4);
        for number in 0..4 {
            let psn = Psn::new(number);
            resources.push(Resource {
                first_psn: psn,
                psns: 1,
                msn: Msn::new(number),
                answer: Answer::Empty,
                sending: (number > 0).then_some(Sending { psn, va: 0, left: 0, begun: false }),
                answered: number == 0,
                train: None,
            });
        }
        resources.set_limit(2);
        assert_eq!((resources.ring.len(), resources.waiting()), (3, 3), "only the first one has left");
        assert!(!resources.has_room());
        resources.finished(Instant::ZERO);
        assert!(!resources.has_room(), "two are as many as the limit allows");
        resources.finished(Instant::ZERO);
        assert!(resources.has_room());
        resources.push(Resource { first_psn: Psn::new(9), ..*resources.ring.back().unwrap() });
        assert_eq!((resources.ring.len(), resources.waiting()), (2, 2));
    }

    #[test]
    fn the_newest_record_with_a_psn_is_repeated() {
        let mut resources = Resources::default();
        resources.set_limit(4);
        for original in [1, 2] {
            resources.push(Resource {
                first_psn: Psn::new(7),
                psns: 1,
                msn: Msn::new(1),
                answer: Answer::Atomic { original },
                sending: None,
                answered: true,
                train: None,
            });
        }
        let found = resources.find(Psn::new(7)).map(|resource| resource.answer);
        assert!(matches!(found, Some(Answer::Atomic { original: 2 })));
        resources.send_again(Psn::new(7), Sending { psn: Psn::new(7), va: 0, left: 0, begun: false });
        let next = resources.next().map(|resource| resource.answer);
        assert!(matches!(next, Some(Answer::Atomic { original: 2 })));
    }

    #[test]
    fn parts_leave_before_the_rest_and_apart_from_it() {
        const MTU: u32 = 256;
        let mut resources = Resources::default();
        resources.set_limit(4);
        let sending =
            |psn: u32, packets: u32| Sending { psn: Psn::new(psn), va: 0, left: packets * MTU, begun: false };
        resources.push(Resource {
            first_psn: Psn::new(10),
            psns: 8,
            msn: Msn::new(1),
            answer: Answer::Read { pd: PdId(0), va: 0, rkey: RKey(1), len: 8 * MTU, binding: 0 },
            sending: Some(sending(14, 4)),
            answered: false,
            train: None,
        });
        let next = |resources: &mut Resources| {
            let sending = resources.next().and_then(|resource| resource.sending);
            sending.map(|sending| (sending.psn.get(), sending.left / MTU))
        };
        assert!(resources.send_part(sending(11, 1), MTU, 2));
        assert_eq!(next(&mut resources), Some((11, 1)));
        assert!(resources.send_part(sending(11, 7), MTU, 2));
        assert_eq!((next(&mut resources), resources.parts()), (Some((11, 3)), 1), "the others leave anyway");
        assert!(resources.send_part(sending(15, 2), MTU, 2));
        assert_eq!(resources.parts(), 1, "it leaves anyway");
        assert!(resources.send_part(sending(10, 1), MTU, 2) && !resources.send_part(sending(12, 1), MTU, 2));
        for expected in [(11, 3), (10, 1), (14, 4)] {
            assert!(!resources.is_idle());
            assert_eq!(next(&mut resources), Some(expected));
            resources.finished(Instant::ZERO);
        }
        assert!(resources.is_idle());
    }
}
