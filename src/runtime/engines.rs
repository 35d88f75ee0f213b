//! The engines of one context. Each has a device, a lock and a background thread of its own.
//!
//! The devices share an address (docs/how-to/sharing.md), so each has a process slot. Numbers of queue pairs
//! and queues begin with the slot, which identifies the engine of an object. Every context has engine 0,
//! which contains the connection management.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rand_chacha::ChaCha12Rng;
use roce_transport::{AsyncEvent, EngineConfig, ProcessSlot};

use super::{AllLocked, EventQueue, Runtime, background};
use crate::cm::queue_pairs::{OtherEngines, Siblings};
use crate::device::fork::Process;
use crate::device::{Clock, Device};
use crate::driver::Nic;
use crate::driver::wake::join;
use crate::observe::{CounterSource, Explanation, Publisher};

/// The parts that an engine is opened with.
pub(crate) struct Opening {
    pub(crate) config: EngineConfig,
    pub(crate) device: Box<dyn Device>,
    pub(crate) random: ChaCha12Rng,
}

/// The engines of a context and their threads, which end when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Engines {
    first: Arc<Runtime>,
    others: Arc<[Arc<Runtime>]>,
    /// The index of the engine of each process slot; 0 if no engine has the slot.
    by_slot: [u8; ProcessSlot::MAX.get() as usize + 1],
    background: Vec<JoinHandle<()>>,
    counters: Arc<EngineCounters>,
    /// The publisher of the counters to other processes.
    publisher: Option<Publisher>,
    process: Process,
}

impl Engines {
    /// Opens an engine on each device, `first` and `others`. All engines share the clock.
    pub(crate) fn new(
        first: Opening,
        others: Vec<Opening>,
        spin: Duration,
        clock: Clock,
    ) -> io::Result<Self> {
        let events = Arc::new(EventQueue::new(first.config.max_events)?);
        let mut by_slot = [0; ProcessSlot::MAX.get() as usize + 1];
        for (index, opening) in (1..).zip(&others) {
            by_slot[usize::from(opening.config.process_slot.get())] = index;
        }
        let make = |opening: Opening| {
            let Opening { config, device, random } = opening;
            Runtime::new(config, device, random, spin, (clock, events.clone())).map(Arc::new)
        };
        let first = make(first)?;
        let others: Arc<[_]> = others.into_iter().map(make).collect::<io::Result<Vec<_>>>()?.into();
        if !others.is_empty() {
            first.lock().siblings = Siblings::new(Arc::new(Others(others.clone())));
        }
        let runtimes = std::iter::once(&first).chain(others.iter()).map(Arc::downgrade).collect();
        let counters = Arc::new(EngineCounters { runtimes, events });
        Ok(Self {
            first,
            others,
            by_slot,
            background: Vec::new(),
            counters,
            publisher: None,
            process: Process::current(),
        })
    }

    /// Starts the threads that make progress while the application does not.
    pub(crate) fn start_background(&mut self) -> io::Result<()> {
        for runtime in std::iter::once(&self.first).chain(self.others.iter()) {
            self.background.push(background::start(runtime)?);
        }
        Ok(())
    }

