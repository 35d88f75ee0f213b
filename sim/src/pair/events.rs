//! Steps of one event, and actions on single packets of the link.

use std::time::Duration;

use roce_transport::{Identification, Instant, Pending, Received, Verdict};

use super::packet::InFlight;
use super::{Action, OnLink, Pair, Side};

/// The event that [`Pair::step_event`] handled. The numbers are those of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairEvent {
    /// A packet left its sender.
    Departure(u64),
    /// A packet arrived, with the verdict of the receiving engine.
    Arrival(u64, Verdict),
    /// The engine of this side handled its expired timers. It may have had none, because
    /// [`poll_timeout`](roce_transport::Engine::poll_timeout) may return an earlier time than needed.
    Timers(Side),
}

impl Pair {
    /// Returns the packets on the link, in the order of their arrival.
    pub fn on_link(&self) -> impl Iterator<Item = OnLink<'_>> {
        self.in_flight.iter().map(|(&(arrives, number), packet)| OnLink {
            number,
            from: packet.to.other(),
            sent: packet.sent,
            arrives,
            path: packet.path,
            identification: packet.identification,
            bytes: &packet.bytes,
        })
    }

    /// Returns the key of a packet in the map of packets on the link.
    fn key_of(&self, number: u64) -> Option<(Instant, u64)> {
        self.in_flight.keys().find(|(_, other)| *other == number).copied()
    }

    /// Carries out an action on a packet that is on the link. Returns the number of the packet, or that of
    /// the copy after [`Action::Duplicate`]. Returns `None` if no packet on the link has this number.
    ///
    /// A copy arrives later than the packet by the time that a packet occupies the link.
    pub fn act(&mut self, number: u64, action: Action) -> Option<u64> {
        let key = self.key_of(number)?;
        match action {
            Action::Pass => {}
            Action::Drop => {
                self.in_flight.remove(&key)?;
            }
            Action::Duplicate => {
                let copy = self.in_flight.get(&key)?.clone();
                self.sequence += 1;
                let arrives = key.0.plus_nanos(self.packet_time_ns);
                self.in_flight.insert((arrives, self.sequence), copy);
                return Some(self.sequence);
            }
            Action::Delay(nanos) => {
                let packet = self.in_flight.remove(&key)?;
                self.in_flight.insert((key.0.plus_nanos(nanos), number), packet);
            }
            Action::FlipBit(_) | Action::Mark | Action::Trim => {
                self.in_flight.get_mut(&key)?.change(action);
            }
        }
        Some(number)
    }

    /// Delivers a packet that is on the link now, before the others. Returns `None` if no packet on the link
    /// has this number.
    pub fn deliver_now(&mut self, number: u64) -> Option<Verdict> {
        let key = self.key_of(number)?;
        let packet = self.in_flight.remove(&key)?;
        let verdict = self.arrive(&packet);
        self.take_events();
        Some(verdict)
    }

    /// Passes a packet to the engine that it is for.
    pub(super) fn arrive(&mut self, packet: &InFlight) -> Verdict {
        let known = Identification::Known { identification: packet.identification, dont_fragment: true };
        let received = match packet.trimmed {
            false => Received::whole(packet.path, known, &packet.bytes),
            true => Received::trimmed(packet.path, &packet.bytes),
        };
        let now = self.now;
        let verdict = self.host_mut(packet.to).engine.handle(now, &received);
        self.verdicts.push((packet.to, verdict));
        verdict
    }

    /// Handles one event: a departure, an arrival, or the timers of one side. Returns `None` if no event is
    /// left.
    ///
    /// [`step`](Self::step) lets all packets of an engine leave at once, and passes simultaneous arrivals to
    /// the engine as a burst. Here each packet is an event, and a packet leaves only when the packet before
    /// it no longer occupies the link ([`packet_time_ns`](Self::packet_time_ns)). At equal times, departures
    /// precede arrivals, and arrivals precede timers.
    pub fn step_event(&mut self) -> Option<PairEvent> {
        loop {
            for side in [Side::A, Side::B] {
                if self.free_at[side as usize] <= self.now
                    && let Some(number) = self.send_next(side)
                {
                    self.take_events();
                    return Some(PairEvent::Departure(number));
                }
            }
            let departure = [Side::A, Side::B].into_iter().filter_map(|side| self.next_departure(side)).min();
            let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
            let timer = [Side::A, Side::B].into_iter().filter_map(|side| Some((self.deadline(side)?, side)));
            let timer = timer.min();
            let next = [departure, arrival, timer.map(|(at, _)| at)].into_iter().flatten().min()?;
            self.now = self.now.max(next);
            if departure == Some(next) {
                continue;
            }
            if arrival == Some(next)
                && let Some(((_, number), packet)) = self.in_flight.pop_first()
            {
                let verdict = self.arrive(&packet);
                self.take_events();
                return Some(PairEvent::Arrival(number, verdict));
            }
            let (_, side) = timer?;
            let now = self.now;
            self.host_mut(side).engine.handle_timeout(now, Duration::ZERO);
            self.take_events();
            return Some(PairEvent::Timers(side));
        }
    }

    /// Returns the time at which the link becomes free for a packet of this side, if the link is busy and the
    /// engine may have a packet.
    fn next_departure(&self, side: Side) -> Option<Instant> {
        let free_at = self.free_at[side as usize];
        let has_packet = self.host(side).engine.pending(self.now) != Pending::Nothing;
        (free_at > self.now && has_packet && !self.blocked[side as usize]).then_some(free_at)
    }

    fn deadline(&self, side: Side) -> Option<Instant> {
        self.host(side).engine.poll_timeout()
    }

    /// Collects the events of both engines.
    fn take_events(&mut self) {
        for host in &mut self.hosts {
            while let Some(event) = host.engine.poll_event() {
                host.events.push(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::{Ecn, PathMtu};
    use roce_transport::{DropReason, QpType, SendOp, SendWr, WcStatus};

    use super::super::Settings;
    use super::*;

    const PACKET_NS: u64 = 100;

    /// Returns a pair in which A has posted a WRITE of `packets` packets.
    fn writing(packets: usize) -> Pair {
        let mut pair = Pair::new(7);
        pair.packet_time_ns = PACKET_NS;
        let (a, _) = pair.connect_with(QpType::Rc, &Settings { mtu: PathMtu::Mtu256, ..Settings::default() });
        let source = pair.host(Side::A).memory_range(0, packets * 256);
        let op = SendOp::Write { remote_addr: super::super::MEMORY_BASE, rkey: pair.host(Side::B).rkey() };
        pair.post_send(Side::A, a, &SendWr::new(1, op, &[source])).expect("the queue is empty");
        pair
    }

    /// Handles all events, and returns them.
    fn all(pair: &mut Pair) -> Vec<PairEvent> {
        let mut events = Vec::new();
        while let Some(event) = pair.step_event() {
            if !matches!(event, PairEvent::Timers(_)) {
                events.push(event);
            }
        }
        assert_eq!(pair.in_flight(), 0);
        events
    }

    #[test]
    fn packets_leave_and_arrive_one_by_one() {
        use PairEvent::{Arrival, Departure};
        let mut pair = writing(3);
        let start = pair.now;
        let first: Vec<_> = (0..3).map(|_| pair.step_event()).collect();
        assert_eq!(first, [1, 2, 3].map(|number| Some(Departure(number))));
        let times =
            |packet: OnLink<'_>| (packet.number, packet.sent.since(start), packet.arrives.since(start));
        let nanos = Duration::from_nanos;
        let expected = [0, 1, 2].map(|index| {
            let sent = index * PACKET_NS;
            (index + 1, nanos(sent), nanos(sent + PACKET_NS + pair.link_delay_ns))
        });
        assert_eq!(pair.on_link().map(times).collect::<Vec<_>>(), expected);
        let rest = all(&mut pair);
        let handled = Verdict::Handled;
        let arrivals = [1, 2, 3].map(|number| Arrival(number, handled));
        assert_eq!(rest, [&arrivals[..], &[Departure(4), Arrival(4, handled)]].concat());
        assert_eq!(pair.completions(Side::A)[0].status, WcStatus::Success);
    }

    #[test]
    fn packets_on_the_link_are_changed_by_number() {
        let mut pair = writing(4);
        for _ in 0..4 {
            pair.step_event();
        }
        let arrives = |pair: &Pair, number| {
            pair.on_link().find(|packet| packet.number == number).map(|packet| packet.arrives)
        };
        assert_eq!(pair.act(9, Action::Drop), None, "there is no such packet");
        assert_eq!(pair.deliver_now(9), None);
        // The copy of packet 1 is a duplicate, packet 3 is damaged, and packet 4 overtakes packet 2.
        assert_eq!(pair.act(1, Action::Duplicate), Some(5));
        assert_eq!(pair.act(3, Action::FlipBit(8 * 20)), Some(3));
        let late = arrives(&pair, 2).map(|at| at.plus_nanos(50_000));
        assert_eq!(pair.act(2, Action::Delay(50_000)), Some(2));
        assert_eq!(arrives(&pair, 2), late);
        assert_eq!(pair.deliver_now(1), Some(Verdict::Handled));
        assert_eq!(arrives(&pair, 1), None);
        assert_eq!(pair.act(4, Action::Mark), Some(4));
        let marked = pair.on_link().find(|packet| packet.number == 4).expect("it is on the link");
        assert_eq!(marked.path.ecn(), Ecn::CongestionExperienced);
        assert_eq!(pair.act(4, Action::Drop), Some(4));
        assert_eq!(arrives(&pair, 4), None);
        let events = all(&mut pair);
        let bad = PairEvent::Arrival(3, Verdict::Dropped(DropReason::BadIcrc));
        assert!(events.contains(&bad), "{events:?}");
        let counters = pair.host(Side::B).engine.counters();
        assert!(counters.duplicate_request >= 1 && counters.rx_icrc_encapsulated == 1, "{counters:?}");
        assert_eq!(pair.completions(Side::A)[0].status, WcStatus::Success);
        pair.check_accounting();
    }
}
