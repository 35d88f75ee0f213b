//! What happens on a connection, in order: captured packets, and what follows from them.

use std::collections::{HashMap, HashSet};

use roce_packet::{Direction, Operation, Psn};

use super::marks::Marks;
use crate::analysis::Analysis;
use crate::connection::{Connection, View};
use crate::record::{Bits, Record, StreamId};
use crate::replay::{Cause, GapEnd, ORIGIN, Replay};
use crate::summary::{Requested, is_of};

/// Something that happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// When, on the clock of the tap near end 0.
    pub(super) time_ns: u64,
    /// Index of the end that sends or waits.
    pub(super) from: usize,
    pub(super) step: Step,
    pub(super) marks: Marks,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A captured packet: the index of its record.
    Packet(usize),
    /// Packets that were not captured; PSN relative to the first request.
    Missing { first: i64, count: u64, is_lost: bool, is_answer: bool },
    /// The requester waits until it sends again: since the record with the index `since`, and since it first
    /// sent the packet that it sends again.
    Timeout { waited_ns: u64, since: Option<usize>, first: Option<usize> },
}

/// Maximum number of packets between a loss and the packet that reveals it.
const FARTHEST: usize = 1 << 14;

/// Returns the events of a connection at the tap near end 0.
pub(super) fn events(analysis: &Analysis, connection: &Connection) -> Vec<Event> {
    let records = &analysis.records;
    let Some(view) = connection.view_of(0) else { return Vec::new() };
    let elsewhere =
        connection.lost(records, 1).filter_map(|record| Some((record.info()?.direction, record.psn)));
    let elsewhere = elsewhere.collect();
    let (streams, marks) = (connection.streams, HashMap::new());
    let mut scene = Scene { records, view, streams, elsewhere, marks, more: Vec::new() };
    for (end, replay) in view.replays.iter().enumerate() {
        scene.mark_requests(end, replay);
        scene.mark_answers(end, replay, connection.between.is_none());
        scene.add_timeouts(end, replay);
    }
    if let Some(between) = &connection.between {
        let [there, back] = &between.crossings;
        for index in &there.lost {
            scene.mark(*index, Marks::LOST);
        }
        // The tap near end 1 has seen them, and the one near end 0 has not. Their times are those at which
        // they would have arrived there, so that they stand between their neighbours.
        let ahead_ns = between.offset_ns.unwrap_or(0).saturating_sub(between.one_way_ns.unwrap_or(0).max(0));
        for index in &back.lost {
            let Some(record) = records.get(*index) else { continue };
            let time_ns = record.time_ns.wrapping_sub_signed(ahead_ns);
            let at = view
                .indices
                .partition_point(|one| records.get(*one).is_some_and(|record| record.time_ns <= time_ns));
            let event = Event { time_ns, from: 1, step: Step::Packet(*index), marks: Marks::LOST };
            scene.more.push((at, event));
        }
    }
    scene.into_events()
}

struct Scene<'a> {
    records: &'a [Record],
    view: &'a View,
    streams: [Option<StreamId>; 2],
    /// Lost packets of end 1 that the tap near end 1 has seen. They have rows of their own.
    elsewhere: HashSet<(Direction, Psn)>,
    /// Marks by the index of a record.
    marks: HashMap<usize, Marks>,
    /// Events that are not packets of the view, each with the position of the packet that follows it.
    more: Vec<(usize, Event)>,
}

