//! The driver joins one engine to one device. Only the driver reads a clock.
//!
//! A [`Nic`] does not know locks, threads or connections. The layers above call it: connection management
//! borrows it, and the runtime decides when it makes progress.

mod groups;
mod holders;
mod path;
mod queue_pairs;
mod recent;
mod source_ports;
pub(crate) mod wake;
mod watch;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use roce_packet::Qpn;
use roce_policy::Budget;
use roce_transport::{Allowed, Engine, Instant, Pending, TxSlot, with_causes};

use crate::device::{Clock, Device};
use holders::Holders;
use watch::Watch;

pub(crate) use groups::GroupError;
pub(crate) use holders::PortHolder;
pub(crate) use path::gid_table;
pub use path::{GidEntry, PathOptions, in_gid_order};
pub use recent::LastPacket;
pub(crate) use recent::{Connection, Recent};

/// Time until the next try after the device had no room.
const FULL_RETRY_NS: u64 = 20_000;
/// Maximum number of bursts to receive after a pause, before expired deadlines take effect.
const BURSTS_AFTER_PAUSE: usize = 64;
/// Maximum number of budgets to spend on pending responses before an object is destroyed.
const PASSES_FOR_WHAT_IS_OWED: usize = 8;

/// One engine, one device, one clock, and the resources of the device that queue pairs hold.
pub(crate) struct Nic {
    pub(crate) engine: Engine,
    device: Box<dyn Device>,
    clock: Clock,
    /// Whether the device had no room for a datagram at the last try.
    device_full: bool,
    /// Whether the last call spent its budget, so that the engine may have more to send.
    has_more: bool,
    /// First permanent error of the device. After it, the device is not called any more.
    failure: Option<io::Error>,
    watch: Watch,
    pub(crate) statistics: NicStatistics,
    /// The last packets, to explain failures.
    pub(crate) recent: Recent,
    groups: Holders<Qpn, IpAddr>,
    source_ports: Holders<PortHolder, u16>,
    /// Number of address handles created so far.
    address_handles: u64,
}

/// Counters outside the engine and the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NicStatistics {
    /// Number of times that the device had no room for a datagram.
    pub(crate) tx_device_full: u64,
    /// Number of calls that ended because they had spent their budget.
    pub(crate) tx_budget_spent: u64,
    /// Number of calls that found datagrams, and of those that found none.
    pub(crate) busy_polls: u64,
    pub(crate) idle_polls: u64,
}

