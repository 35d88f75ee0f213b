//! Completion queues and the channels that their events go to.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roce_transport::{CqId, Notify, Wc};

use super::{Context, VerbsError};
use crate::driver::wake::{Wake, wait_readable};

/// Who waits for a completion looks again after so long in any case, for another thread may have taken it in; and after
/// twice as long each time while no other thread makes progress.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// The longest of these times.
const LONGEST_LOOK: Duration = Duration::from_millis(8);

/// When a waiting thread looks again.
struct Look {
    after: Duration,
    /// How often anybody had made progress when it looked last.
    polls: u64,
}

impl Look {
    /// For how long to sleep now. Between two sleeps a thread polls once itself.
    fn next(&mut self, polls: u64) -> Duration {
        let is_alone = polls == self.polls.wrapping_add(1);
        self.after = if is_alone { (2 * self.after).min(LONGEST_LOOK) } else { FIRST_LOOK };
        self.polls = polls;
        self.after
    }
}

/// Where completion events arrive: a descriptor for poll, epoll or tokio, and the queues that had one. The descriptor
/// becomes readable without an event when the device fails; polling a queue then tells the error.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    context: Context,
    state: Arc<ChannelState>,
}

#[derive(Debug)]
pub(crate) struct ChannelState {
    wake: Wake,
    events: Mutex<VecDeque<CqId>>,
}

/// Which channel each completion queue reports to.
#[derive(Debug, Default)]
pub(crate) struct ChannelRegistry {
    by_cq: Mutex<HashMap<CqId, Arc<ChannelState>>>,
    is_failure_told: AtomicBool,
}

impl ChannelRegistry {
    pub(crate) fn notify(&self, cq: CqId) {
        let channel = self.by_cq.lock().unwrap_or_else(PoisonError::into_inner).get(&cq).cloned();
        if let Some(channel) = channel {
            channel.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(cq);
            channel.wake.signal();
        }
    }

    /// The device failed: whoever sleeps on a channel waits in vain, and shall poll and find the error.
    pub(crate) fn tell_failure(&self) {
        if self.is_failure_told.swap(true, Ordering::Relaxed) {
            return;
        }
        for channel in self.by_cq.lock().unwrap_or_else(PoisonError::into_inner).values() {
            channel.wake.signal();
        }
    }

    fn insert(&self, cq: CqId, channel: Arc<ChannelState>) {
        self.by_cq.lock().unwrap_or_else(PoisonError::into_inner).insert(cq, channel);
    }

    fn remove(&self, cq: CqId) {
        self.by_cq.lock().unwrap_or_else(PoisonError::into_inner).remove(&cq);
    }
}

impl CompletionChannel {
    pub(crate) fn new(context: &Context) -> Result<Self, VerbsError> {
        let wake = Wake::new().map_err(VerbsError::io("making an eventfd"))?;
        let state = ChannelState { wake, events: Mutex::new(VecDeque::new()) };
        Ok(Self { context: context.clone(), state: Arc::new(state) })
    }

    /// The next queue that had the event it was asked for, without waiting.
    #[must_use]
    pub fn try_event(&self) -> Option<CqId> {
        let mut events = self.state.events.lock().unwrap_or_else(PoisonError::into_inner);
        let event = events.pop_front();
        if events.is_empty() {
            self.state.wake.clear();
        }
        event
    }

    /// Waits for an event: makes progress itself for the context's spin time, then sleeps on the device.
    ///
    /// # Errors
    ///
    /// When `timeout` passes, the device failed, or the operating system refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<CqId, WaitError> {
        let inner = &self.context.inner;
        let end = timeout.map(|timeout| Instant::now() + timeout);
        let _waiting = inner.enter_wait();
        let mut spin_end = Instant::now() + inner.spin;
        loop {
            if let Some(cq) = self.try_event() {
                return Ok(cq);
            }
            if inner.lock_and_progress() {
                spin_end = Instant::now() + inner.spin;
                continue;
            }
            if let Err(error) = self.context.check_device() {
                // What came of this progress is told first.
                return self.try_event().ok_or(WaitError::Verbs(error));
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitError::TimedOut);
            }
            if now < spin_end {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(end.map(|end| end - now)).map_err(WaitError::Io)?;
        }
    }

    /// Sleeps until the device or another thread has something, or a deadline of the protocol comes.
    fn sleep(&self, remaining: Option<Duration>) -> std::io::Result<bool> {
        let inner = &self.context.inner;
        let deadline = {
            let driver = inner.lock();
            let now = driver.now();
            driver.deadline().map(|deadline| deadline.since(now))
        };
        let longest = Duration::from_millis(if inner.device_descriptor().is_some() { 50 } else { 1 });
        let timeout = [remaining, deadline, Some(longest)].into_iter().flatten().min();
        let own = self.state.wake.as_fd();
        match inner.device_descriptor() {
            Some(device) => wait_readable(&[own, device], timeout),
            None => wait_readable(&[own], timeout),
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.state.wake.as_fd()
    }
}

