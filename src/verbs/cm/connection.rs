//! A connection.

use std::task::Poll;
use std::time::Duration;

use roce_packet::mad::CommId;

use super::{ConnectionError, ConnectionEvent, Context, QueuePair, wait_for, with_cm};
use crate::cm::service::{CmService, to_error};

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
        let released = with_cm(&self.context, |cm, now, nic| {
            cm.abandon(now, id);
            to_error(now, nic, qpn);
            Ok(())
        });
        debug_assert!(released.is_ok(), "connection management is there: {released:?}");
    }
}

fn next_event(cm: &mut CmService, id: CommId) -> Option<ConnectionEvent> {
    let notice = cm.next_notice(id)?;
    ConnectionEvent::from_notice(notice, || cm.take_reply(id))
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
        wait_for(&self.context, timeout, |cm| next_event(cm, id))
    }

    /// The next event, if there is one already.
    #[must_use]
    pub fn try_event(&mut self) -> Option<ConnectionEvent> {
        let mut state = self.context.runtime().lock();
        state.progress();
        next_event(state.cm()?, self.id)
    }

    /// The same for tasks; needs the context's background thread.
    pub async fn next_event_async(&mut self) -> ConnectionEvent {
        std::future::poll_fn(|task| {
            // Cloned before the lock, because it is foreign code.
            let waker = task.waker().clone();
            let mut state = self.context.runtime().lock();
            let Some(cm) = state.cm() else { return Poll::Pending };
            let event = next_event(cm, self.id);
            if event.is_none() {
                cm.wake_at_notice(self.id, waker);
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
        with_cm(&self.context, |cm, now, nic| {
            to_error(now, nic, qpn);
            Ok(cm.manager.disconnect(now, id, &[])?)
        })
    }
}
