//! Completion queues.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use roce_transport::{CqId, Notify, Wc};

use super::{CompletionChannel, Context, RawCq, VerbsError, WaitError};
use crate::runtime::{Runtime, WaitFailure};

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
