//! Responder resources: READs and atomics that can be answered, and answered again (IBTA 9.7.5.1.2).

use alloc::collections::VecDeque;

use roce_packet::{Msn, Psn};

use super::flight::FEW_UNDER_WAY;
use crate::congestion::LostAfter;
use crate::ids::{PdId, RKey};
use crate::time::Instant;

/// What a resource answers with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// READ: the bytes of the range, read when each packet is made.
    Read { pd: PdId, va: u64, rkey: RKey, len: u32 },
    /// An atomic: the value it found.
    Atomic { original: u64 },
    /// ATOMIC WRITE or FLUSH: an empty READ Response Only.
    Empty,
}

/// A READ response that is being sent: the part of the range that is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) psn: Psn,
    pub(super) va: u64,
    pub(super) left: u32,
    /// Whether a packet of this response went out already: decides between First and Middle.
    pub(super) begun: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) first_psn: Psn,
    pub(super) psns: u32,
    /// The message count that the answer carries.
    pub(super) msn: Msn,
    pub(super) answer: Answer,
    /// What is still to be sent; `None` when the peer waits for nothing.
    pub(super) sending: Option<Sending>,
    /// Whether the whole answer was sent at least once.
    pub(super) answered: bool,
    /// The part of a READ response that was sent last; `None` before the first packet.
    pub(super) train: Option<Train>,
}

/// Why a peer asks for a READ response again.
pub(super) enum Repeated {
    /// It was lost.
    Lost(LostAfter),
    /// It was lost, but too few packets were under way to fill a queue.
    OfFew,
    /// It was lost together with another one, for which the peer asked before.
    Known,
    /// It has not left yet.
    Unsent,
}

/// The packets of a READ response that left one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    /// The first PSN, and when it left.
    pub(super) first: Psn,
    pub(super) began: Instant,
    /// When the last packet left, once it has.
    pub(super) ended: Option<Instant>,
    /// How many losses had been seen when it began.
    pub(super) round: u32,
    /// The first packet of the responses that left before it without a pause, and when that left.
    pub(super) stream: (Psn, Instant),
}

impl Train {
    /// A response begins at `psn`, after another one that may have left without a pause before.
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
    fn contains(&self, psn: Psn) -> bool {
        self.first_psn.distance_to(psn) < self.psns
    }

    /// The first PSN that has not left yet.
    fn unsent(&self) -> Psn {
        let end = self.first_psn.add(self.psns);
        self.sending.filter(|sending| sending.begun).map_or(end, |sending| sending.psn)
    }

    /// What it says when the peer asks again from `psn` on. Of all answers, those before `unsent` have left.
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
        // The packets of a train are spaced evenly, and `sent` is more than `packets`.
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

/// The last `max_dest_rd_atomic` READs and atomics in the order of their PSNs.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    limit: usize,
    /// How many of the ring have something to send. It changes with each `sending` that becomes or ceases to be `Some`, so it
    /// is at least 1 wherever one is found.
    waiting: usize,
}

impl Resources {
    /// How many there may be. The first one allocates room for all: most queue pairs of many never have one.
    pub(super) fn set_limit(&mut self, limit: u8) {
        self.limit = usize::from(limit);
        while self.ring.len() > self.limit {
            self.drop_oldest();
        }
    }

    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.waiting = 0;
    }

    fn drop_oldest(&mut self) {
        if let Some(resource) = self.ring.pop_front()
            && resource.sending.is_some()
        {
            self.waiting -= 1;
        }
    }

    /// Whether one more request fits. The oldest one makes room unless its answer is still being sent:
    /// then the peer exceeds its limit of outstanding requests. A repeated answer does not count: a
    /// peer that sends a new request has received the answer.
    pub(super) fn has_room(&self) -> bool {
        let is_free = |oldest: &Resource| oldest.sending.is_none() || oldest.answered;
        self.limit > 0 && (self.ring.len() < self.limit || self.ring.front().is_some_and(is_free))
    }

    pub(super) fn push(&mut self, resource: Resource) {
        if self.ring.len() >= self.limit {
            self.drop_oldest();
        }
        if resource.sending.is_some() {
            self.waiting += 1;
        }
        if self.ring.capacity() < self.limit {
            self.ring.reserve_exact(self.limit - self.ring.len());
        }
        self.ring.push_back(resource);
    }

    /// The record of the latest request that used `psn`. Where an older one has stayed since the PSNs wrapped around, the
    /// newer one is returned.
    pub(super) fn find(&mut self, psn: Psn) -> Option<&mut Resource> {
        self.ring.iter_mut().rev().find(|resource| resource.contains(psn))
    }

    /// The first PSN after all that has left; `None` if nothing has.
    pub(super) fn unsent(&self) -> Option<Psn> {
        self.ring.iter().rev().find(|resource| resource.train.is_some()).map(Resource::unsent)
    }

    /// Makes a resource send (again); called after [`Self::find`] on the same PSN.
    pub(super) fn send_again(&mut self, psn: Psn, sending: Sending) {
        if let Some(resource) = self.ring.iter_mut().rev().find(|resource| resource.contains(psn))
            && resource.sending.replace(sending).is_none()
        {
            self.waiting += 1;
        }
    }

    /// Whether none of them has anything to send.
    pub(super) const fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// The oldest answer that is still to be sent.
    pub(super) fn next(&mut self) -> Option<&mut Resource> {
        if self.waiting == 0 {
            return None;
        }
        self.ring.iter_mut().find(|resource| resource.sending.is_some())
    }

    /// The first packet of the answer that [`Self::next`] gives leaves now.
    pub(super) fn begins(&mut self, psn: Psn, now: Instant, round: u32) {
        let Some(position) = self.ring.iter().position(|resource| resource.sending.is_some()) else { return };
        let before = position.checked_sub(1).and_then(|before| self.ring.get(before));
        let is_neighbour = |before: &&Resource| before.first_psn.add(before.psns) == psn;
        let before = before.filter(is_neighbour).and_then(|before| before.train.as_ref());
        let train = Train::after(before, psn, now, round);
        if let Some(resource) = self.ring.get_mut(position) {
            resource.train = Some(train);
        }
    }

    /// The resource that [`Self::next`] gave has nothing left to send.
    pub(super) fn finished(&mut self, now: Instant) {
        if let Some(resource) = self.ring.iter_mut().find(|resource| resource.sending.is_some()) {
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
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
