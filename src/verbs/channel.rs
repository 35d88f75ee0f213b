//! The channels that receive the events of completion queues.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roce_transport::CqId;

use super::{Context, VerbsError};
use crate::driver::wake::{MOST_DESCRIPTORS, Slept};
use crate::runtime::{EventQueue, Runtime, Standing, Turn, WaitFailure, WaitFor};

/// A channel for completion events: a descriptor for poll, epoll or tokio, and a list of the queues that had
/// an event. If the device fails, the descriptor becomes readable without an event, and polling a queue
/// returns the error.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// let channel = far.context.create_channel()?;
/// let cq = far.context.create_cq(16, Some(&channel))?;
/// let qp = far.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
/// # let near = near.towards(&qp)?;
/// let buffer = far.pd.allocate(4096, Access::LOCAL_WRITE)?;
/// qp.post_recv(&RecvWr { wr_id: 7, elements: &[buffer.element(0..4096)] })?;
///
/// cq.request_notification(Notify::Next)?;
/// let mut done = [Wc::default()];
/// // What had completed before the request raises no event.
/// assert_eq!(cq.poll(&mut done)?, 0);
/// near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello"))?;
/// assert_eq!(channel.wait(None)?, cq.id());
/// assert_eq!(cq.poll(&mut done)?, 1);
/// done[0].result()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    context: Context,
    events: Arc<EventQueue<CqId>>,
    /// Bit mask of the engines that have, or had, queues with this channel.
    engines: Arc<AtomicU64>,
}

impl Context {
    /// Creates a channel for completion events: a descriptor to wait on.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses a descriptor.
    pub fn create_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(self)
    }
}

impl CompletionChannel {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        // The application requests each event, so it limits their number itself.
        let events = EventQueue::new(usize::MAX).map_err(VerbsError::io("cannot create an eventfd"))?;
        Ok(Self { context: context.clone(), events: Arc::new(events), engines: Arc::default() })
    }

    pub(super) fn is_of(&self, context: &Context) -> bool {
        self.context.is_same(context)
    }

    pub(super) fn events(&self) -> Arc<EventQueue<CqId>> {
        self.events.clone()
    }

    /// Returns the next queue that had a requested event, without waiting.
    #[must_use]
    pub fn try_event(&self) -> Option<CqId> {
        self.events.pop()
    }

    /// Waits for an event: makes progress itself for the context's spin time, then sleeps on the device.
    ///
    /// # Errors
    ///
    /// Fails if `timeout` passes, the device failed, or the operating system refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<CqId, WaitError> {
        self.with_engines(|engines| self.wait_for(engines).wait(timeout, || Ok(self.try_event())))
    }

    fn wait_for<'a>(&'a self, engines: &'a [&'a Runtime]) -> WaitFor<'a> {
        WaitFor { engines, event: Some(self.as_fd()), queue: None }
    }

    /// Begins a wait in which the caller sleeps itself: see [`ChannelWait`].
    #[must_use]
    pub fn begin_wait(&self) -> ChannelWait {
        ChannelWait { channel: self.clone(), standing: Standing::default() }
    }

    /// Notes that a queue of this engine sends its events here.
    pub(super) fn note_engine(&self, engine: usize) {
        self.engines.fetch_or(1 << engine, Ordering::Relaxed);
    }

    /// Calls `work` with the engines whose queues send their events here.
    fn with_engines<T>(&self, work: impl FnOnce(&[&Runtime]) -> T) -> T {
        let engines = self.engines.load(Ordering::Relaxed);
        if engines.count_ones() < 2 {
            let only = engines.checked_ilog2().unwrap_or(0) as usize;
            let runtime = self.context.0.get(only).unwrap_or_else(|| self.context.runtime());
            return work(&[runtime]);
        }
        let has_queue = |(index, _): &(usize, _)| engines >> index & 1 == 1;
        let several = self.context.0.iter().enumerate().filter(has_queue).map(|(_, runtime)| runtime);
        work(&several.collect::<Vec<_>>())
    }
}

/// A wait for a channel event in which the caller sleeps itself.
///
/// A call of [`CompletionChannel::wait`] has to return. A thread may be cancelled while it sleeps, or leave
/// the sleep from a signal handler. Such a thread keeps this object in a place that outlives the sleep, and
/// takes turns:
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
/// No lock is held between two turns. If the object is not dropped, the background thread takes over the
/// device soon after the planned end of the sleep: at most half a second later.
#[derive(Debug)]
pub struct ChannelWait {
    channel: CompletionChannel,
    standing: Standing,
}

/// The result of one turn of a [`ChannelWait`].
#[derive(Debug)]
pub enum ChannelTurn {
    /// A queue had a requested event.
    Event(CqId),
    /// The caller must sleep like this before the next turn.
    Sleep(ChannelSleep),
}

/// A sleep between two turns: until one of the descriptors is readable or the timeout passes.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSleep {
    descriptors: [RawFd; MOST_DESCRIPTORS],
    number: usize,
    timeout: Duration,
}

impl ChannelSleep {
    /// Returns the descriptors to wait for. They stay open as long as the wait exists.
    #[must_use]
    pub fn descriptors(&self) -> &[RawFd] {
        &self.descriptors[..self.number]
    }

    /// Returns the maximum duration of the sleep.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl ChannelWait {
    /// Checks for an event and makes progress for a moment. `slept` is `None` in the first turn. In later
    /// turns it says whether a descriptor was readable after the sleep.
    ///
    /// # Errors
    ///
    /// Fails if the device failed.
    pub fn turn(&mut self, slept: Option<bool>) -> Result<ChannelTurn, WaitError> {
        let Self { channel, standing } = self;
        let slept = slept.map(|is_readable| if is_readable { Slept::Readable } else { Slept::Out });
        channel.with_engines(|engines| {
            let mut attempt = || Ok::<_, WaitError>(channel.try_event());
            match channel.wait_for(engines).turn(standing, slept, None, &mut attempt)? {
                Turn::Found(queue) => Ok(ChannelTurn::Event(queue)),
                Turn::Sleep(sleep) => {
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

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// The reason why a wait ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout passed.
    #[error("the time limit expired")]
    TimedOut,
    /// The operating system refused to wait.
    #[error("cannot wait")]
    Io(#[source] std::io::Error),
    /// A verb failed during the wait.
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