impl Scene<'_> {
    fn mark(&mut self, index: usize, marks: Marks) {
        *self.marks.entry(index).or_default() |= marks;
    }

    fn stream(&self, end: usize) -> Option<StreamId> {
        self.streams.get(end).copied().flatten()
    }

    /// Returns whether the tap near end 1 has seen all of these packets of end 1, which were then lost.
    fn is_elsewhere(&self, direction: Direction, replay: &Replay, first: u64, count: u64) -> bool {
        let base = replay.sent.get(&ORIGIN).and_then(|sent| self.records.get(sent.first));
        base.is_some_and(|base| {
            let psn = |number: u64| base.psn.add((number.wrapping_sub(ORIGIN) & u64::from(Psn::MASK)) as u32);
            let is_seen = |number: u64| self.elsewhere.contains(&(direction, psn(number)));
            count <= self.elsewhere.len() as u64 && (first..first.saturating_add(count)).all(is_seen)
        })
    }

    /// Adds an event in front of a packet of the view.
    fn insert(&mut self, before: usize, from: usize, step: Step) {
        let time_ns = self.records.get(before).map_or(0, |record| record.time_ns);
        let at = self.view.indices.partition_point(|index| *index < before);
        self.more.push((at, Event { time_ns, from, step, marks: Marks::empty() }));
    }

    /// Marks requests that came again, twice or late, and adds those that are missing.
    fn mark_requests(&mut self, end: usize, replay: &Replay) {
        let stream = self.stream(end);
        let is_request = |index: &usize| {
            self.records.get(*index).is_some_and(|record| {
                is_of(record, stream)
                    && record.is_sound()
                    && !record.bits.contains(Bits::COPY)
                    && record.info().is_some_and(|info| info.direction == Direction::Request)
            })
        };
        let requests: Vec<usize> = self.view.indices.iter().copied().filter(is_request).collect();
        for resend in &replay.resends {
            let at = requests.partition_point(|index| *index < resend.at);
            let count = usize::try_from(resend.packets).unwrap_or(usize::MAX);
            for index in requests.iter().skip(at).take(count) {
                self.mark(*index, Marks::RESENT);
            }
        }
        for (_, second) in &replay.doubled {
            self.mark(*second, Marks::DOUBLED);
        }
        for index in &replay.overtaken {
            self.mark(*index, Marks::LATE);
        }
        for index in &replay.broken {
            self.mark(*index, Marks::BROKEN);
        }
        for gap in &replay.gaps {
            // What a requester leaves out when it sends again is not missing.
            let is_left_out = gap.is_of_resend && gap.end != GapEnd::Resent;
            let is_drawn = end == 1 && self.is_elsewhere(Direction::Request, replay, gap.first, gap.count);
            if gap.end != GapEnd::Overtaken && !is_left_out && !is_drawn {
                let is_lost = gap.end == GapEnd::Resent;
                self.insert(
                    gap.after,
                    end,
                    Step::Missing { first: relative(gap.first), count: gap.count, is_lost, is_answer: false },
                );
            }
        }
    }

    /// Marks the answers to the requests of an end. `is_inferred` means that lost packets follow from NAKs,
    /// because no other tap shows them.
    fn mark_answers(&mut self, end: usize, replay: &Replay, is_inferred: bool) {
        let other = 1_usize.saturating_sub(end);
        for nak in &replay.naks {
            self.mark(nak.at, Marks::NAK);
            if is_inferred && nak.shows_loss_behind() {
                self.mark_lost(nak.at, self.stream(end), Direction::Request);
            }
        }
        for rnr in &replay.rnr {
            self.mark(rnr.at, Marks::RNR);
        }
        for refusal in &replay.refusals {
            self.mark(refusal.at, Marks::REFUSED);
        }
        let requested = Requested::new(replay);
        for gap in &replay.response_gaps {
            if other == 1 && self.is_elsewhere(Direction::Response, replay, gap.first, gap.count) {
                continue;
            }
            let (first, count) = (relative(gap.first), gap.count);
            let is_lost = requested.covers(gap);
            self.insert(gap.after, other, Step::Missing { first, count, is_lost, is_answer: true });
        }
        for resend in &replay.resends {
            let is_behind = matches!(resend.cause, Cause::ImpliedNak(_)) && !requested.is_for_gap(resend.at);
            if is_inferred && is_behind {
                self.mark_lost(resend.at, self.stream(other), Direction::Response);
            }
            if is_inferred && resend.was_answered && matches!(resend.cause, Cause::Timeout { .. }) {
                self.mark_unheard(resend.at, [self.stream(end), self.stream(other)]);
            }
        }
    }

    /// Marks the answers after which a requester nevertheless sent a packet again because of a timeout. An
    /// answer from the second half of the wait may only have been late.
    fn mark_unheard(&mut self, again: usize, [requests, answers]: [Option<StreamId>; 2]) {
        let Some(record) = self.records.get(again) else { return };
        let Some(copy) = self.last_before(again, requests, Direction::Request, record.psn) else { return };
        let sent_ns = self.records.get(copy).map_or(0, |copy| copy.time_ns);
        let middle_ns = u64::midpoint(sent_ns, record.time_ns);
        let is_unheard = |index: &usize| {
            self.records.get(*index).is_some_and(|answer| {
                // Only this response of the READ is known to be lost.
                let is_later = answer.psn == record.psn
                    || answer.info().is_some_and(|info| info.operation == Operation::Acknowledge)
                        && record.psn.distance_to(answer.psn) <= Psn::MASK / 2;
                let is_answer = answer.info().is_some_and(|info| info.direction == Direction::Response);
                is_of(answer, answers) && is_answer && is_later && answer.time_ns <= middle_ns
            })
        };
        let between = self.before(again).take_while(|index| *index > copy);
        let unheard: Vec<usize> = between.filter(is_unheard).collect();
        unheard.into_iter().for_each(|index| self.mark(index, Marks::LOST));
    }

    /// Adds the timeouts of an end. An answer that was lost brought no progress, so the time counts from the
    /// last copy of the packet.
    fn add_timeouts(&mut self, end: usize, replay: &Replay) {
        for resend in &replay.resends {
            let Cause::Timeout { mut waited_ns, mut since } = resend.cause else { continue };
            let psn = self.records.get(resend.at).map(|record| record.psn);
            if since.is_some_and(|since| self.is_lost_answer(since))
                && let Some(copy) =
                    psn.and_then(|psn| self.last_before(resend.at, self.stream(end), Direction::Request, psn))
            {
                let time = |index: usize| self.records.get(index).map_or(0, |record| record.time_ns);
                (waited_ns, since) = (time(resend.at).saturating_sub(time(copy)), Some(copy));
            }
            let first = resend.first.filter(|first| Some(*first) != since);
            self.insert(resend.at, end, Step::Timeout { waited_ns, since, first });
        }
    }

    fn is_lost_answer(&self, index: usize) -> bool {
        self.records.get(index).is_some_and(|record| {
            let is_answer = record.info().is_some_and(|info| info.direction == Direction::Response);
            let is_marked = self.marks.get(&index).is_some_and(|marks| marks.contains(Marks::LOST));
            is_answer && (is_marked || record.bits.contains(Bits::DROPPED))
        })
    }

    /// Marks the last packet of a stream with the PSN of a later packet as lost.
    fn mark_lost(&mut self, later: usize, stream: Option<StreamId>, direction: Direction) {
        let psn = self.records.get(later).map(|record| record.psn);
        if let Some(index) = psn.and_then(|psn| self.last_before(later, stream, direction, psn)) {
            self.mark(index, Marks::LOST);
        }
    }

    /// Returns the last packet of a stream with this PSN before another packet, except acknowledgements.
    fn last_before(
        &self,
        later: usize,
        stream: Option<StreamId>,
        direction: Direction,
        psn: Psn,
    ) -> Option<usize> {
        let is_it = |record: &Record| {
            let info = record.info();
            is_of(record, stream)
                && record.psn == psn
                && info.is_some_and(|info| {
                    info.direction == direction && info.operation != Operation::Acknowledge
                })
        };
        self.before(later).find(|index| self.records.get(*index).is_some_and(is_it))
    }

    /// Returns the packets of the view before another one, the last one first.
    fn before(&self, later: usize) -> impl Iterator<Item = usize> {
        let end = self.view.indices.partition_point(|index| *index < later);
        self.view.indices.get(..end).unwrap_or_default().iter().rev().take(FARTHEST).copied()
    }

    fn into_events(mut self) -> Vec<Event> {
        self.more.sort_by_key(|(at, event)| (*at, event.time_ns));
        let mut more = std::mem::take(&mut self.more).into_iter().peekable();
        let mut events = Vec::with_capacity(self.view.indices.len());
        for (position, index) in self.view.indices.iter().enumerate() {
            while let Some((_, event)) = more.next_if(|(at, _)| *at <= position) {
                events.push(event);
            }
            let Some(record) = self.records.get(*index) else { continue };
            if record.bits.contains(Bits::COPY) {
                continue;
            }
            let mut marks = self.marks.get(index).copied().unwrap_or_default();
            marks.set(Marks::CE, record.ecn() == 0b11);
            marks.set(Marks::CNP, record.info().is_some_and(|info| info.operation == Operation::Cnp));
            marks.set(Marks::BROKEN, !record.is_sound());
            if record.bits.contains(Bits::DROPPED) {
                marks |= Marks::LOST;
            }
            let from = usize::from(!is_of(record, self.stream(0)));
            events.push(Event { time_ns: record.time_ns, from, step: Step::Packet(*index), marks });
        }
        events.extend(more.map(|(_, event)| event));
        events
    }
}

/// Returns an unwrapped PSN relative to that of the first request.
fn relative(psn: u64) -> i64 {
    psn.wrapping_sub(ORIGIN).cast_signed()
}
