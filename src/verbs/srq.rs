//! Shared receive queues: the handle, and the verbs on identifiers.

use std::sync::Arc;

use roce_transport::{PdId, RecvWr, SrqAttributes, SrqId};

use super::pd::check_elements;
use super::{ProtectionDomain, Raw, VerbsError};

/// A receive queue that several queue pairs share.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// let srq = far.pd.create_srq(64, 1)?;
/// let qp = far.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far.cq).srq(&srq))?;
/// # let near = near.towards(&qp)?;
/// let buffer = far.pd.allocate(4096, Access::LOCAL_WRITE)?;
/// srq.post_recv(&RecvWr { wr_id: 7, elements: &[buffer.element(0..4096)] })?;
/// srq.arm_limit(1)?;
///
/// near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello"))?;
/// let mut done = [Wc::default()];
/// far.cq.wait(&mut done, None)?;
/// assert_eq!(done[0].result()?.wr_id, 7);
/// assert!(matches!(far.context.async_event(), Some(AsyncEvent::SrqLimitReached(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    pd: ProtectionDomain,
    id: SrqId,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let destroyed = self.pd.context().raw().destroy_srq(self.id);
        debug_assert!(destroyed.is_ok(), "queue pairs keep their shared receive queue alive: {destroyed:?}");
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue in engine 0.
    ///
    /// # Errors
    ///
    /// Fails if a size is out of range.
    pub fn create_srq(&self, max_wr: usize, max_sge: usize) -> Result<SharedReceiveQueue, VerbsError> {
        self.create_srq_on(0, max_wr, max_sge)
    }

    /// Creates a shared receive queue for queue pairs of this engine.
    ///
    /// # Errors
    ///
    /// Fails if a size is out of range, or the context does not have this engine.
    pub fn create_srq_on(
        &self,
        engine: usize,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::new(self, engine, max_wr, max_sge)
    }
}

impl SharedReceiveQueue {
    fn new(pd: &ProtectionDomain, engine: usize, max_wr: usize, max_sge: usize) -> Result<Self, VerbsError> {
        let id = pd.context().raw().create_srq_on(engine, pd.id(), max_wr, max_sge)?;
        Ok(Self(Arc::new(SrqInner { pd: pd.clone(), id })))
    }

    pub(crate) fn id(&self) -> SrqId {
        self.0.id
    }

    /// Returns the index of the engine that has the queue.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.0.pd.context().index_of_slot(self.0.id.slot())
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// Fails if the queue is full, the request has too many elements, or an element exceeds its region.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        check_elements(wr.elements)?;
        self.0.pd.context().raw().post_srq_recv(self.0.id, wr)
    }

    /// Arms the limit: one [`AsyncEvent::SrqLimitReached`](super::AsyncEvent) follows when fewer receives are
    /// left.
    ///
    /// # Errors
    ///
    /// Fails if the limit is above the capacity.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        self.0.pd.context().raw().arm_srq_limit(self.0.id, limit)
    }

    /// Returns the current attributes; `None` if the queue does not exist.
    #[must_use]
    pub fn query(&self) -> Option<SrqAttributes> {
        self.0.pd.context().raw().query_srq(self.0.id)
    }
}

/// Shared receive queues.
impl Raw<'_> {
    /// Creates a shared receive queue in engine 0, for `max_wr` receives of up to `max_sge` elements.
    ///
    /// # Errors
    ///
    /// Fails if a size or the number of queues is out of range.
    pub fn create_srq(self, pd: PdId, max_wr: usize, max_sge: usize) -> Result<SrqId, VerbsError> {
        self.create_srq_on(0, pd, max_wr, max_sge)
    }

    /// Creates a shared receive queue in another engine, for queue pairs of that engine.
    ///
    /// # Errors
    ///
    /// Fails like [`create_srq`](Self::create_srq), or if the context does not have this engine.
    pub fn create_srq_on(
        self,
        engine: usize,
        pd: PdId,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SrqId, VerbsError> {
        Ok(self.context.engine(engine)?.lock().nic.engine.create_srq(pd, max_wr, max_sge)?)
    }

    /// Destroys a shared receive queue with the receives that are posted in it.
    ///
    /// # Errors
    ///
    /// Fails if queue pairs use the queue.
    pub fn destroy_srq(self, srq: SrqId) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.destroy_srq(srq)?)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// Fails if the queue is full or the request has too many elements.
    pub fn post_srq_recv(self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.post_srq_recv(srq, wr)?)
    }

    /// Arms the limit. One [`AsyncEvent::SrqLimitReached`](super::AsyncEvent) follows when fewer receives are
    /// left; 0 disarms.
    ///
    /// # Errors
    ///
    /// Fails if the limit is above the capacity.
    pub fn arm_srq_limit(self, srq: SrqId, limit: usize) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.arm_srq_limit(srq, limit)?)
    }

    /// Changes the capacity of a queue and keeps the posted receives.
    ///
    /// # Errors
    ///
    /// Fails if more receives are posted than would fit, or if the capacity is out of range.
    pub fn resize_srq(self, srq: SrqId, max_wr: usize) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.resize_srq(srq, max_wr)?)
    }

    /// Returns the attributes of a queue, or `None` if it does not exist.
    #[must_use]
    pub fn query_srq(self, srq: SrqId) -> Option<SrqAttributes> {
        self.of_srq(srq).lock().nic.engine.query_srq(srq)
    }
}
