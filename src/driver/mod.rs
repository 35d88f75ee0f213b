//! The loop that joins one engine to one device, and the only place that reads a clock.
//!
//! Progress is inline: posting a send transmits at once, polling a completion queue polls the device. A
//! background thread ([`background`]) serves peers' one-sided requests and timers while the application does
//! neither.

pub(crate) mod background;
mod groups;
mod holders;
pub(crate) mod path;
mod source_ports;
pub(crate) mod wake;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use roce_transport::{AsyncEvent, CqId, Engine, Event, Instant, TxSlot, Verdict};

use crate::cm::service::CmService;
use crate::device::Clock;
use crate::device::Device;
use holders::Holders;

pub use path::{GidEntry, PathOptions};

/// Bursts that one call handles before it returns, so that a flood cannot keep the caller for ever.
const MAX_BURSTS: usize = 8;
/// When to try again where the device had no room.
const FULL_RETRY_NS: u64 = 20_000;

/// One engine, one device, one clock. Whoever holds the lock around it makes progress for everybody.
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    device: Box<dyn Device>,
    clock: Clock,
    /// Completion queues whose event is due, and events that belong to none.
    pub(crate) notifications: VecDeque<CqId>,
    pub(crate) async_events: VecDeque<AsyncEvent>,
    /// The device took no more datagrams at the last try.
    device_full: bool,
    /// The first error of the device that will not go away by itself. From then on the device is left alone.
    failure: Option<io::Error>,
    pub(crate) statistics: DriverStatistics,
    groups: Holders<IpAddr>,
    source_ports: Holders<u16>,
    /// Connection management, once somebody has used it.
    cm: Option<Box<CmService>>,
}

/// What the driver itself counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriverStatistics {
    /// Times that the device had no room for a datagram.
    pub(crate) tx_device_full: u64,
    /// Datagrams that the engine dropped.
    pub(crate) dropped: u64,
    /// Calls that found datagrams waiting, and those that found none.
    pub(crate) busy_polls: u64,
    pub(crate) idle_polls: u64,
}

impl Driver {
    pub(crate) fn new(engine: Engine, device: Box<dyn Device>) -> Self {
        Self {
            engine,
            device,
            clock: Clock::start(),
            notifications: VecDeque::with_capacity(64),
            async_events: VecDeque::with_capacity(64),
            device_full: false,
            failure: None,
            statistics: DriverStatistics::default(),
            groups: Holders::default(),
            source_ports: Holders::default(),
            cm: None,
        }
    }

    /// Connection management; the first use makes queue pair 1. Whatever is asked of it is carried out and sent.
    pub(crate) fn with_cm<T>(
        &mut self,
        work: impl FnOnce(&mut CmService, Instant, &mut Self) -> T,
    ) -> io::Result<T> {
        let mut cm = match self.cm.take() {
            Some(cm) => cm,
            None => Box::new(CmService::new(self)?),
        };
        let now = self.now();
        let outcome = work(&mut cm, now, self);
        cm.settle(now, self);
        self.cm = Some(cm);
        self.transmit(now);
        Ok(outcome)
    }

    /// Connection management, if somebody has used it.
    pub(crate) fn cm(&mut self) -> Option<&mut CmService> {
        self.cm.as_deref_mut()
    }

    fn serve_cm(&mut self, now: Instant) {
        if let Some(mut cm) = self.cm.take() {
            cm.serve(now, self);
            self.cm = Some(cm);
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

    /// Takes in what has arrived, lets deadlines take effect, sends what is to be sent. Returns whether
    /// anything arrived.
    pub(crate) fn progress(&mut self) -> bool {
        let span = tracing::trace_span!("progress", datagrams = tracing::field::Empty).entered();
        let mut arrived = 0;
        for _ in 0..MAX_BURSTS {
            let now = self.clock.now();
            let burst = self.receive(now);
            if self.engine.poll_timeout().is_some_and(|deadline| deadline <= now) {
                self.engine.handle_timeout(now);
            }
            self.serve_cm(now);
            self.transmit(now);
            arrived += burst;
            if burst == 0 {
                break;
            }
        }
        if !span.is_disabled() {
            span.record("datagrams", arrived);
        }
        if arrived > 0 {
            self.statistics.busy_polls += 1;
        } else {
            self.statistics.idle_polls += 1;
        }
        arrived > 0
    }

    /// Takes in one burst; returns how many datagrams it had.
    fn receive(&mut self, now: Instant) -> usize {
        if self.failure.is_some() {
            return 0;
        }
        let Self { engine, device, statistics, .. } = self;
        let received = device.receive(now, &mut |received| {
            if let Verdict::Dropped(_) = engine.handle_datagram(now, received) {
                statistics.dropped += 1;
            }
        });
        match received {
            Ok(count) => count,
            Err(error) => {
                self.fail(error);
                0
            }
        }
    }

    /// Sends whatever the engine has to send, and collects what it has to tell.
    pub(crate) fn transmit(&mut self, now: Instant) {
        self.send_all(now);
        self.collect_events();
    }

    /// Sends whatever the engine has to send.
    pub(crate) fn send_all(&mut self, now: Instant) {
        if self.failure.is_some() {
            return self.discard(now);
        }
        let mut flushed_in_vain = false;
        loop {
            let Some(mut slot) = self.device.slot() else {
                self.statistics.tx_device_full += 1;
                if flushed_in_vain {
                    break;
                }
                flushed_in_vain = true;
                self.flush(now);
                continue;
            };
            let Some(transmit) = self.engine.poll_transmit(now, &mut slot) else { break };
            self.device.commit(now, &transmit);
            flushed_in_vain = false;
        }
        self.flush(now);
        self.device_full = flushed_in_vain;
    }

    /// What is sent through a device that failed is lost, as behind a cut cable: whoever waits for an answer runs out of
    /// retries, and a completion says so.
    fn discard(&mut self, now: Instant) {
        let mut nowhere = vec![0; self.device.capabilities().max_datagram];
        while self.engine.poll_transmit(now, &mut TxSlot::new(&mut nowhere)).is_some() {}
    }

    fn flush(&mut self, now: Instant) {
        if let Err(error) = self.device.flush(now) {
            self.fail(error);
        }
    }

    pub(crate) fn collect_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Completion(cq) => self.notifications.push_back(cq),
                Event::Async(event) => self.async_events.push_back(event),
            }
        }
    }

    fn fail(&mut self, error: io::Error) {
        if self.failure.is_none() {
            tracing::error!(%error, "the device failed");
            self.failure = Some(error);
        }
    }

    /// The device's first lasting error.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// When somebody has to call [`progress`](Self::progress) although nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let cm = self.cm.as_ref().and_then(|cm| cm.manager.poll_timeout());
        [self.engine.poll_timeout(), self.device_deadline(), cm].into_iter().flatten().min()
    }

    fn device_deadline(&self) -> Option<Instant> {
        if self.failure.is_some() {
            // What it still wants to do it never can.
            return None;
        }
        let retry = self.device_full.then(|| self.now().plus_nanos(FULL_RETRY_NS));
        [self.device.deadline(), retry].into_iter().flatten().min()
    }
}
