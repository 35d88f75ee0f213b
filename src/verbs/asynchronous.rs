//! Completion queues for tokio.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use roce_transport::{Notify, Wc};
use tokio::io::unix::AsyncFd;

use super::{CompletionQueue, VerbsError};

/// A completion queue that tokio tasks wait for. Needs a queue that was made with a channel, and the
/// context's background thread.
#[derive(Debug)]
pub struct AsyncCompletionQueue {
    cq: CompletionQueue,
    descriptor: AsyncFd<Descriptor>,
}

#[derive(Debug)]
struct Descriptor(OwnedFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsyncCompletionQueue {
    /// Wraps a queue. Call it inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    ///
    /// When the queue has no channel or the descriptor cannot be registered.
    pub fn new(cq: CompletionQueue) -> Result<Self, VerbsError> {
        let what = "registering a completion channel with tokio";
        let Some(channel) = cq.channel() else {
            let error = std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the completion queue was made without a channel; give create_cq one",
            );
            return Err(VerbsError::io(what)(error));
        };
        if tokio::runtime::Handle::try_current().is_err() {
            let error = std::io::Error::other("there is no tokio runtime here; call this inside one");
            return Err(VerbsError::io(what)(error));
        }
        let descriptor = channel.as_fd().try_clone_to_owned().map_err(VerbsError::io(what))?;
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on, so it stays open and the same.
        let descriptor = unsafe { AsyncFd::register(Descriptor(descriptor)) }
            .map_err(|error| VerbsError::io(what)(error.into()))?;
        Ok(Self { cq, descriptor })
    }

    /// Waits for completions and moves them into `out`; returns how many, at least one.
    ///
    /// # Errors
    ///
    /// When polling fails.
    pub async fn poll(&self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        loop {
            let count = self.cq.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            self.cq.request_notification(Notify::Next)?;
            // A completion between the poll and the request raised no event.
            let count = self.cq.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            let mut ready = self
                .descriptor
                .readable()
                .await
                .map_err(VerbsError::io("waiting for a completion channel"))?;
            if let Some(channel) = self.cq.channel() {
                while channel.try_event().is_some() {}
            }
            ready.clear_ready();
        }
    }

    /// The queue itself.
    #[must_use]
    pub fn get_ref(&self) -> &CompletionQueue {
        &self.cq
    }
}
