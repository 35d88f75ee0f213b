//! The state that the mutex protects: the NIC, and the connection management that borrows it.

use std::collections::VecDeque;
use std::io;

use roce_policy::{Budget, Found, Leave, Looks, Policy, Port, Stay, Timing, leave, progress};
use roce_transport::{Event, Instant, Occupancy, Pending};

use crate::cm::queue_pairs::Siblings;
use crate::cm::service::{CmService, Wakers};
use crate::driver::Nic;

/// The NIC and its connection management. The thread that holds the lock makes progress for all handles.
pub(crate) struct State {
    pub(crate) nic: Nic,
    /// Created at its first use.
    cm: Option<Box<CmService>>,
    /// The other engines of the context, for connection management.
    pub(super) siblings: Siblings,
    /// Events of the engine that the lock guard has not delivered yet.
    pub(super) events: VecDeque<Event>,
    pub(super) policy: Policy,
    /// Time until which the background thread sleeps unless it is woken; `None` while it is awake.
    pub(super) background_sleeps_until: Option<Instant>,
    /// Whether the failure of the device has been announced.
    pub(super) failure_announced: bool,
}

impl State {
    pub(super) fn new(nic: Nic, timing: &Timing) -> Self {
        Self {
            nic,
            cm: None,
            siblings: Siblings::default(),
            events: VecDeque::with_capacity(64),
            policy: Policy::new(timing),
            background_sleeps_until: None,
            failure_announced: false,
        }
    }

    /// Calls connection management, and sends the resulting packets. The first call creates queue pair 1.
    pub(crate) fn with_cm<T>(
        &mut self,
        work: impl FnOnce(&mut CmService, Instant, &mut Nic) -> T,
    ) -> io::Result<T> {
        let Self { nic, cm, siblings, .. } = self;
        let cm = match cm {
            Some(cm) => cm,
            None => cm.insert(Box::new(CmService::new(nic, siblings.clone())?)),
        };
        let now = nic.now();
        let outcome = work(cm, now, nic);
        cm.settle(now, nic);
        self.transmit_at(now);
        Ok(outcome)
    }

    /// Returns connection management if it has been used.
    pub(crate) fn cm(&mut self) -> Option<&mut CmService> {
        self.cm.as_deref_mut()
    }

    /// Receives packets, handles deadlines and sends, within the budget of one call. Returns whether more may
    /// be ready at once.
    pub(crate) fn progress(&mut self) -> bool {
        self.progress_until(self.nic.now(), Looks::default())
    }

    /// Makes progress for a thread that checks this completion queue next. If the queue, or memory that a
    /// peer wrote, has something for the thread, it returns at once. Later packets and acknowledgements wait,
    /// see [`PendingPackets`](roce_policy::PendingPackets).
    pub(crate) fn progress_for(&mut self, now: Instant, occupancy: &Occupancy) -> bool {
        self.progress_until(now, Looks { queue: Some(occupancy), memory: true })
    }

    /// Makes progress for a thread of the application that checks memory next.
    pub(crate) fn progress_for_memory(&mut self) -> bool {
        self.progress_until(self.nic.now(), Looks { queue: None, memory: true })
    }

    #[inline]
    fn progress_until(&mut self, now: Instant, looks: Looks<'_>) -> bool {
        let span = tracing::trace_span!("progress", datagrams = tracing::field::Empty).entered();
        let (policy, mut port) = self.port(looks);
        let datagrams = progress(&mut policy.pending, &mut port, now);
        if !span.is_disabled() {
            span.record("datagrams", datagrams);
        }
        let statistics = &mut self.nic.statistics;
        if datagrams > 0 {
            statistics.busy_polls += 1;
        } else {
            statistics.idle_polls += 1;
        }
        datagrams > 0 || self.nic.has_more()
    }

    /// Sends pending packets of the engine, within the budget of one call.
    pub(crate) fn transmit(&mut self) {
        self.transmit_at(self.nic.now());
    }

    /// Sends like [`transmit`](Self::transmit), for a caller that has already read the clock.
    #[inline]
    pub(crate) fn transmit_at(&mut self, now: Instant) {
        let leaves = self.policy.pending.sends(now);
        self.leave(now, leaves);
    }

    /// Sends posted requests, or leaves them for later. `bytes` is their total length.
    #[inline]
    pub(crate) fn transmit_posted(&mut self, now: Instant, requests: usize, bytes: u64) {
        let one_sided = self.nic.one_sided_requests();
        let leaves = self.policy.posted(now, requests, bytes, one_sided, self.background_sleeps_until);
        self.leave(now, leaves);
    }

    /// Sends the postponed acknowledgements and requests, because the application does not post or poll now.
    #[inline]
    pub(crate) fn transmit_postponed(&mut self, now: Instant) {
        let leaves = self.policy.pending.rests(now);
        self.leave(now, leaves);
    }

