//! Operations that were posted and can be waited for.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::end::{Done, End};
use super::error::Error;
use super::requests::Awaited;

/// An operation of a [`Peer`](super::Peer). It is on its way already: [`wait`](Self::wait) blocks until it
/// completes, and `.await` suspends the task.
///
/// A dropped operation continues, and nobody learns its outcome. If it fails, the connection ends, so later
/// operations fail too.
///
/// ```
/// let (near, far) = roce::loopback()?;
/// // Both are on their way at once.
/// let (first, second) = (near.send(b"one")?, near.send(b"two")?);
/// first.wait()?;
/// second.wait()?;
/// assert_eq!(far.receive().wait()?, b"one");
/// # Ok::<(), roce::Error>(())
/// ```
#[must_use = "the operation may fail: wait for it"]
pub struct Operation<T = ()> {
    end: Arc<End>,
    awaited: Option<Awaited>,
    /// The registered task, if one waits.
    task: Option<u64>,
    result: fn(Done) -> T,
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue_pair = self.end.qp.number();
        formatter.debug_struct("Operation").field("queue_pair", &queue_pair).finish_non_exhaustive()
    }
}

impl<T> Operation<T> {
    pub(super) fn new(end: &Arc<End>, awaited: Awaited, result: fn(Done) -> T) -> Self {
        Self { end: Arc::clone(end), awaited: Some(awaited), task: None, result }
    }

    /// Waits until the operation completes, and returns its result. The thread sends and receives meanwhile.
    ///
    /// # Errors
    ///
    /// Fails if the operation failed, or if the device did.
    pub fn wait(mut self) -> Result<T, Error> {
        self.wait_at_most(None)
    }

    /// Waits like [`wait`](Self::wait), for at most `timeout`.
    ///
    /// # Errors
    ///
    /// Fails like [`wait`](Self::wait). Fails with [`Error::TimedOut`] if the operation takes longer; then it
    /// continues, and can be waited for again. Fails with [`Error::Finished`] if it has returned its result
    /// before.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (near, far) = roce::loopback()?;
    /// let mut message = far.receive();
    /// let nothing = message.wait_timeout(Duration::from_millis(1));
    /// assert!(matches!(nothing, Err(roce::Error::TimedOut)));
    /// near.send(b"late")?.wait()?;
    /// assert_eq!(message.wait()?, b"late");
    /// # Ok::<(), roce::Error>(())
    /// ```
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<T, Error> {
        self.wait_at_most(Some(timeout))
    }

    fn wait_at_most(&mut self, timeout: Option<Duration>) -> Result<T, Error> {
        let awaited = self.awaited.ok_or(Error::Finished)?;
        let outcome = self.end.wait(awaited, timeout);
        if !matches!(outcome, Err(Error::TimedOut)) {
            self.awaited = None;
        }
        outcome.map(self.result)
    }

    /// Ends the registration of a task.
    fn forget_task(&mut self) {
        if let Some(task) = self.task.take() {
            self.end.forget_task(task);
        }
    }

    fn poll_outcome(&mut self, awaited: Awaited, task: &Context<'_>) -> Result<Option<Done>, Error> {
        if let Some(done) = self.end.poll(awaited)? {
            return Ok(Some(done));
        }
        // The new registration begins before the old one ends, so that there is always one.
        let new = self.end.wake_at(awaited, task.waker())?;
        self.forget_task();
        self.task = Some(new);
        // A completion between the poll and the registration raised no event.
        self.end.poll(awaited)
    }
}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        self.forget_task();
        if let Some(awaited) = self.awaited {
            self.end.forget(awaited);
        }
    }
}

/// It requires the background thread of the context, and works in any asynchronous runtime.
impl<T> Future for Operation<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(awaited) = self.awaited else { return Poll::Ready(Err(Error::Finished)) };
        let outcome = match self.poll_outcome(awaited, task) {
            Ok(None) => return Poll::Pending,
            Ok(Some(done)) => Ok((self.result)(done)),
            Err(error) => Err(error),
        };
        self.awaited = None;
        self.forget_task();
        Poll::Ready(outcome)
    }
}
