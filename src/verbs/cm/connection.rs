//! A connection.

use std::task::Poll;
use std::time::Duration;

use roce_packet::mad::CommId;

use super::{ConnectionError, ConnectionEvent, Context, QueuePair, wait_for, with_cm};
use crate::cm::queue_pairs::to_error;
use crate::cm::service::CmService;

/// A connection, from its request on. Dropping it disconnects.
///
/// ```
/// # use roce::device::memory::MemoryDevice;
/// # use roce::verbs::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (near, far) = MemoryDevice::pair("192.0.2.1".parse()?, "192.0.2.2".parse()?)?;
/// # let near = Context::builder().attach(Box::new(near))?;
/// # let far = Context::builder().attach(Box::new(far))?;
/// # let listener = far.listen(PortSpace::Tcp, 7471)?;
/// # let (pd, cq) = (near.alloc_pd()?, near.create_cq(16, None)?);
/// # let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
/// let mut connection = near.start_connect("192.0.2.2:7471".parse()?, &qp, &ConnectionParameters::default())?;
/// # listener.accept(None)?.reject(b"not today")?;
/// match connection.next_event(None)? {
///     ConnectionEvent::Established { .. } => connection.disconnect()?,
///     ConnectionEvent::Rejected { reason, private_data } => {
///         assert_eq!(reason, RejReason::CONSUMER);
///         assert!(private_data.starts_with(b"not today"));
///     }
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
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
            cm.siblings.with_nic_of(qpn, nic, |nic| to_error(now, nic, qpn));
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

    /// Returns its queue pair.
    #[must_use]
    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Returns the private data of the accepting application once the connection is established: 196 bytes,
    /// including the peer's padding. Empty at the accepting side.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// Fails if the timeout passes or the device failed.
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<ConnectionEvent, ConnectionError> {
        let id = self.id;
        wait_for(&self.context, timeout, |cm| next_event(cm, id))
    }

    /// Returns the next event, or `None` if no event has arrived yet.
    #[must_use]
    pub fn try_event(&mut self) -> Option<ConnectionEvent> {
        let mut state = self.context.runtime().lock();
        state.progress();
        next_event(state.cm()?, self.id)
    }

    /// Waits like [`next_event`](Self::next_event), for tasks. It requires the context's background thread.
    pub async fn next_event_async(&mut self) -> ConnectionEvent {
        std::future::poll_fn(|task| {
            // Cloned before the lock is taken, because `clone` runs foreign code.
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
    /// Fails if the peer refuses, does not answer, or has already disconnected.
    pub fn established(&mut self, timeout: Option<Duration>) -> Result<(), ConnectionError> {
        self.private_data = self.next_event(timeout)?.established()?;
        Ok(())
    }

    /// Waits like [`established`](Self::established), for tasks. It requires the context's background thread.
    ///
    /// # Errors
    ///
    /// Fails like [`established`](Self::established).
    pub async fn established_async(&mut self) -> Result<(), ConnectionError> {
        self.private_data = self.next_event_async().await.established()?;
        Ok(())
    }

    /// Moves the queue pair to ERR and sends the DREQ. The event DISCONNECTED follows when the peer has
    /// confirmed it, or after all retransmissions.
    ///
    /// # Errors
    ///
    /// Fails if the connection is not established.
    pub fn disconnect(&mut self) -> Result<(), ConnectionError> {
        let (id, qpn) = (self.id, self.qp.number());
        with_cm(&self.context, |cm, now, nic| {
            cm.manager.disconnect(now, id, &[])?;
            cm.siblings.with_nic_of(qpn, nic, |nic| to_error(now, nic, qpn));
            Ok(())
        })
    }
}
