//! The state that the mutex protects: the NIC, and the connection management that borrows it.

use std::collections::VecDeque;
use std::io;

use roce_transport::{Event, Instant, Occupancy};

use super::pace::Pace;
use super::policy::Experiment;
use super::postponed::Postponed;
use super::posts::Posts;
use super::wait::LINGERING;
use crate::cm::queue_pairs::Siblings;
use crate::cm::service::{CmService, Wakers};
use crate::driver::{Budget, Nic};

/// Maximum number of bursts per call, so that a flood of packets does not keep a thread in the library.
const MAX_BURSTS: usize = 8;

/// Maximum number of datagrams in a small burst. After a larger burst, more may have arrived: checking pays
/// off.
const SMALL_BURST: usize = 8;

/// The place that the caller of progress checks next.
#[derive(Clone, Copy, Default)]
struct Looks<'a> {
    queue: Option<&'a Occupancy>,
    /// Whether the caller checks memory that peers may have written.
    memory: bool,
}

/// The NIC and its connection management. The thread that holds the lock makes progress for all handles.
pub(crate) struct State {
    pub(crate) nic: Nic,
    /// Created at its first use.
    cm: Option<Box<CmService>>,
    /// The other engines of the context, for connection management.
    pub(super) siblings: Siblings,
    /// Events of the engine that the lock guard has not delivered yet.
    pub(super) events: VecDeque<Event>,
    /// Acknowledgements that leave with the next post of the application.
    pub(super) postponed: Postponed,
    /// Requests that wait for more requests.
    posts: Posts,
    /// Number of received one-sided requests of peers at the last post of the application.
    requests_at_post: u64,
    /// Experiment whether a poll that found completions stays, see
    /// [`Runtime::linger`](super::Runtime::linger).
    pub(super) lingering: Experiment,
    /// Time until which the background thread sleeps unless it is woken; `None` while it is awake.
    pub(super) background_sleeps_until: Option<Instant>,
    /// Whether the failure of the device has been announced.
    pub(super) failure_announced: bool,
}