impl Nic {
    pub(crate) fn new(engine: Engine, device: Box<dyn Device>, clock: Clock) -> Self {
        Self {
            engine,
            device,
            clock,
            device_full: false,
            has_more: false,
            failure: None,
            watch: Watch::default(),
            statistics: NicStatistics::default(),
            recent: Recent::new(),
            groups: Holders::default(),
            source_ports: Holders::default(),
            address_handles: 0,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    pub(crate) fn device_mut(&mut self) -> &mut dyn Device {
        self.device.as_mut()
    }

    /// Receives one burst and handles expired deadlines; returns the number of datagrams. After a time in
    /// which no thread watched the device, first receives the datagrams that arrived in that time.
    pub(crate) fn receive(&mut self, now: Instant) -> usize {
        let count = match self.watch.look(now) {
            Some(pause) => self.receive_after(now, pause),
            None => self.receive_burst(now),
        };
        self.engine.handle_timeout(now, Duration::ZERO);
        self.recent.keep(now, self.engine.failures());
        count
    }

    /// Receives the datagrams that arrived during a pause.
    #[cold]
    fn receive_after(&mut self, now: Instant, pause: Duration) -> usize {
        self.engine.handle_timeout(now, pause);
        let bursts = (0..BURSTS_AFTER_PAUSE).map(|_| self.receive_burst(now));
        bursts.take_while(|count| *count > 0).sum()
    }

    /// Records that a thread watches the device: it sleeps from `now` until `until`, or until a datagram
    /// arrives.
    #[inline]
    pub(crate) fn watched_until(&mut self, now: Instant, until: Instant) {
        self.watch.sleep(now, until);
    }

    /// Records that, while the process runs, a thread checks the device at least once per `interval`.
    pub(crate) fn looks_every(&mut self, interval: Duration) {
        self.watch.interval = Some(interval);
    }

    /// Returns the number of received WRITEs, READs and atomics of peers.
    pub(crate) fn one_sided_requests(&self) -> u64 {
        let counters = self.engine.counters();
        counters.rx_write_requests + counters.rx_read_requests + counters.rx_atomic_requests
    }

    /// Returns the number of received WRITEs of peers.
    #[inline]
    pub(crate) fn write_requests(&self) -> u64 {
        self.engine.counters().rx_write_requests
    }

    /// Returns the number of pending acknowledgements that the acknowledgement of a later request replaced.
    #[inline]
    pub(crate) fn covered_acknowledgements(&self) -> u64 {
        self.engine.counters().acks_coalesced
    }

    fn receive_burst(&mut self, now: Instant) -> usize {
        if self.failure.is_some() {
            return 0;
        }
        let Self { engine, device, recent, .. } = self;
        let received = device.receive(now, &mut |received| {
            let (source, pieces) = (received.path.source, received.body.pieces());
            let verdict = engine.handle(now, received);
            recent.received(now, source, pieces, verdict);
        });
        match received {
            Ok(count) => count,
            Err(error) => {
                self.fail(error);
                0
            }
        }
    }

    /// Sends pending packets of the engine within the budget.
    pub(crate) fn transmit(&mut self, now: Instant, budget: &mut Budget) {
        if self.failure.is_some() {
            return self.discard(now, budget);
        }
        if self.engine.pending(now) == Pending::Nothing && !self.device.is_flush_due(now) {
            (self.has_more, self.device_full) = (false, false);
            return;
        }
        let mut is_flushed = false;
        self.has_more = loop {
            if budget.is_spent() {
                self.statistics.tx_budget_spent += 1;
                break self.engine.pending(now) != Pending::Nothing;
            }
            // The results of these two calls are not moved, because moving them takes longer than writing
            // them.
            let mut slot = self.device.slot();
            let Some(slot) = &mut slot else {
                self.statistics.tx_device_full += 1;
                if is_flushed {
                    break false;
                }
                is_flushed = true;
                self.flush(now);
                continue;
            };
            let transmit = self.engine.poll_transmit(now, slot, Allowed::All);
            let Some(transmit) = &transmit else { break false };
            budget.spend(transmit.len);
            self.recent.sent(now, transmit.path.destination, slot.buffer, transmit.len);
            self.device.commit(now, transmit);
            is_flushed = false;
        };
        self.flush(now);
        self.device_full = is_flushed;
    }

    /// Sends only requests and returns the number of packets. Returns `None` if the caller must send
    /// everything instead: if the device failed, or if it can join an acknowledgement to a request and
    /// `even_joined` is not set.
    pub(crate) fn transmit_requests(&mut self, now: Instant, even_joined: bool) -> Option<usize> {
        if self.failure.is_some() || self.device.capabilities().max_segments > 1 && !even_joined {
            return None;
        }
        let mut budget = Budget::default();
        let mut sent = 0;
        while !budget.is_spent() {
            // The results are not moved, as in `transmit`.
            let mut slot = self.device.slot();
            let Some(slot) = &mut slot else { break };
            let transmit = self.engine.poll_transmit(now, slot, Allowed::Requests);
            let Some(transmit) = &transmit else { break };
            budget.spend(transmit.len);
            self.recent.sent(now, transmit.path.destination, slot.buffer, transmit.len);
            self.device.commit(now, transmit);
            sent += 1;
        }
        self.flush(now);
        (!budget.is_spent()).then_some(sent)
    }

    /// Sends pending responses before an object is destroyed, such as the acknowledgement of a queue pair.
    /// The amount is limited, so a peer that requested gigabytes does not receive them now.
    pub(crate) fn transmit_owed(&mut self, now: Instant) {
        for _ in 0..PASSES_FOR_WHAT_IS_OWED {
            self.transmit(now, &mut Budget::default());
            if !self.has_more {
                return;
            }
        }
    }

    /// Returns what the engine has to send at the time of its last call.
    #[inline]
    pub(crate) fn pending(&self) -> Pending {
        if self.has_more { Pending::More } else { self.engine.pending(Instant::ZERO) }
    }

    /// Returns whether the budget was spent before the engine had sent everything.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Drops all pending packets, as on a cut cable. Requests then run out of retries, and their completions
    /// report that.
    fn discard(&mut self, now: Instant, budget: &mut Budget) {
        let mut nowhere = vec![0; self.device.capabilities().max_datagram];
        self.has_more = loop {
            if budget.is_spent() {
                break self.engine.pending(now) != Pending::Nothing;
            }
            let mut slot = TxSlot::new(&mut nowhere);
            let Some(transmit) = self.engine.poll_transmit(now, &mut slot, Allowed::All) else {
                break false;
            };
            budget.spend(transmit.len);
        };
    }

    fn flush(&mut self, now: Instant) {
        if let Err(error) = self.device.flush(now) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: io::Error) {
        if self.failure.is_none() {
            tracing::error!(error = %with_causes(&error), "the device failed");
            self.failure = Some(error);
        }
    }

    /// Returns the device's first permanent error.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Returns when [`receive`](Self::receive) and [`transmit`](Self::transmit) must be called even if no
    /// packet arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        // Packets that are left over from the last call must be sent at once.
        let at_once = self.has_more.then_some(Instant::ZERO);
        [at_once, self.engine.poll_timeout(), self.device_deadline()].into_iter().flatten().min()
    }

    fn device_deadline(&self) -> Option<Instant> {
        if self.failure.is_some() {
            // A failed device is not called again.
            return None;
        }
        let retry = self.device_full.then(|| self.now().plus_nanos(FULL_RETRY_NS));
        [self.device.deadline(), retry].into_iter().flatten().min()
    }

    /// Visits the counters that belong neither to the engine nor to connection management.
    pub(crate) fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("tx_device_full", self.statistics.tx_device_full);
        visit("tx_budget_spent", self.statistics.tx_budget_spent);
        visit("busy_polls", self.statistics.busy_polls);
        visit("idle_polls", self.statistics.idle_polls);
        self.device.counters(visit);
    }
}
