//! One end of a connection: an engine and its device, as far as the policy sees them.

use std::collections::VecDeque;
use std::time::Duration;

use roce_transport::{Instant, Pending};

use crate::threads::{self, Check, Process};
use crate::{Budget, Found, Leave, Policy, Port, Timing, Watch, leave, progress};

/// Time from one end to the other.
const WIRE_NS: u64 = 5_000;
/// Costs of an empty check, of a received packet, of a transmission, and of each packet in it.
const CHECK_NS: u64 = 500;
const RECEIVE_NS: u64 = 300;
const TRANSMIT_NS: u64 = 1_500;
const PACKET_NS: u64 = 150;
/// Cost of a poll that does not check the device, with the loop of the application.
const NO_CHECK_NS: u64 = 300;
/// Maximum number of packets that one check receives.
const BURST: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) enum Packet {
    /// A message, posted at this time.
    Message { posted: u64 },
    /// Acknowledges this number of messages in total.
    Acknowledgement { messages: u64 },
}

/// The completions that the last poll found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completions {
    pub(super) receives: u64,
    pub(super) sends: u64,
}

impl threads::Completions for Completions {
    fn is_empty(&self) -> bool {
        self.receives + self.sends == 0
    }
}

/// Counts of the actions of an end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) checks: u64,
    /// System calls that send.
    pub(super) transmissions: u64,
    pub(super) received: u64,
    pub(super) acknowledgements: u64,
    /// Sum and maximum of the times from the arrival of a message to its acknowledgement.
    pub(super) acknowledged_after: u64,
    pub(super) latest_acknowledgement: u64,
    /// Maximum time from the post of a message to its completion at the receiver.
    pub(super) latest_message: u64,
}

/// The engine and the device.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// The time, which each action of the current step advances.
    pub(super) clock: u64,
    inbox: VecDeque<(u64, Packet)>,
    pub(super) outbox: Vec<(u64, Packet)>,
    /// Posted messages that have not left, by the time of their post.
    requests: VecDeque<u64>,
    /// Arrival of the first message that is not acknowledged.
    unacknowledged: Option<u64>,
    acknowledged: u64,
    /// Completions in the queue of the application.
    pub(super) receives: u64,
    pub(super) sends: u64,
    /// Posted messages that are not acknowledged.
    pub(super) outstanding: u64,
    /// Whether a notification is requested, and whether its event has come.
    pub(super) is_armed: bool,
    pub(super) has_event: bool,
    /// Whether the caller of progress checks the queue of the application next.
    looks_at_queue: bool,
    pub(super) counts: Counts,
}

impl Link {
    fn arrival(&self) -> Option<u64> {
        self.inbox.front().map(|(time, _)| *time)
    }

    fn has_completions(&self) -> bool {
        self.receives + self.sends > 0
    }

    fn receive(&mut self, packet: Packet) {
        match packet {
            Packet::Message { posted } => {
                self.unacknowledged.get_or_insert(self.clock);
                self.counts.received += 1;
                self.receives += 1;
                self.counts.latest_message = self.counts.latest_message.max(self.clock - posted);
            }
            Packet::Acknowledgement { messages } => {
                let new = messages - std::mem::replace(&mut self.acknowledged, messages);
                self.outstanding -= new;
                self.sends += new;
            }
        }
    }

    fn acknowledge(&mut self) {
        let Some(since) = self.unacknowledged.take() else { return };
        let after = self.clock - since;
        self.counts.acknowledgements += 1;
        self.counts.acknowledged_after += after;
        self.counts.latest_acknowledgement = self.counts.latest_acknowledgement.max(after);
        let messages = self.counts.received;
        self.put(Packet::Acknowledgement { messages });
    }

    fn put(&mut self, packet: Packet) {
        self.clock += PACKET_NS;
        self.outbox.push((self.clock + WIRE_NS, packet));
    }
}

