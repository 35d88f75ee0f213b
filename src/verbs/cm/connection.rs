//! A connection.

use std::task::Poll;
use std::time::Duration;

use roce_packet::mad::CommId;

use super::{ConnectionError, ConnectionEvent, Context, QueuePair, wait_for, with_cm};
use crate::cm::service::to_error;

/// A connection, from the request on. Dropping it disconnects.
#[derive(Debug)]
pub struct Connection {
    context: Context,
    id: CommId,
    qp: QueuePair,
    private_data: Vec<u8>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let (id, qpn) = (self.id, self.qp.number());
        let released = with_cm(&self.context, |cm, now, driver| {
            cm.abandon(now, id);
            to_error(now, driver, qpn);
            Ok(())
        });
        debug_assert!(released.is_ok(), "connection management is there: {released:?}");
    }
}

impl Connection {
    pub(super) fn new(context: &Context, id: CommId, qp: &QueuePair) -> Self {
        Self { context: context.clone(), id, qp: qp.clone(), private_data: Vec::new() }
    }

    /// Its queue pair.
    #[must_use]
    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// What the accepting application said, once the connection is established: 196 bytes, as the peer padded
    /// them. Empty at the accepting side.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// When the time is over or the device failed.
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<ConnectionEvent, ConnectionError> {
        let id = self.id;
        wait_for(&self.context, timeout, |cm| {
            ConnectionEvent::from_told(cm.next_told(id)?, || cm.take_reply(id))
        })
    }

    /// The next event, if there is one already.
    #[must_use]
    pub fn try_event(&mut self) -> Option<ConnectionEvent> {
        self.context.inner.lock_and_progress();
        let mut driver = self.context.inner.lock();
        let cm = driver.cm()?;
        let told = cm.next_told(self.id)?;
        ConnectionEvent::from_told(told, || cm.take_reply(self.id))
    }

    /// The same for tasks; needs the context's background thread.
    pub async fn next_event_async(&mut self) -> ConnectionEvent {
        std::future::poll_fn(|task| {
            let mut driver = self.context.inner.lock();
            let Some(cm) = driver.cm() else { return Poll::Pending };
            let event = cm
                .next_told(self.id)
                .and_then(|told| ConnectionEvent::from_told(told, || cm.take_reply(self.id)));
            if event.is_none() {
                cm.wake_for(self.id, task.waker());
            }
            event.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits until both ends may send.
    ///
    /// # Errors
    ///
    /// When the peer refuses, does not answer, or has disconnected already.
    pub fn established(&mut self, timeout: Option<Duration>) -> Result<(), ConnectionError> {
        self.private_data = self.next_event(timeout)?.established()?;
        Ok(())
    }

    /// The same for tasks; needs the context's background thread.
    ///
    /// # Errors
    ///
    /// As [`established`](Self::established).
    pub async fn established_async(&mut self) -> Result<(), ConnectionError> {
        self.private_data = self.next_event_async().await.established()?;
        Ok(())
    }

    /// Moves the queue pair to ERR and tells the peer that the connection is over. The event DISCONNECTED follows
    /// when the peer has confirmed it, or after all repetitions.
    ///
    /// # Errors
    ///
    /// When the connection is not established (any more).
    pub fn disconnect(&mut self) -> Result<(), ConnectionError> {
        let (id, qpn) = (self.id, self.qp.number());
        with_cm(&self.context, |cm, now, driver| {
            to_error(now, driver, qpn);
            Ok(cm.manager.disconnect(now, id, &[])?)
        })
    }
}
