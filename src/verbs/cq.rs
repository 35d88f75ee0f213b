//! Completion queues: the handle, and the verbs on identifiers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use roce_transport::{CqId, Instant, Notify, Occupancy, Wc, with_causes};

use super::{CompletionChannel, Context, Raw, VerbsError, WaitError};
use crate::runtime::{Locked, Runtime, WaitFailure};

/// A completion queue.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// let buffer = far.pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let op = SendOp::Write { remote_addr: buffer.addr(), rkey: buffer.rkey() };
/// near.qp.post_send(&SendWr::inline(1, op, b"hello"))?;
///
/// let mut done = [Wc::default(); 4];
/// // Until there is at least one completion, or the time is over; `poll` does not wait.
/// let count = near.cq.wait(&mut done, Some(std::time::Duration::from_secs(5)))?;
/// for wc in &done[..count] {
///     println!("work request {} is complete", wc.result()?.wr_id);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<CqInner>);

#[derive(Debug)]
struct CqInner {
    context: Context,
    raw: RawCq,
    channel: Option<CompletionChannel>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let destroyed = self.context.raw().destroy_cq(&self.raw);
        debug_assert!(destroyed.is_ok(), "queue pairs keep their completion queues alive: {destroyed:?}");
    }
}

impl Context {
    /// Creates a completion queue of `capacity` entries in engine 0, whose events go to `channel` if one is
    /// given.
    ///
    /// # Errors
    ///
    /// Fails if the capacity or the number of queues is out of range.
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, 0, capacity, channel)
    }

    /// Creates a completion queue in this engine; [`create_cq`](Self::create_cq) does so in engine 0. Queue
    /// pairs that complete into the queue belong to the same engine.
    ///
    /// # Errors
    ///
    /// Fails like [`create_cq`](Self::create_cq), or if the context does not have this engine.
    pub fn create_cq_on(
        &self,
        engine: usize,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, engine, capacity, channel)
    }
}

impl CompletionQueue {
    fn new(
        context: &Context,
        engine: usize,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, VerbsError> {
        let raw = context.raw().create_cq_on(engine, capacity, channel)?;
        Ok(Self(Arc::new(CqInner { context: context.clone(), raw, channel: channel.cloned() })))
    }

    /// Returns the identifier of the queue, which channel events name.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.0.raw.id()
    }

    /// Returns the channel that receives the events of the queue.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the index of the engine that has the queue.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.0.context.index_of_slot(self.id().slot())
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.0.context.of_slot(self.id().slot())
    }

    /// Moves completions into `out`, oldest first. Makes progress if the queue holds fewer than `out` has
    /// room for.
    ///
    /// # Errors
    ///
    /// Fails if the queue overflowed and lost completions, or the device failed.
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        self.0.context.raw().poll_cq(&self.0.raw, out)
    }

    /// Polls until at least one completion arrives: spins for the context's spin time, then sleeps.
    ///
    /// # Errors
    ///
    /// Fails if `timeout` passes or polling fails.
    pub fn wait(&self, out: &mut [Wc], timeout: Option<Duration>) -> Result<usize, WaitError> {
        self.wait_until(timeout, || {
            let count = self.take(out)?;
            Ok((count > 0).then_some(count))
        })
    }

    /// Calls `attempt` until it returns a value, and waits in between as [`wait`](Self::wait) does. The
    /// attempt calls [`take`](Self::take).
    pub(crate) fn wait_until<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.runtime().wait_for_completions(timeout, self.0.raw.occupancy(), attempt)
    }

    /// Moves completions into `out` like [`poll`](Self::poll), without progress.
    pub(crate) fn take(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        let runtime = self.runtime();
        runtime.note_poll();
        Ok(runtime.lock().nic.engine.poll_cq(self.id(), out)?)
    }

    /// Wakes a task at the next completion, until [`forget_task`](Self::forget_task). Completions that are
    /// already in the queue do not wake it. Returns the number of the task.
    pub(crate) fn wake_at_event(&self, waker: Waker) -> Result<u64, VerbsError> {
        let task = self.runtime().completion_events.add_task(self.id(), waker);
        self.request_notification(Notify::Next).inspect_err(|_| self.forget_task(task))?;
        Ok(task)
    }

    /// Ends what [`wake_at_event`](Self::wake_at_event) began.
    pub(crate) fn forget_task(&self, task: u64) {
        self.runtime().completion_events.remove_task(self.id(), task);
    }

    /// Requests one channel event for the next completion, or the next solicited one. Completions that are
    /// already in the queue raise no event. Therefore request the event, poll once more, and only then wait.
    ///
    /// # Errors
    ///
    /// Never fails for a queue that exists.
    pub fn request_notification(&self, notify: Notify) -> Result<(), VerbsError> {
        self.0.context.raw().request_notification(&self.0.raw, notify)
    }

    /// Changes the capacity of the queue and keeps its completions.
    ///
    /// # Errors
    ///
    /// Fails if the queue holds more completions than the new capacity.
    pub fn resize(&self, capacity: usize) -> Result<(), VerbsError> {
        self.0.context.raw().resize_cq(&self.0.raw, capacity)
    }
}

