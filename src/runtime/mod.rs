//! The runtime of an open device, which all handles share: the state behind a mutex, the guard that delivers
//! events, waiting as `roce_policy` decides, and the background thread.
//!
//! Only this module locks the mutex. The layers below do not know that it exists.

mod background;
mod crowding;
mod engines;
mod events;
mod lock;
mod poll;
mod state;
mod wait;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha12Rng;
use rand_core::Rng;
use roce_packet::{Qpn, Telemetry};
use roce_policy::{Timing, Watch};
use roce_transport::{AsyncEvent, Engine, EngineConfig};

use crate::device::descriptors::aside;
use crate::device::fork::Mutex;
use crate::device::{Capabilities, Clock, Device};
use crate::driver::Nic;
use crate::driver::wake::Wake;
use crate::observe::{CounterSource, Explanation};

pub(crate) use engines::{Engines, Opening};
pub(crate) use events::{CompletionEvents, EventQueue};
pub(crate) use lock::{AllLocked, Locked};
pub(crate) use state::State;
pub(crate) use wait::{Standing, Turn, WaitFailure, WaitFor};

/// Number of checks of a device of which the shortest counts, because others may have been interrupted.
const MEASURED_CHECKS: usize = 8;

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
    /// The clock of the NIC.
    clock: Clock,
    timing: Timing,
    watch: Watch,
    spin: Duration,
    /// Whether the device failed, which every poll reports.
    has_failed: AtomicBool,
    stopped: AtomicBool,
    random: Mutex<ChaCha12Rng>,
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
        random: ChaCha12Rng,
        spin: Duration,
        (clock, async_events): (Clock, Arc<EventQueue<AsyncEvent>>),
    ) -> io::Result<Self> {
        let device_descriptor =
            device.as_fd().map(|descriptor| descriptor.try_clone_to_owned().map(aside)).transpose()?;
        let trailer = if config.telemetry { Telemetry::LEN } else { 0 };
        let (capabilities, addresses) = (device.capabilities().clone(), device.addresses().to_vec());
        let mut nic = Nic::new(Engine::new(config), device, clock);
        let timing = measure(&mut nic);
        tracing::debug!(times = ?timing, "waiting times");
        Ok(Self {
            capabilities,
            trailer,
            addresses,
            async_events,
            completion_events: CompletionEvents::default(),
            device_descriptor,
            wake: Wake::new()?,
            clock,
            timing,
            watch: Watch::new(&timing),
            spin,
            has_failed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            random: Mutex::new(random),
            queued: AtomicUsize::new(0),
            state: Mutex::new(State::new(nic, &timing)),
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

    /// Returns whether a thread has the lock.
    fn is_locked(&self) -> bool {
        self.state.try_lock().is_none()
    }

    fn wake_background(&self) {
        self.wake.signal();
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.random.lock().next_u64()
    }
}

/// Measures checks of the device, for an engine that has no queue pairs yet.
fn measure(nic: &mut Nic) -> Timing {
    let check = |_| {
        let before = nic.now();
        nic.receive(before);
        nic.now().since(before)
    };
    (0..MEASURED_CHECKS).map(check).min().map_or(Timing::USUAL, Timing::measured)
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

    fn explanations(&self, most: usize) -> Vec<Explanation> {
        let state = self.lock();
        let engine = &state.nic.engine;
        let rank = |qpn: &Qpn| {
            let incomplete = engine.queue_depths(*qpn).is_some_and(|(sends, _)| sends > 0);
            (engine.reason(*qpn).is_none(), !incomplete, qpn.get())
        };
        // Queue pair 1 belongs to connection management.
        let mut numbers: Vec<Qpn> = engine.qp_numbers().filter(|qpn| *qpn != Qpn::GSI).collect();
        numbers.sort_unstable_by_key(rank);
        numbers.into_iter().take(most).filter_map(|qpn| Explanation::of(&state.nic, qpn)).collect()
    }
}
