//! The link of a device that can fail on demand: a wrapper around the device, and the events that follow.
//! [`roce_fault::verbs`] decides when the link is down.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::Thread;
use std::time::Instant as WallTime;

use roce::device::fork::Mutex;
use roce::device::{Capabilities, Device, Instant, Received, Transmit, TxSlot, forward_to_inner};
use roce::verbs::Qpn;
use roce_fault::verbs::{LinkFaults, VerbsItem, VerbsPlan};
use rustix::event::{EventfdFlags, eventfd};

use crate::abi::{IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
use crate::faults;

/// An asynchronous event of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// An event of the port, by its number in libibverbs.
    Port(c_int),
    /// The device failed.
    Device,
    /// A queue pair failed.
    QueuePair(Qpn),
}

/// A change of a link that was not announced before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Down,
    Up,
    Fatal,
}

impl Change {
    /// Returns the event of the change.
    pub(crate) const fn event(self) -> Failed {
        match self {
            Self::Down => Failed::Port(IBV_EVENT_PORT_ERR),
            Self::Up => Failed::Port(IBV_EVENT_PORT_ACTIVE),
            Self::Fatal => Failed::Device,
        }
    }
}

/// The link of an open device, and its events.
pub(crate) struct Link {
    /// The first verb of the process.
    start: WallTime,
    state: Mutex<State>,
    events: Mutex<VecDeque<Failed>>,
    /// An eventfd that is readable while there are events.
    signal: OwnedFd,
}

struct State {
    faults: LinkFaults,
    /// Announced changes: whether the port is up, the number of flaps, and whether the device has failed.
    announced: (bool, u32, bool),
    /// The thread that announces changes.
    watcher: Option<Thread>,
}

impl Link {
    /// Creates the link of the device with this name, if the plan of the process has faults at points in time
    /// or of links.
    pub(crate) fn wanted(name: &str) -> io::Result<Option<Arc<Self>>> {
        let found = faults::with(|active| (active.faults.plan().clone(), active.start()));
        let is_watched = |item: &VerbsItem| matches!(item, VerbsItem::Outage(_) | VerbsItem::Flap(_));
        match found {
            Some((plan, start)) if plan.items.iter().any(is_watched) => {
                Ok(Some(Arc::new(Self::new(&plan, name, start)?)))
            }
            _ => Ok(None),
        }
    }

    fn new(plan: &VerbsPlan, name: &str, start: WallTime) -> io::Result<Self> {
        let faults = LinkFaults::new(plan, name);
        let state = State { faults, announced: (true, 0, false), watcher: None };
        Ok(Self {
            start,
            state: Mutex::new(state),
            events: Mutex::default(),
            signal: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    /// Returns whether the link itself has faults.
    pub(crate) fn has_faults(&self) -> bool {
        !self.state.lock().faults.is_empty()
    }

    /// Returns whether the port is up.
    pub(crate) fn is_up(&self) -> bool {
        let now = self.now();
        let faults = &self.state.lock().faults;
        faults.is_up(now) && !faults.has_failed(now)
    }

    /// Sets the thread that announces changes.
    pub(crate) fn set_watcher(&self, watcher: Thread) {
        self.state.lock().watcher = Some(watcher);
    }

    /// Returns the changes since the last call, and when the current flap ends.
    pub(crate) fn changes(&self) -> (Vec<Change>, Option<Instant>) {
        let now = self.now();
        let mut state = self.state.lock();
        let (mut was_up, flaps, had_failed) = state.announced;
        let (is_up, has_failed) = (state.faults.is_up(now), state.faults.has_failed(now));
        let flapped = state.faults.flapped();
        let mut changes = Vec::new();
        // A flap that has already ended is announced too.
        if was_up && (!is_up || flapped > flaps) {
            changes.push(Change::Down);
            was_up = false;
        }
        if !was_up && is_up {
            changes.push(Change::Up);
        }
        if has_failed && !had_failed {
            changes.push(Change::Fatal);
        }
        state.announced = (is_up, flapped, has_failed);
        let end = state.faults.down_until();
        (changes, (now < end).then_some(end))
    }

    /// Adds an event for the application.
    pub(crate) fn push(&self, event: Failed) {
        let mut events = self.events.lock();
        events.push_back(event);
        // Fails only if the counter is at its maximum, and then the descriptor is readable.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }

    /// Returns the next event.
    pub(crate) fn pop(&self) -> Option<Failed> {
        let mut events = self.events.lock();
        let event = events.pop_front();
        if events.is_empty() {
            // Fails if the counter is zero already.
            let _ = rustix::io::read(&self.signal, &mut [0_u8; 8]);
        }
        event
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// A device whose link can fail.
pub(crate) struct LinkDevice {
    inner: Box<dyn Device>,
    link: Arc<Link>,
    /// The slot while the link is down.
    nowhere: Vec<u8>,
    is_nowhere: bool,
}

impl LinkDevice {
    pub(crate) fn new(inner: Box<dyn Device>, link: Arc<Link>) -> Self {
        let nowhere = vec![0; inner.capabilities().max_datagram];
        Self { inner, link, nowhere, is_nowhere: false }
    }

    /// Returns whether datagrams pass.
    ///
    /// # Errors
    ///
    /// The device has failed.
    fn passes(&self) -> io::Result<bool> {
        let now = self.link.now();
        let faults = &self.link.state.lock().faults;
        if faults.has_failed(now) {
            return Err(io::Error::other("a fault on demand ended the device"));
        }
        Ok(faults.is_up(now))
    }
}

impl Device for LinkDevice {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.is_nowhere = !matches!(self.passes(), Ok(true));
        if self.is_nowhere { Some(TxSlot::new(&mut self.nowhere)) } else { self.inner.slot() }
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        if self.is_nowhere {
            return;
        }
        self.inner.commit(now, transmit);
        let now = self.link.now();
        let mut state = self.link.state.lock();
        if state.faults.sent(now, transmit.len)
            && let Some(watcher) = &state.watcher
        {
            watcher.unpark();
        }
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.passes()?;
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        if self.passes()? {
            return self.inner.receive(now, sink);
        }
        // Datagrams that arrive while the link is down are lost.
        self.inner.receive(now, &mut |_| {}).map(|_| 0)
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}