    /// Lets other processes of this user read the counters.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        let Runtime { capabilities, addresses, .. } = &*self.first;
        self.publisher =
            Some(Publisher::start(capabilities.kind, addresses, Arc::downgrade(&self.counters))?);
        Ok(())
    }

    /// Returns engine 0.
    #[inline]
    pub(crate) fn first(&self) -> &Runtime {
        &self.first
    }

    pub(crate) fn len(&self) -> usize {
        1 + self.others.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Runtime> {
        match index.checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get(other).map(Arc::as_ref),
        }
    }

    /// Returns all engines in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Runtime> {
        std::iter::once(self.first()).chain(self.others.iter().map(Arc::as_ref))
    }

    /// Returns the engine of an object whose number begins with this slot. If no engine has the slot, returns
    /// engine 0, which then does not contain the object either.
    #[inline]
    pub(crate) fn of_slot(&self, slot: ProcessSlot) -> &Runtime {
        if self.others.is_empty() { &self.first } else { self.look_up(slot) }
    }

    #[inline]
    fn look_up(&self, slot: ProcessSlot) -> &Runtime {
        self.get(self.index_of_slot(slot)).unwrap_or(&self.first)
    }

    pub(crate) fn index_of_slot(&self, slot: ProcessSlot) -> usize {
        self.by_slot[usize::from(slot.get())].into()
    }

    /// Locks all engines, for objects that exist in each.
    pub(crate) fn lock_all(&self) -> AllLocked<'_> {
        AllLocked::new(self.iter())
    }

    /// Returns the counters of all engines together.
    pub(crate) fn counters(&self) -> &EngineCounters {
        &self.counters
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // In the child of a fork: the threads and the device belong to the parent.
            self.background.drain(..).for_each(std::mem::forget);
            return;
        }
        for runtime in self.iter() {
            runtime.stopped.store(true, Ordering::Release);
            runtime.wake_background();
        }
        self.background.drain(..).for_each(join);
        // Sends pending responses of queue pairs, such as acknowledgements.
        self.iter().for_each(|runtime| runtime.lock().transmit_owed());
    }
}

/// The counters of a context: sums over its engines.
#[derive(Debug)]
pub(crate) struct EngineCounters {
    runtimes: Vec<Weak<Runtime>>,
    /// The event queue, which counts lost events for all engines.
    events: Arc<EventQueue<AsyncEvent>>,
}

impl CounterSource for EngineCounters {
    fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let mut sums: Vec<(&'static str, u64)> = Vec::with_capacity(128);
        for runtime in self.runtimes.iter().filter_map(Weak::upgrade) {
            runtime.visit_counters(
                &mut |name, value| match sums.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += value,
                    None => sums.push((name, value)),
                },
            );
        }
        if let Some((_, lost)) = sums.iter_mut().find(|(name, _)| *name == "async_events_lost") {
            *lost += self.events.lost();
        }
        sums.into_iter().for_each(|(name, value)| visit(name, value));
    }

    fn explanations(&self, most: usize) -> Vec<Explanation> {
        let all = self.runtimes.iter().filter_map(Weak::upgrade);
        let mut all: Vec<Explanation> = all.flat_map(|runtime| runtime.explanations(most)).collect();
        all.sort_by_key(|explanation| (explanation.reason.is_none(), explanation.incomplete == 0));
        all.truncate(most);
        all
    }

    fn visit_engine_counters(&self, visit: &mut dyn FnMut(usize, &'static str, u64)) {
        if self.runtimes.len() < 2 {
            return;
        }
        for (index, runtime) in self.runtimes.iter().enumerate() {
            let Some(runtime) = runtime.upgrade() else { continue };
            runtime.visit_counters(&mut |name, value| {
                if value > 0 {
                    visit(index, name, value);
                }
            });
        }
    }
}

/// The other engines for the connection management, which runs in engine 0. The caller has locked engine 0,
/// which precedes all others in the locking order.
#[derive(Debug)]
struct Others(Arc<[Arc<Runtime>]>);

impl OtherEngines for Others {
    fn with_nic_of(&self, slot: ProcessSlot, work: &mut dyn FnMut(&mut Nic)) {
        let has_slot = |runtime: &&Arc<Runtime>| runtime.capabilities.process_slot == slot;
        let Some(runtime) = self.0.iter().find(has_slot) else { return };
        // Not `lock`, whose guard delivers events: engine 0 is locked, so no foreign code may run now.
        let mut state = runtime.lock_state();
        work(&mut state.nic);
        state.transmit();
        let has_deliveries = state.has_deliveries();
        drop(state);
        if has_deliveries {
            // The next thread that locks this engine delivers the events. The background thread is woken to
            // be one.
            runtime.wake_background();
        }
    }
}
