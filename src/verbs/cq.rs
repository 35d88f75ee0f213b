//! Completion queues.

use std::sync::Arc;
use std::time::Duration;

use roce_transport::{CqId, Notify, Wc};

use super::{CompletionChannel, Context, RawCq, VerbsError, WaitError};
use crate::runtime::Runtime;

/// A completion queue.
///
/// ```
/// # use roce::device::memory::MemoryDevice;
/// # use roce::verbs::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (near, far) = MemoryDevice::pair("192.0.2.1".parse()?, "192.0.2.2".parse()?)?;
/// # let near = Context::builder().attach(near)?;
/// # let far = Context::builder().attach(far)?;
/// # let (near_pd, far_pd) = (near.alloc_pd()?, far.alloc_pd()?);
/// # let (near_cq, far_cq) = (near.create_cq(16, None)?, far.create_cq(16, None)?);
/// # let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq))?;
/// # let far_qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far_cq))?;
/// # near_qp.connect(&far_qp.endpoint()?, &ConnectOptions::default())?;
/// # far_qp.connect(&near_qp.endpoint()?, &ConnectOptions::default())?;
/// let buffer = far_pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let op = SendOp::Write { remote_addr: buffer.addr(), rkey: buffer.rkey() };
/// near_qp.post_send(&SendWr::inline(1, op, b"hello"))?;
///
/// let mut done = [Wc::default(); 4];
/// // Until there is at least one completion, or the time is over; `poll` does not wait.
/// let count = near_cq.wait(&mut done, Some(std::time::Duration::from_secs(5)))?;
/// for wc in &done[..count] {
///     println!("work request {} is complete", wc.result()?.wr_id);
/// }
/// # Ok(())
/// # }
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
        let runtime = self.runtime();
        runtime.wait_for_completions(timeout, self.0.raw.occupancy(), || {
            runtime.note_poll();
            let count = runtime.lock().nic.engine.poll_cq(self.id(), out).map_err(VerbsError::from)?;
            Ok((count > 0).then_some(count))
        })
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