impl State {
    pub(super) fn new(nic: Nic, pace: Pace) -> Self {
        Self {
            nic,
            cm: None,
            siblings: Siblings::default(),
            events: VecDeque::with_capacity(64),
            postponed: Postponed::new(pace),
            posts: Posts::default(),
            requests_at_post: 0,
            lingering: Experiment::new(&LINGERING),
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
    /// see [`Postponed`].
    pub(crate) fn progress_for(&mut self, now: Instant, occupancy: &Occupancy) -> bool {
        self.progress_until(now, Looks { queue: Some(occupancy), memory: true })
    }

    /// Makes progress for a thread of the application that checks memory next.
    pub(crate) fn progress_for_memory(&mut self) -> bool {
        self.progress_until(self.nic.now(), Looks { queue: None, memory: true })
    }

    #[inline]
    fn progress_until(&mut self, mut now: Instant, looks: Looks<'_>) -> bool {
        let span = tracing::trace_span!("progress", datagrams = tracing::field::Empty).entered();
        let (mut arrived, mut budget) = (0, Budget::default());
        self.posts.note_poll();
        if self.posts.is_waiting() {
            // Before receiving, so that the peer can work on the requests meanwhile.
            self.posts.leave();
            self.postponed.end(now);
            self.nic.transmit(now, &mut budget);
        }
        for number in 0..MAX_BURSTS {
            if number > 0 {
                now = self.nic.now();
            }
            let (writes, covered) = (self.nic.write_requests(), self.nic.covered_acknowledgements());
            let burst = self.nic.receive(now);
            if let Some(cm) = &mut self.cm {
                cm.serve(now, &mut self.nic);
            }
            let is_completed = burst > 0 && looks.queue.is_some_and(Occupancy::is_occupied);
            let is_written = !is_completed
                && looks.memory
                && self.nic.write_requests() != writes
                && self.postponed.may_await_answer();
            let is_found = is_completed || is_written;
            let is_covered = self.nic.covered_acknowledgements() != covered;
            if self.postponed.is_held() && self.goes_on_holding(now, is_covered) {
                self.collect_events();
                arrived += burst;
                if burst == 0 || is_found {
                    break;
                }
                continue;
            }
            let is_small = is_found && burst <= SMALL_BURST;
            if is_small && self.postpone(now, is_written) {
                arrived += burst;
                break;
            }
            // Packets are received even if the budget is spent. Requests of honest peers wait behind a flood
            // of READs, and with one burst per budget the flood would fill the queue of the device.
            if !budget.is_spent() {
                self.postponed.end(now);
                self.nic.transmit(now, &mut budget);
            }
            self.collect_events();
            arrived += burst;
            if burst == 0 || is_small {
                break;
            }
        }
        if !span.is_disabled() {
            span.record("datagrams", arrived);
        }
        let statistics = &mut self.nic.statistics;
        if arrived > 0 {
            statistics.busy_polls += 1;
        } else {
            statistics.idle_polls += 1;
        }
        arrived > 0 || self.nic.has_more()
    }

    /// Returns whether acknowledgements are held back longer, see [`Postponed`]. `is_covered` tells whether a
    /// message arrived whose acknowledgement replaces the one that is held back.
    fn goes_on_holding(&mut self, now: Instant, is_covered: bool) -> bool {
        if is_covered {
            self.postponed.supersede();
            return false;
        }
        self.postponed.may_hold_on(now) && self.nic.owes_only_acknowledgements()
    }

    /// Sends pending packets of the engine, within the budget of one call.
    pub(crate) fn transmit(&mut self) {
        self.transmit_at(self.nic.now());
    }

    /// Sends posted requests, or leaves them for later, see [`Posts`]. `bytes` is their total length.
    #[inline]
    pub(crate) fn transmit_posted(&mut self, now: Instant, requests: usize, bytes: u64) {
        self.requests_at_post = self.nic.one_sided_requests();
        if self.posts.may_wait(requests, bytes) && self.goes_on_waiting(now) {
            return self.collect_events();
        }
        self.transmit_at(now);
    }

    /// Returns whether posted requests may wait, or wait longer.
    fn goes_on_waiting(&mut self, now: Instant) -> bool {
        if self.postponed.is_pending() {
            return self.postponed.may_go_on(now);
        }
        let may_begin = self.postponed.may_begin();
        if may_begin {
            self.postponed.begin(now);
            self.posts.begin();
        }
        may_begin
    }

    /// Sends like [`transmit`](Self::transmit), for a caller that has already read the clock.
    #[inline]
    pub(crate) fn transmit_at(&mut self, now: Instant) {
        self.postponed.note_answer();
        let began_with_requests = self.posts.leave();
        if self.postponed.may_go_on(now) && !began_with_requests {
            let may_hold = self.postponed.may_hold();
            if let Some(sent) = self.nic.transmit_requests(now, may_hold) {
                if may_hold && sent > 0 {
                    self.postponed.hold(now);
                }
                return self.collect_events();
            }
        }
        self.postponed.end(now);
        self.nic.transmit(now, &mut Budget::default());
        self.collect_events();
    }

    /// Sends pending responses before an object is destroyed.
    pub(crate) fn transmit_owed(&mut self) {
        self.nic.transmit_owed(self.nic.now());
        self.collect_events();
    }

    /// Returns whether a peer has written, read or changed memory since the application last posted a
    /// request.
    pub(super) fn is_accessed_since_post(&self) -> bool {
        self.nic.one_sided_requests() != self.requests_at_post
    }

    /// Decides whether a poll that found completions stays. Returns `Some(true)` if staying has helped
    /// before, `Some(false)` for a trial, and `None` if the poll must not stay.
    pub(crate) fn begin_to_linger(&mut self) -> Option<bool> {
        if !self.lingering.is_allowed() {
            return None;
        }
        if self.is_accessed_since_post() {
            // The request of the peer arrived together with the completion. Its acknowledgement may wait for
            // the answer.
            self.lingering.succeeded();
            return None;
        }
        Some(self.lingering.pays())
    }

    #[cfg(test)]
    pub(super) fn note_access_since_post(&mut self) {
        self.requests_at_post = u64::MAX;
    }

    /// Sends the postponed acknowledgements and requests, because the application does not post or poll now.
    pub(crate) fn transmit_postponed(&mut self) {
        self.posts.note_poll();
        if self.postponed.is_pending() {
            let now = self.nic.now();
            self.postponed.end(now);
            self.transmit_at(now);
        }
    }

    /// Postpones acknowledgements if nothing else is pending and postponing has paid off recently.
    /// `is_written` tells whether they acknowledge WRITEs. Returns whether it postponed them.
    fn postpone(&mut self, now: Instant, is_written: bool) -> bool {
        let may_wait = self.nic.owes_acknowledgements() && self.postponed.may_begin();
        if may_wait && is_written {
            self.postponed.begin_with_write(now);
        } else if may_wait {
            self.postponed.begin(now);
        }
        may_wait
    }

    /// Takes events from the engine, whose queue is bounded.
    #[inline]
    pub(super) fn collect_events(&mut self) {
        while let Some(event) = self.nic.engine.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Returns the time at which [`progress`](Self::progress) must be called even if nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.deadline_without_postponed(), self.postponed.since()].into_iter().flatten().min()
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