/// A completion queue, with the data that a poll needs without the lock of the context.
#[derive(Debug)]
pub struct RawCq {
    id: CqId,
    occupancy: Occupancy,
    /// Whether a notification was requested, so that the next poll is the last one before the caller sleeps.
    is_last_look: AtomicBool,
}

impl RawCq {
    pub(super) const fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// Returns the identifier of the queue in events of its channel.
    #[must_use]
    pub const fn id(&self) -> CqId {
        self.id
    }
}

/// Completion queues.
impl Raw<'_> {
    /// Creates a completion queue of `capacity` entries in engine 0. Its events go to `channel`, if one is
    /// given.
    ///
    /// # Errors
    ///
    /// Fails if the capacity or the number of queues is out of range, or if the channel belongs to another
    /// context.
    pub fn create_cq(
        self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<RawCq, VerbsError> {
        self.create_cq_on(0, capacity, channel)
    }

    /// Creates a completion queue in another engine, to which its queue pairs will belong.
    ///
    /// # Errors
    ///
    /// Fails like [`create_cq`](Self::create_cq), or if the context does not have this engine.
    pub fn create_cq_on(
        self,
        engine: usize,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<RawCq, VerbsError> {
        if channel.is_some_and(|channel| !channel.is_of(self.context)) {
            return Err(VerbsError::OtherContext("the completion channel"));
        }
        let runtime = self.context.engine(engine)?;
        if let Some(channel) = channel {
            channel.note_engine(engine);
        }
        let (id, occupancy) = {
            let engine = &mut runtime.lock().nic.engine;
            let id = engine.create_cq(capacity)?;
            (id, engine.cq_occupancy(id).unwrap_or_default())
        };
        runtime.completion_events.insert(id, channel.map(CompletionChannel::events));
        Ok(RawCq { id, occupancy, is_last_look: AtomicBool::new(false) })
    }

    /// Destroys a completion queue with its entries.
    ///
    /// # Errors
    ///
    /// Fails if queue pairs use the queue.
    pub fn destroy_cq(self, cq: &RawCq) -> Result<(), VerbsError> {
        let runtime = self.of_cq(cq.id);
        // In one step, because another thread may get the same number for a new queue at once.
        let receiver = {
            let mut state = runtime.lock();
            state.nic.engine.destroy_cq(cq.id)?;
            runtime.completion_events.remove(cq.id)
        };
        drop(receiver);
        Ok(())
    }

    /// Moves completions to `out`, oldest first. Makes progress if the queue has fewer than `out` has room
    /// for. A poll of an empty queue takes no lock while another thread has it. After many polls without a
    /// packet, it checks the device only every 4 µs.
    ///
    /// # Errors
    ///
    /// Fails if the queue overflowed and lost completions, or if the device failed.
    #[inline]
    pub fn poll_cq(self, cq: &RawCq, out: &mut [Wc]) -> Result<usize, VerbsError> {
        self.begin_poll(cq).map_or(Ok(0), |poll| poll.finish(out))
    }

    /// Begins a [`poll_cq`](Self::poll_cq), for callers that allocate room for completions only if there may
    /// be some. Returns `None` if the queue is empty and the poll has no check of the device to make.
    #[inline]
    pub fn begin_poll<'a>(self, cq: &'a RawCq) -> Option<PollInProgress<'a>>
    where
        Self: 'a,
    {
        let runtime = self.of_cq(cq.id);
        // The last poll before a sleep must not keep the background thread away.
        let is_last_look =
            cq.is_last_look.load(Ordering::Relaxed) && cq.is_last_look.swap(false, Ordering::Relaxed);
        let (state, now) = if cq.occupancy.is_occupied() || is_last_look {
            if !is_last_look {
                runtime.note_poll();
            }
            let state = runtime.lock();
            // Read after locking, because the thread may have waited for the lock.
            let now = state.nic.now();
            (state, now)
        } else {
            runtime.begin_check()?
        };
        Some(PollInProgress { runtime, state, cq, now, is_last_look })
    }

    /// Requests one event in the channel, for the next completion or the next solicited one. Completions that
    /// are already in the queue cause no event: request the event, poll once more, then wait.
    ///
    /// # Errors
    ///
    /// Fails if the queue does not exist.
    pub fn request_notification(self, cq: &RawCq, notify: Notify) -> Result<(), VerbsError> {
        let runtime = self.of_cq(cq.id);
        let mut state = runtime.lock();
        state.nic.engine.request_notification(cq.id, notify)?;
        let now = state.nic.now();
        state.transmit_postponed(now);
        drop(state);
        cq.is_last_look.store(true, Ordering::Relaxed);
        runtime.note_end_of_polling();
        Ok(())
    }

    /// Changes the capacity of a queue and keeps its entries.
    ///
    /// # Errors
    ///
    /// Fails if the queue holds more entries than would fit, or if the capacity is out of range.
    pub fn resize_cq(self, cq: &RawCq, capacity: usize) -> Result<(), VerbsError> {
        Ok(self.of_cq(cq.id).lock().nic.engine.resize_cq(cq.id, capacity)?)
    }
}

