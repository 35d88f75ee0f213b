//! Completion queues for tasks of any asynchronous runtime.

use std::future::poll_fn;
use std::task::Poll;

use roce_transport::{Notify, Wc};

use super::{CompletionQueue, VerbsError};

/// A completion queue for asynchronous tasks. It requires the context's background thread, but no particular
/// runtime.
///
/// While a task waits, the events of the queue go to the task and not to the channel of the queue.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// let buffer = far.pd.allocate(4096, Access::LOCAL_WRITE)?;
/// far.qp.post_recv(&RecvWr { wr_id: 7, elements: &[buffer.element(0..4096)] })?;
/// near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello"))?;
///
/// let queue = AsyncCompletionQueue::new(far.cq);
/// let receive = async {
///     let mut done = [Wc::default()];
///     queue.wait(&mut done).await?;
///     Ok::<_, VerbsError>(done[0])
/// };
/// // Any other runtime does as well.
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// assert_eq!(runtime.block_on(receive)?.result()?.byte_len, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncCompletionQueue {
    cq: CompletionQueue,
}

impl AsyncCompletionQueue {
    /// Wraps a queue.
    #[must_use]
    pub fn new(cq: CompletionQueue) -> Self {
        Self { cq }
    }

    /// Waits for completions, moves them into `out` and returns their number, which is at least one.
    ///
    /// # Errors
    ///
    /// Fails if polling fails.
    pub async fn wait(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        let events = &self.cq.runtime().completion_events;
        // Dropping the future removes the registration.
        let mut _registration = None;
        poll_fn(|task| {
            if let Some(outcome) = self.try_poll(out) {
                return Poll::Ready(outcome);
            }
            // Registers the new waker before the old one goes, so that one is always registered.
            _registration = Some(events.register(self.cq.id(), task.waker().clone()));
            if let Err(error) = self.cq.request_notification(Notify::Next) {
                return Poll::Ready(Err(error));
            }
            // A completion between the poll and the request raised no event.
            self.try_poll(out).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn try_poll(&self, out: &mut [Wc]) -> Option<Result<usize, VerbsError>> {
        self.cq.poll(out).map(|count| (count > 0).then_some(count)).transpose()
    }

    /// Returns the wrapped queue.
    #[must_use]
    pub fn get_ref(&self) -> &CompletionQueue {
        &self.cq
    }
}
