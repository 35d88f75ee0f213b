//! Events that wait for the application: behind a descriptor, or for the waker of a task.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use roce_transport::CqId;

use crate::device::fork::Mutex;
use crate::driver::wake::{Wake, drop_each, wake_each};

/// A queue of events with a descriptor that is readable while the queue is not empty.
#[derive(Debug)]
pub(crate) struct EventQueue<T: Send + 'static> {
    wake: Wake,
    events: Mutex<VecDeque<T>>,
    capacity: usize,
    lost: AtomicU64,
}

impl<T: Send + 'static> EventQueue<T> {
    /// Creates a queue for at most `capacity` events.
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self { wake: Wake::new()?, events: Mutex::default(), capacity, lost: AtomicU64::new(0) })
    }

    /// Returns the number of events that were lost because the queue was full.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn push(&self, event: T) {
        let mut events = self.events.lock();
        if events.len() >= self.capacity {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        events.push_back(event);
        // Under the lock, because another thread could otherwise take the event and clear the descriptor
        // first.
        self.wake.signal();
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut events = self.events.lock();
        let event = events.pop_front();
        if events.is_empty() {
            self.wake.clear();
        }
        event
    }
}

impl<T: Send + 'static> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The channel of each completion queue, and the tasks that wait for its events.
#[derive(Debug, Default)]
pub(crate) struct CompletionEvents {
    receivers: Mutex<Receivers>,
}

#[derive(Debug, Default)]
struct Receivers {
    by_cq: HashMap<CqId, Receiver>,
    last_task: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Receiver {
    channel: Option<Arc<EventQueue<CqId>>>,
    tasks: Vec<(u64, Waker)>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Wakers of forgotten tasks, which were not dropped.
        drop_each(std::mem::take(&mut self.tasks).into_iter().map(|(_, waker)| waker));
    }
}

impl CompletionEvents {
    /// Passes an event to the tasks that wait for it, or to the channel if no task waits. Runs foreign code.
    pub(super) fn notify(&self, cq: CqId) {
        let (channel, tasks) = {
            let mut receivers = self.receivers.lock();
            let Some(receiver) = receivers.by_cq.get_mut(&cq) else { return };
            (receiver.channel.clone(), std::mem::take(&mut receiver.tasks))
        };
        match channel {
            Some(channel) if tasks.is_empty() => channel.push(cq),
            _ => wake(tasks),
        }
    }

    /// Wakes all tasks and channels without an event, because the device failed and polling a queue reports
    /// this. Runs foreign code.
    pub(super) fn notify_all(&self) {
        let mut tasks = Vec::new();
        for receiver in self.receivers.lock().by_cq.values_mut() {
            if let Some(channel) = &receiver.channel {
                channel.wake.signal();
            }
            tasks.append(&mut receiver.tasks);
        }
        wake(tasks);
    }

    pub(crate) fn insert(&self, cq: CqId, channel: Option<Arc<EventQueue<CqId>>>) {
        self.receivers.lock().by_cq.insert(cq, Receiver { channel, tasks: Vec::new() });
    }

    /// Removes a queue. The caller drops what it returns without a lock, because that may run foreign code.
    #[must_use = "drop it without a lock"]
    pub(crate) fn remove(&self, cq: CqId) -> Option<Receiver> {
        self.receivers.lock().by_cq.remove(&cq)
    }

    /// Wakes a task at the next event of this queue, while the returned registration exists.
    pub(crate) fn register(&self, cq: CqId, waker: Waker) -> Registration<'_> {
        Registration { events: self, cq, task: self.add_task(cq, waker) }
    }

    /// Wakes a task at the next event of this queue, until [`remove_task`](Self::remove_task). Returns the
    /// number of the task.
    pub(crate) fn add_task(&self, cq: CqId, waker: Waker) -> u64 {
        let mut receivers = self.receivers.lock();
        receivers.last_task += 1;
        let task = receivers.last_task;
        if let Some(receiver) = receivers.by_cq.get_mut(&cq) {
            receiver.tasks.push((task, waker));
        }
        task
    }

    /// Ends what [`add_task`](Self::add_task) began.
    pub(crate) fn remove_task(&self, cq: CqId, task: u64) {
        let waker = {
            let mut receivers = self.receivers.lock();
            let tasks = receivers.by_cq.get_mut(&cq).map(|receiver| &mut receiver.tasks);
            tasks.and_then(|tasks| {
                let position = tasks.iter().position(|(known, _)| *known == task)?;
                Some(tasks.swap_remove(position))
            })
        };
        // Dropped after the lock is released.
        drop_each(waker.map(|(_, waker)| waker));
    }
}

fn wake(tasks: Vec<(u64, Waker)>) {
    wake_each(tasks.into_iter().map(|(_, waker)| waker));
}

/// A task that waits for an event of a completion queue.
#[derive(Debug)]
pub(crate) struct Registration<'a> {
    events: &'a CompletionEvents,
    cq: CqId,
    task: u64,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.events.remove_task(self.cq, self.task);
    }
}
