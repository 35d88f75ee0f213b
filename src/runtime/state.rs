//! What the mutex protects: the NIC, and the connection management that borrows it.

use std::collections::VecDeque;
use std::io;

use roce_transport::{Event, Instant};

use crate::cm::service::{CmService, Wakers};
use crate::driver::{Budget, Nic};

/// Bursts that one call handles before it returns, so that a flood of packets does not keep a thread in the library.
const MAX_BURSTS: usize = 8;

/// The NIC and its connection management. The thread that holds the lock makes progress for all handles.
pub(crate) struct State {
    pub(crate) nic: Nic,
    /// Made by its first use.
    cm: Option<Box<CmService>>,
    /// Events of the engine that the lock guard has not delivered yet.
    pub(super) events: VecDeque<Event>,
    /// Until when the background thread sleeps if nothing wakes it; `None` while it is awake.
    pub(super) background_sleeps_until: Option<Instant>,
    /// Whether the failure of the device has been announced.
    pub(super) failure_announced: bool,
}

impl State {
    pub(super) fn new(nic: Nic) -> Self {
        Self {
            nic,
            cm: None,
            events: VecDeque::with_capacity(64),
            background_sleeps_until: None,
            failure_announced: false,
        }
    }

    /// Calls connection management, and sends what came of the call. The first use makes queue pair 1.
    pub(crate) fn with_cm<T>(
        &mut self,
        work: impl FnOnce(&mut CmService, Instant, &mut Nic) -> T,
    ) -> io::Result<T> {
        let Self { nic, cm, .. } = self;
        let cm = match cm {
            Some(cm) => cm,
            None => cm.insert(Box::new(CmService::new(nic)?)),
        };
        let now = nic.now();
        let outcome = work(cm, now, nic);
        cm.settle(now, nic);
        self.transmit_at(now);
        Ok(outcome)
    }

    /// Connection management, if it has been used.
    pub(crate) fn cm(&mut self) -> Option<&mut CmService> {
        self.cm.as_deref_mut()
    }

    /// Takes in what has arrived, lets deadlines take effect, sends what is to be sent, as far as the budget of one call goes.
    /// Returns whether there may be more to do at once.
    pub(crate) fn progress(&mut self) -> bool {
        let span = tracing::trace_span!("progress", datagrams = tracing::field::Empty).entered();
        let (mut arrived, mut budget) = (0, Budget::default());
        for _ in 0..MAX_BURSTS {
            let now = self.nic.now();
            let burst = self.nic.receive(now);
            if let Some(cm) = &mut self.cm {
                cm.serve(now, &mut self.nic);
            }
            // Once the budget is spent, what has arrived is still taken in: behind a flood of READ requests wait those of honest
            // peers, and one burst for each budget would let the flood fill the queue of the device.
            if !budget.is_spent() {
                self.nic.transmit(now, &mut budget);
            }
            self.collect_events();
            arrived += burst;
            if burst == 0 {
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

    /// Sends what the engine has to send, as far as the budget of one call goes.
    pub(crate) fn transmit(&mut self) {
        self.transmit_at(self.nic.now());
    }

    /// The same, for a caller that has read the clock already.
    #[inline]
    pub(crate) fn transmit_at(&mut self, now: Instant) {
        self.nic.transmit(now, &mut Budget::default());
        self.collect_events();
    }

    /// Sends what is owed to peers before something goes away.
    pub(crate) fn transmit_owed(&mut self) {
        self.nic.transmit_owed(self.nic.now());
        self.collect_events();
    }

    /// Takes events from the engine, whose queue is bounded.
    #[inline]
    pub(super) fn collect_events(&mut self) {
        while let Some(event) = self.nic.engine.poll_event() {
            self.events.push_back(event);
        }
    }

    /// When [`progress`](Self::progress) has to be called although nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let cm = self.cm.as_ref().and_then(|cm| cm.manager.poll_timeout());
        [self.nic.deadline(), cm].into_iter().flatten().min()
    }

    /// How often any thread has made progress.
    pub(super) fn polls(&self) -> u64 {
        self.nic.statistics.busy_polls + self.nic.statistics.idle_polls
    }

    /// Whether there is something to do once the lock is released.
    #[inline]
    pub(super) fn has_deliveries(&self) -> bool {
        !self.events.is_empty()
            || self.cm.as_ref().is_some_and(|cm| !cm.wakers.is_empty())
            || self.is_failure_new()
            || self.background_sleeps_too_long()
    }

    /// Whether the device has failed since the last announcement.
    #[inline]
    pub(super) fn is_failure_new(&self) -> bool {
        !self.failure_announced && self.nic.failure().is_some()
    }

    /// Whether a deadline came up after the background thread had gone to sleep, such as the ACK timeout of what was
    /// posted just now.
    #[inline]
    pub(super) fn background_sleeps_too_long(&self) -> bool {
        self.background_sleeps_until
            .is_some_and(|until| self.deadline().is_some_and(|deadline| deadline < until))
    }

    /// Wakers to be woken or dropped once the lock is released.
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