/// Why waiting ended without what was waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time was over.
    #[error("nothing happened within the time given")]
    TimedOut,
    /// The operating system refused.
    #[error("waiting failed: {0}")]
    Io(std::io::Error),
    /// A verb failed meanwhile.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<CqInner>);

#[derive(Debug)]
struct CqInner {
    context: Context,
    id: CqId,
    channel: Option<CompletionChannel>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.context.inner.channels.remove(self.id);
        let destroyed = self.context.inner.lock().engine.destroy_cq(self.id);
        debug_assert!(destroyed.is_ok(), "queue pairs keep their completion queues alive: {destroyed:?}");
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &Context,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, VerbsError> {
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context.inner, &context.inner)) {
            return Err(VerbsError::OtherContext("the completion channel"));
        }
        let id = context.inner.lock().engine.create_cq(capacity)?;
        if let Some(channel) = channel {
            context.inner.channels.insert(id, channel.state.clone());
        }
        Ok(Self(Arc::new(CqInner { context: context.clone(), id, channel: channel.cloned() })))
    }

    /// Its name in events of the channel.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// The channel that its events go to.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Moves completions out, oldest first. Makes progress when there are fewer than `out` has room for.
    ///
    /// # Errors
    ///
    /// When the queue overflowed and lost completions, or the device failed.
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        let inner = &self.0.context.inner;
        inner.note_poll();
        let mut driver = inner.lock();
        let count = driver.engine.poll_cq(self.0.id, out)?;
        if count == out.len() {
            return Ok(count);
        }
        driver.progress();
        inner.deliver_events(&mut driver);
        let more = driver.engine.poll_cq(self.0.id, &mut out[count..])?;
        if count + more == 0
            && let Some(error) = driver.failure()
        {
            return Err(VerbsError::DeviceFailed(error.to_string()));
        }
        Ok(count + more)
    }

    /// Polls until there is at least one completion: spins for the context's spin time, then sleeps.
    ///
    /// # Errors
    ///
    /// When `timeout` passes or polling fails.
    pub fn wait(&self, out: &mut [Wc], timeout: Option<Duration>) -> Result<usize, WaitError> {
        let inner = &self.0.context.inner;
        let _waiting = inner.enter_wait();
        let end = timeout.map(|timeout| Instant::now() + timeout);
        let mut spin_end = Instant::now() + inner.spin;
        let mut look = Look { after: FIRST_LOOK, polls: 0 };
        loop {
            let count = self.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitError::TimedOut);
            }
            if now < spin_end {
                std::hint::spin_loop();
                continue;
            }
            // Where something arrived, more may follow soon.
            if self.sleep(end.map(|end| end - now), &mut look).map_err(WaitError::Io)? {
                spin_end = Instant::now() + inner.spin;
            }
        }
    }

    fn sleep(&self, remaining: Option<Duration>, look: &mut Look) -> std::io::Result<bool> {
        let inner = &self.0.context.inner;
        let (deadline, after) = {
            let driver = inner.lock();
            let (now, statistics) = (driver.now(), &driver.statistics);
            let after = look.next(statistics.busy_polls + statistics.idle_polls);
            (driver.deadline().map(|deadline| deadline.since(now)), after)
        };
        let timeout = |longest| [remaining, deadline, Some(longest)].into_iter().flatten().min();
        match inner.device_descriptor() {
            Some(device) => wait_readable(&[device], timeout(after)),
            // Nothing tells of what arrives here.
            None => wait_readable(&[], timeout(FIRST_LOOK)),
        }
    }

    /// Asks for one event in the channel at the next completion (or the next solicited one). What is in
    /// the queue already raises none: ask, then poll once more, then wait.
    ///
    /// # Errors
    ///
    /// Never for a queue that exists.
    pub fn request_notification(&self, notify: Notify) -> Result<(), VerbsError> {
        Ok(self.0.context.inner.lock().engine.request_notification(self.0.id, notify)?)
    }

    /// Gives the queue another capacity; what it holds stays.
    ///
    /// # Errors
    ///
    /// When it holds more than would fit.
    pub fn resize(&self, capacity: usize) -> Result<(), VerbsError> {
        Ok(self.0.context.inner.lock().engine.resize_cq(self.0.id, capacity)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rare_only_while_nobody_else_makes_progress() {
        let mut look = Look { after: FIRST_LOOK, polls: 0 };
        let mut after = |polls| look.next(polls).as_millis();
        assert_eq!([7, 8, 9, 10, 11, 12].map(&mut after), [1, 2, 4, 8, 8, 8]);
        // Another thread polled as well, or this one spun.
        assert_eq!([14, 15, 17, 20].map(&mut after), [1, 2, 1, 1]);
    }
}
