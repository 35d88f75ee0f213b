//! The runtime of an open device, which all handles share: the state behind a mutex, the guard that delivers
//! events, the waiting policy, and the background thread.
//!
//! Only this module locks the mutex. The layers below do not know that it exists.

mod background;
mod crowding;
mod engines;
mod events;
mod lock;
mod pace;
mod policy;
mod postponed;
mod posts;
mod several;
mod state;
mod turns;
mod wait;
mod waiters;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use roce_packet::Telemetry;
use roce_transport::{AsyncEvent, Engine, EngineConfig};

use crate::device::descriptors::aside;
use crate::device::fork::Mutex;
use crate::device::{Capabilities, Clock, Device};
use crate::driver::Nic;
use crate::driver::wake::Wake;
use crate::observe::CounterSource;

pub(crate) use engines::{Engines, Opening};
pub(crate) use events::{CompletionEvents, EventQueue};
pub(crate) use lock::{AllLocked, Locked};
use pace::Pace;
pub(crate) use several::{Several, Stand, Standing};
pub(crate) use state::State;
use wait::Activity;
pub(crate) use wait::WaitFailure;

/// Maximum time for which a thread that makes progress leaves the lock to others. A thread that was asleep
/// needs about 50 µs to run.
const LONGEST_YIELD: Duration = Duration::from_micros(200);

/// One engine of a context with its device and lock, shared by all handles of the context. Its alignment of
/// two cache lines prevents threads that use different engines from writing to the same lines.
#[repr(align(128))]
pub(crate) struct Runtime {
    state: Mutex<State>,
    /// Number of threads that wait for the state's lock.
    queued: AtomicUsize,
    pub(crate) capabilities: Capabilities,
    /// Maximum number of bytes after the ICRC of a datagram.
    pub(crate) trailer: usize,
    pub(crate) addresses: Vec<IpAddr>,
    /// The event queue of all engines of the context.
    pub(crate) async_events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) completion_events: CompletionEvents,
    device_descriptor: Option<OwnedFd>,
    /// Wakes the background thread.
    wake: Wake,
    activity: Activity,
    spin: Duration,
    stopped: AtomicBool,
    random: Mutex<fastrand::Rng>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Runtime").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

impl Runtime {
    fn new(
        config: EngineConfig,
        device: Box<dyn Device>,
        random: fastrand::Rng,
        spin: Duration,
        (clock, async_events): (Clock, Arc<EventQueue<AsyncEvent>>),
    ) -> io::Result<Self> {
        let device_descriptor =
            device.as_fd().map(|descriptor| descriptor.try_clone_to_owned().map(aside)).transpose()?;
        let trailer = if config.telemetry { Telemetry::LEN } else { 0 };
        let (capabilities, addresses) = (device.capabilities().clone(), device.addresses().to_vec());
        let mut nic = Nic::new(Engine::new(config), device, clock);
        let pace = Pace::measure(&mut nic);
        Ok(Self {
            capabilities,
            trailer,
            addresses,
            async_events,
            completion_events: CompletionEvents::default(),
            device_descriptor,
            wake: Wake::new()?,
            activity: Activity::new(clock, pace),
            spin,
            stopped: AtomicBool::new(false),
            random: Mutex::new(random),
            queued: AtomicUsize::new(0),
            state: Mutex::new(State::new(nic, pace)),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves the engine between two calls, so the state stays usable.
        if let Some(guard) = self.state.try_lock() {
            return guard;
        }
        self.queued.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.lock();
        self.queued.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Lets threads that wait for the lock take it first. The mutex of the standard library is not fair:
    /// without this call, a loop that makes progress during a flood would keep other threads out.
    pub(crate) fn yield_lock(&self) {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let start = Instant::now();
        while self.queued.load(Ordering::Relaxed) > 0 && start.elapsed() < LONGEST_YIELD {
            std::thread::yield_now();
        }
    }

    /// Locks the state. Dropping the guard delivers the events of the caller's changes.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.lock_state())
    }

    /// Locks the state for a poll of an empty queue. Returns `None` if another thread holds the lock, because
    /// that thread makes progress, or if a poll checked the device shortly before `now`.
    #[inline]
    pub(crate) fn try_look(&self, now: u64) -> Option<Locked<'_>> {
        if !self.activity.is_look_due(now) {
            return None;
        }
        let state = match self.state.try_lock() {
            Some(state) => state,
            // Every poll reports a failure of the device, even while the background thread holds the lock.
            None if self.activity.has_failed() => self.lock_state(),
            None => return None,
        };
        self.activity.begin_look(now);
        Some(Locked::new(self, state))
    }

    fn wake_background(&self) {
        self.wake.signal();
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.random.lock().u64(..)
    }
}

impl CounterSource for Runtime {
    /// Visits the counters of this engine, without those that all engines of the context share.
    fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        // Collected first, because the caller's function must not run under the lock.
        let mut counters = Vec::with_capacity(128);
        let events_lost = {
            let state = self.lock();
            state.visit_counters(&mut |name, value| counters.push((name, value)));
            state.nic.engine.events_lost()
        };
        counters.push(("async_events_lost", events_lost));
        counters.into_iter().for_each(|(name, value)| visit(name, value));
    }
}
