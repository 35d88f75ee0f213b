//! Completion queues for tasks of any asynchronous runtime.

use std::future::poll_fn;
use std::task::Poll;

use roce_transport::{Notify, Wc};

use super::{CompletionQueue, VerbsError};

/// A completion queue that tasks wait for. It needs the context's background thread, and no particular runtime.
///
/// While a task waits, the events of the queue go to the task instead of the channel of the queue, if it has one.
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

    /// Waits for completions and moves them into `out`; returns how many, at least one.
    ///
    /// # Errors
    ///
    /// When polling fails.
    pub async fn poll(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        let events = &self.cq.context().runtime().completion_events;
        // Removed with the future.
        let mut _registration = None;
        poll_fn(|task| {
            if let Some(outcome) = self.try_poll(out) {
                return Poll::Ready(outcome);
            }
            // The new one first: there is no moment without one.
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

    /// The queue itself.
    #[must_use]
    pub fn get_ref(&self) -> &CompletionQueue {
        &self.cq
    }
}
