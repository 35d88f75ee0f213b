//! Completion queues and the channels that their events go to.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roce_transport::{CqId, Notify, Wc};

use super::{Context, RawCq, VerbsError};
use crate::driver::wake::{MOST_DESCRIPTORS, Slept};
use crate::runtime::{EventQueue, Runtime, Several, Stand, Standing, WaitFailure};

/// Where completion events arrive: a descriptor for poll, epoll or tokio, and the queues that had one. The descriptor
/// becomes readable without an event when the device fails; polling a queue then returns the error.
///
/// ```
/// # use roce::device::memory::MemoryDevice;
/// # use roce::verbs::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (near, far) = MemoryDevice::pair("192.0.2.1".parse()?, "192.0.2.2".parse()?)?;
/// # let near = Context::builder().attach(Box::new(near))?;
/// # let far = Context::builder().attach(Box::new(far))?;
/// # let (near_pd, far_pd) = (near.alloc_pd()?, far.alloc_pd()?);
/// # let (near_cq, far_cq) = (near.create_cq(16, None)?, far.create_cq(16, None)?);
/// # let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq))?;
/// # let far_qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far_cq))?;
/// # near_qp.connect(&far_qp.endpoint()?, &ConnectOptions::default())?;
/// # far_qp.connect(&near_qp.endpoint()?, &ConnectOptions::default())?;
/// let channel = far.create_channel()?;
/// let cq = far.create_cq(16, Some(&channel))?;
/// let qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
/// # let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq))?;
/// # near_qp.connect(&qp.endpoint()?, &ConnectOptions::default())?;
/// # qp.connect(&near_qp.endpoint()?, &ConnectOptions::default())?;
/// let buffer = far_pd.allocate(4096, Access::LOCAL_WRITE)?;
/// qp.post_recv(&RecvWr { wr_id: 7, elements: &[buffer.element(0..4096)] })?;
///
/// cq.request_notification(Notify::Next)?;
/// let mut done = [Wc::default()];
/// // What had completed before the request raises no event.
/// assert_eq!(cq.poll(&mut done)?, 0);
/// near_qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello"))?;
/// assert_eq!(channel.wait(None)?, cq.id());
/// assert_eq!(cq.poll(&mut done)?, 1);
/// done[0].result()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    context: Context,
    events: Arc<EventQueue<CqId>>,
    /// The engines that have queues of the channel, or had: one bit for each.
    engines: Arc<AtomicU64>,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Context) -> Result<Self, VerbsError> {
        // Each event was asked for, so the application itself bounds their number.
        let events = EventQueue::new(usize::MAX).map_err(VerbsError::io("making an eventfd"))?;
        Ok(Self { context: context.clone(), events: Arc::new(events), engines: Arc::default() })
    }

    pub(super) fn is_of(&self, context: &Context) -> bool {
        self.context.is_same(context)
    }

    pub(super) fn events(&self) -> Arc<EventQueue<CqId>> {
        self.events.clone()
    }

    /// The next queue that had the event it was asked for, without waiting.
    #[must_use]
    pub fn try_event(&self) -> Option<CqId> {
        self.events.pop()
    }

    /// Waits for an event: makes progress itself for the context's spin time, then sleeps on the device.
    ///
    /// # Errors
    ///
    /// When `timeout` passes, the device failed, or the operating system refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<CqId, WaitError> {
        match self.engine() {
            Ok(runtime) => runtime.wait(timeout, Some(self.as_fd()), || Ok(self.try_event())),
            Err(several) => several.wait(timeout, self.as_fd(), || Ok(self.try_event())),
        }
    }

    /// Begins a wait whose caller sleeps itself, see [`ChannelWait`].
    #[must_use]
    pub fn begin_wait(&self) -> ChannelWait {
        ChannelWait { channel: self.clone(), standing: Standing::default() }
    }

    /// A queue of this engine has its events here.
    pub(super) fn note_engine(&self, engine: usize) {
        self.engines.fetch_or(1 << engine, Ordering::Relaxed);
    }

    /// The one engine whose queues have their events here, or all of those.
    fn engine(&self) -> Result<&Runtime, Several<'_>> {
        let engines = self.engines.load(Ordering::Relaxed);
        if engines.count_ones() < 2 {
            let only = engines.checked_ilog2().unwrap_or(0) as usize;
            return Ok(self.context.0.get(only).unwrap_or_else(|| self.context.runtime()));
        }
        let has_queue = |(index, _): &(usize, _)| engines >> index & 1 == 1;
        Err(Several::new(self.context.0.iter().enumerate().filter(has_queue).map(|(_, runtime)| runtime)))
    }
}

/// A wait for an event of a channel in which the caller sleeps itself.
///
/// [`CompletionChannel::wait`] must return. A thread that may be cancelled while it sleeps, or that a handler of a signal may take
/// elsewhere, keeps this object in a place that outlives the sleep, and takes turns:
///
/// ```no_run
/// # use roce::verbs::{ChannelSleep, ChannelTurn, CompletionChannel, CqId, WaitError};
/// # fn sleep(_: &ChannelSleep) -> bool { true }
/// # fn next(channel: &CompletionChannel) -> Result<CqId, WaitError> {
/// let mut wait = channel.begin_wait();
/// let mut slept = None;
/// loop {
///     match wait.turn(slept)? {
///         ChannelTurn::Event(queue) => return Ok(queue),
///         ChannelTurn::Sleep(how) => slept = Some(sleep(&how)),
///     }
/// }
/// # }
/// ```
///
/// No lock is held between two turns. If the object is not dropped, the background thread takes the device over soon after the end of the
/// sleep that was planned, at most half a second.
#[derive(Debug)]
pub struct ChannelWait {
    channel: CompletionChannel,
    standing: Standing,
}