/// A poll that holds the lock of the state.
pub struct PollInProgress<'a> {
    runtime: &'a Runtime,
    state: Locked<'a>,
    cq: &'a RawCq,
    now: Instant,
    is_last_look: bool,
}

impl std::fmt::Debug for PollInProgress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PollInProgress").field("cq", &self.cq.id).finish_non_exhaustive()
    }
}

impl PollInProgress<'_> {
    /// Receives packets if there is room in `out`, and moves completions to it. Returns their number.
    ///
    /// # Errors
    ///
    /// Fails like [`Raw::poll_cq`].
    pub fn finish(self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        let Self { runtime, mut state, cq, now, is_last_look } = self;
        let mut found = state.nic.engine.poll_cq(cq.id, out)?;
        let mut is_in_vain = false;
        if found < out.len() {
            // An application that is about to sleep posts nothing soon, so nothing is postponed.
            let has_arrived =
                if is_last_look { state.progress() } else { state.progress_for(now, &cq.occupancy) };
            runtime.note_check(&mut state, has_arrived);
            is_in_vain = !has_arrived;
            found += state.nic.engine.poll_cq(cq.id, &mut out[found..])?;
            if found == 0
                && let Some(error) = state.nic.failure()
            {
                return Err(VerbsError::DeviceFailed(with_causes(error).to_string()));
            }
        } else {
            state.transmit_postponed(now);
        }
        // An application with more outstanding requests polls for them anyway.
        let is_last = |wc: &Wc| state.nic.engine.queue_depths(wc.qpn).is_some_and(|(sends, _)| sends == 0);
        let may_linger =
            !is_last_look && out[..found].last().is_some_and(is_last) && !cq.occupancy.is_occupied();
        let stay = may_linger.then(|| state.begin_to_linger(now)).flatten();
        drop(state);
        if is_in_vain && !is_last_look && found == 0 {
            runtime.share_processor();
        }
        if let Some(stay) = stay {
            runtime.linger(stay);
        }
        Ok(found)
    }
}