    #[inline]
    fn leave(&mut self, now: Instant, leaves: Leave) {
        let (policy, mut port) = self.port(Looks::default());
        leave(&mut policy.pending, &mut port, now, leaves);
    }

    #[inline]
    fn port<'a>(&'a mut self, looks: Looks<'a>) -> (&'a mut Policy, NicPort<'a>) {
        let Self { nic, cm, events, policy, .. } = self;
        (policy, NicPort { nic, cm: cm.as_deref_mut(), events, looks })
    }

    /// Sends pending responses before an object is destroyed.
    pub(crate) fn transmit_owed(&mut self) {
        self.nic.transmit_owed(self.nic.now());
        self.collect_events();
    }

    /// Returns whether and how a poll stays that has found the last outstanding completion.
    #[inline]
    pub(crate) fn begin_to_linger(&mut self, now: Instant) -> Option<Stay> {
        self.policy.lingering.begins(now, self.nic.one_sided_requests())
    }

    /// Takes events from the engine, whose queue is bounded.
    #[inline]
    pub(super) fn collect_events(&mut self) {
        self.port(Looks::default()).1.collect_events();
    }

    /// Returns the time at which [`progress`](Self::progress) must be called even if nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.deadline_without_postponed(), self.policy.pending.since()].into_iter().flatten().min()
    }

    fn deadline_without_postponed(&self) -> Option<Instant> {
        let cm = self.cm.as_ref().and_then(|cm| cm.manager.poll_timeout());
        [self.nic.deadline(), cm].into_iter().flatten().min()
    }

    /// Returns the number of progress calls of all threads.
    pub(super) fn polls(&self) -> u64 {
        self.nic.statistics.busy_polls + self.nic.statistics.idle_polls
    }

    /// Returns whether there is something to do after the release of the lock.
    #[inline]
    pub(super) fn has_deliveries(&self) -> bool {
        !self.events.is_empty()
            || self.cm.as_ref().is_some_and(|cm| !cm.wakers.is_empty())
            || self.is_failure_new()
            || self.background_sleeps_too_long()
    }

    /// Returns whether the device has failed since the last announcement.
    #[inline]
    pub(super) fn is_failure_new(&self) -> bool {
        !self.failure_announced && self.nic.failure().is_some()
    }

    /// Returns whether a deadline before the planned end of the background thread's sleep exists, such as the
    /// ACK timeout of a new request. Postponed packets do not count, because they usually leave with a call
    /// of the application.
    #[inline]
    pub(super) fn background_sleeps_too_long(&self) -> bool {
        self.background_sleeps_until
            .is_some_and(|until| self.deadline_without_postponed().is_some_and(|deadline| deadline < until))
    }

    /// Takes the wakers to wake or drop after the release of the lock.
    pub(super) fn take_wakers(&mut self) -> Option<Wakers> {
        let wakers = &mut self.cm.as_mut()?.wakers;
        (!wakers.is_empty()).then(|| std::mem::take(wakers))
    }

    pub(super) fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.nic.engine.counters().visit(visit);
        if let Some(cm) = &self.cm {
            cm.visit_counters(visit);
        }
        self.nic.visit_counters(visit);
    }
}

/// The NIC and its connection management, for a thread that checks `looks` next.
struct NicPort<'a> {
    nic: &'a mut Nic,
    cm: Option<&'a mut CmService>,
    events: &'a mut VecDeque<Event>,
    looks: Looks<'a>,
}

impl Port for NicPort<'_> {
    fn now(&self) -> Instant {
        self.nic.now()
    }

    #[inline]
    fn check(&mut self, now: Instant) -> Found {
        let (writes, covered) = (self.nic.write_requests(), self.nic.covered_acknowledgements());
        let datagrams = self.nic.receive(now);
        if let Some(cm) = &mut self.cm {
            cm.serve(now, self.nic);
        }
        Found {
            datagrams,
            completion: self.looks.queue.is_some_and(Occupancy::is_occupied),
            write: self.looks.memory && self.nic.write_requests() != writes,
            covers: self.nic.covered_acknowledgements() != covered,
        }
    }

    fn owed(&self) -> Pending {
        self.nic.pending()
    }

    #[inline]
    fn send(&mut self, now: Instant, budget: &mut Budget) {
        self.nic.transmit(now, budget);
    }

    fn send_requests(&mut self, now: Instant, even_joined: bool) -> Option<usize> {
        self.nic.transmit_requests(now, even_joined)
    }

    #[inline]
    fn collect_events(&mut self) {
        while let Some(event) = self.nic.engine.poll_event() {
            self.events.push_back(event);
        }
    }
}
