//! A connection.

use std::task::Poll;
use std::time::Duration;

use roce_packet::mad::CommId;

use super::{ConnectionError, ConnectionEvent, Context, QueuePair, wait_for, with_cm};
use crate::cm::queue_pairs::to_error;
use crate::cm::service::CmService;

/// A connection, from the request on. Dropping it disconnects.
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

    /// Moves the queue pair to ERR and sends the DREQ. The event DISCONNECTED follows
    /// when the peer has confirmed it, or after all repetitions.
    ///
    /// # Errors
    ///
    /// When the connection is not established (any more).
    pub fn disconnect(&mut self) -> Result<(), ConnectionError> {
        let (id, qpn) = (self.id, self.qp.number());
        with_cm(&self.context, |cm, now, nic| {
            cm.manager.disconnect(now, id, &[])?;
            cm.siblings.with_nic_of(qpn, nic, |nic| to_error(now, nic, qpn));
            Ok(())
        })
    }
}