impl Port for Link {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock)
    }

    fn check(&mut self, now: Instant) -> Found {
        self.counts.checks += 1;
        self.clock += CHECK_NS;
        let (mut datagrams, mut covers) = (0, false);
        while datagrams < BURST && self.arrival().is_some_and(|time| time <= now.as_nanos()) {
            let (_, packet) = self.inbox.pop_front().unwrap();
            covers |= matches!(packet, Packet::Message { .. }) && self.unacknowledged.is_some();
            self.clock += RECEIVE_NS;
            self.receive(packet);
            datagrams += 1;
        }
        let completion = self.looks_at_queue && self.has_completions();
        Found { datagrams, completion, write: false, covers }
    }

    fn owed(&self) -> Pending {
        match (self.requests.is_empty(), self.unacknowledged) {
            (false, _) => Pending::More,
            (true, Some(_)) => Pending::Acknowledgements,
            (true, None) => Pending::Nothing,
        }
    }

    fn send(&mut self, _: Instant, _: &mut Budget) {
        if self.owed() == Pending::Nothing {
            return;
        }
        self.counts.transmissions += 1;
        self.clock += TRANSMIT_NS;
        self.acknowledge();
        while let Some(posted) = self.requests.pop_front() {
            self.put(Packet::Message { posted });
        }
    }

    fn send_requests(&mut self, _: Instant, even_joined: bool) -> Option<usize> {
        // A device with superpackets.
        if !even_joined {
            return None;
        }
        let sent = self.requests.len();
        self.counts.transmissions += u64::from(sent > 0);
        self.clock += if sent > 0 { TRANSMIT_NS } else { 0 };
        while let Some(posted) = self.requests.pop_front() {
            self.put(Packet::Message { posted });
        }
        Some(sent)
    }

    fn collect_events(&mut self) {
        if self.is_armed && self.has_completions() {
            (self.is_armed, self.has_event) = (false, true);
        }
    }
}

/// One end with its policy.
#[derive(Debug)]
pub(super) struct End {
    pub(super) watch: Watch,
    pub(super) policy: Policy,
    pub(super) link: Link,
    /// Whether the background thread is woken.
    pub(super) is_woken: bool,
}

impl End {
    pub(super) fn new() -> Self {
        let timing = Timing::USUAL;
        // Time 0 means "never".
        let link = Link { clock: 1_000, ..Link::default() };
        Self { watch: Watch::new(&timing), policy: Policy::new(&timing), link, is_woken: false }
    }

    pub(super) fn arrives(&mut self, time: u64, packet: Packet) {
        self.link.inbox.push_back((time, packet));
    }

    pub(super) fn arrival(&self) -> Option<u64> {
        self.link.arrival()
    }

    /// Posts messages as `post_send` does.
    pub(super) fn post(&mut self, messages: u64) {
        for _ in 0..messages {
            self.link.clock += PACKET_NS;
            self.link.requests.push_back(self.link.clock);
            self.link.outstanding += 1;
            let now = self.link.now();
            let leaves = self.policy.posted(now, 1, 8, 0, None);
            self.leave(leaves);
        }
    }

    fn leave(&mut self, leaves: Leave) {
        let now = self.link.now();
        leave(&mut self.policy.pending, &mut self.link, now, leaves);
    }
}

impl Process for End {
    type Found = Completions;

    fn now(&self) -> Instant {
        self.link.now()
    }

    fn pass(&mut self, time: Duration) {
        self.link.clock += time.as_nanos() as u64;
    }

    fn pass_unchecked_poll(&mut self, _: Duration) {
        self.link.clock += NO_CHECK_NS;
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn policy(&mut self) -> (&Watch, &mut Policy) {
        (&self.watch, &mut self.policy)
    }

    fn wake_background(&mut self) {
        self.is_woken = true;
        self.link.clock += CHECK_NS;
    }

    fn clear_wake(&mut self) {
        self.is_woken = false;
    }

    /// Makes progress like `State::progress` and `State::progress_for`.
    fn progress(&mut self, check: Check) -> bool {
        self.link.looks_at_queue = check == Check::Queue;
        let now = self.link.now();
        progress(&mut self.policy.pending, &mut self.link, now) > 0
    }

    fn rest(&mut self) {
        let now = self.link.now();
        let leaves = self.policy.pending.rests(now);
        self.leave(leaves);
    }

    fn deadline(&self) -> Option<Instant> {
        self.policy.pending.since()
    }

    fn one_sided_requests(&self) -> u64 {
        0
    }

    fn is_occupied(&self) -> bool {
        self.link.has_completions()
    }

    fn take(&mut self, found: &mut Completions) {
        found.receives += std::mem::take(&mut self.link.receives);
        found.sends += std::mem::take(&mut self.link.sends);
    }

    fn is_done(&self) -> bool {
        self.link.outstanding == 0
    }

    fn request_event(&mut self) {
        self.link.is_armed = true;
    }

    fn take_event(&mut self) -> bool {
        std::mem::take(&mut self.link.has_event)
    }
}