/// One turn of a [`ChannelWait`].
#[derive(Debug)]
pub enum ChannelTurn {
    /// A queue had the event that it was asked for.
    Event(CqId),
    /// The next turn comes after this sleep.
    Sleep(ChannelSleep),
}

/// How to sleep between two turns: until one of the descriptors is readable, or until the time is over.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSleep {
    descriptors: [RawFd; MOST_DESCRIPTORS],
    number: usize,
    timeout: Duration,
}

impl ChannelSleep {
    /// The descriptors to wait for. They are open as long as the wait exists.
    #[must_use]
    pub fn descriptors(&self) -> &[RawFd] {
        &self.descriptors[..self.number]
    }

    /// The longest time.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl ChannelWait {
    /// Looks for an event, and makes progress for a moment. `slept` is `None` in the first turn; then it tells whether a descriptor
    /// was readable after the sleep.
    ///
    /// # Errors
    ///
    /// When the device failed.
    pub fn turn(&mut self, slept: Option<bool>) -> Result<ChannelTurn, WaitError> {
        let Self { channel, standing } = self;
        let slept = slept.map(|is_readable| if is_readable { Slept::Readable } else { Slept::Out });
        channel.with_engines(|engines| {
            match standing
                .turn(engines, slept, channel.as_fd(), || Ok::<_, WaitError>(channel.try_event()))?
            {
                Stand::Found(queue) => Ok(ChannelTurn::Event(queue)),
                Stand::Sleep(sleep) => {
                    let mut descriptors = [-1; MOST_DESCRIPTORS];
                    for (to, from) in descriptors.iter_mut().zip(sleep.descriptors()) {
                        *to = from.as_raw_fd();
                    }
                    let timeout = sleep.timeout().unwrap_or_default();
                    let number = sleep.descriptors().len();
                    Ok(ChannelTurn::Sleep(ChannelSleep { descriptors, number, timeout }))
                }
            }
        })
    }
}

impl Drop for ChannelWait {
    fn drop(&mut self) {
        let Self { channel, standing } = self;
        channel.with_engines(|engines| standing.leave(engines));
    }
}

impl CompletionChannel {
    fn with_engines<T>(&self, work: impl FnOnce(&[&Runtime]) -> T) -> T {
        match self.engine() {
            Ok(runtime) => work(&[runtime]),
            Err(several) => work(several.engines()),
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// Why waiting ended without what was waited for.
#[derive(thiserror::Error)]
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

impl From<WaitFailure> for WaitError {
    fn from(failure: WaitFailure) -> Self {
        match failure {
            WaitFailure::TimedOut => Self::TimedOut,
            WaitFailure::Io(error) => Self::Io(error),
            WaitFailure::Device(_, text) => Self::Verbs(VerbsError::DeviceFailed(text)),
        }
    }
}

/// A completion queue.
///
/// ```
/// # use roce::device::memory::MemoryDevice;
/// # use roce::verbs::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (near, far) = MemoryDevice::pair("192.0.2.1".parse()?, "192.0.2.2".parse()?)?;
/// # let near = Context::builder().attach(Box::new(near))?;
/// # let far = Context::builder().attach(Box::new(far))?;
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

impl CompletionQueue {
    pub(crate) fn new(
        context: &Context,
        engine: usize,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, VerbsError> {
        let raw = context.raw().create_cq_on(engine, capacity, channel)?;
        Ok(Self(Arc::new(CqInner { context: context.clone(), raw, channel: channel.cloned() })))
    }

    /// Its name in events of the channel.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.0.raw.id()
    }

    /// The channel that its events go to.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// The engine that has the queue.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.0.context.index_of_slot(self.id().slot())
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.0.context.of_slot(self.id().slot())
    }

    /// Moves completions out, oldest first. Makes progress when there are fewer than `out` has room for.
    ///
    /// # Errors
    ///
    /// When the queue overflowed and lost completions, or the device failed.
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        self.0.context.raw().poll_cq(&self.0.raw, out)
    }

    /// Polls until there is at least one completion: spins for the context's spin time, then sleeps.
    ///
    /// # Errors
    ///
    /// When `timeout` passes or polling fails.
    pub fn wait(&self, out: &mut [Wc], timeout: Option<Duration>) -> Result<usize, WaitError> {
        let runtime = self.runtime();
        runtime.wait_for_completions(timeout, self.0.raw.occupancy(), || {
            runtime.note_poll(true);
            let count = runtime.lock().nic.engine.poll_cq(self.id(), out).map_err(VerbsError::from)?;
            Ok((count > 0).then_some(count))
        })
    }

    /// Asks for one event in the channel at the next completion (or the next solicited one). What is in
    /// the queue already raises none: ask, then poll once more, then wait.
    ///
    /// # Errors
    ///
    /// Never for a queue that exists.
    pub fn request_notification(&self, notify: Notify) -> Result<(), VerbsError> {
        self.0.context.raw().request_notification(&self.0.raw, notify)
    }

    /// Gives the queue another capacity; what it holds stays.
    ///
    /// # Errors
    ///
    /// When it holds more than would fit.
    pub fn resize(&self, capacity: usize) -> Result<(), VerbsError> {
        self.0.context.raw().resize_cq(&self.0.raw, capacity)
    }
}
