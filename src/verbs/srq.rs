//! Shared receive queues.

use std::sync::Arc;

use roce_transport::{RecvWr, SrqAttributes, SrqId};

use super::{ProtectionDomain, VerbsError};

/// A receive queue that several queue pairs take from.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    pd: ProtectionDomain,
    id: SrqId,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let destroyed = self.pd.context().runtime().lock().nic.engine.destroy_srq(self.id);
        debug_assert!(destroyed.is_ok(), "queue pairs keep their shared receive queue alive: {destroyed:?}");
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, max_wr: usize, max_sge: usize) -> Result<Self, VerbsError> {
        let id = pd.context().runtime().lock().nic.engine.create_srq(pd.id(), max_wr, max_sge)?;
        Ok(Self(Arc::new(SrqInner { pd: pd.clone(), id })))
    }

    pub(crate) fn id(&self) -> SrqId {
        self.0.id
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// When the queue is full or the request has too many elements.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        Ok(self.0.pd.context().runtime().lock().nic.engine.post_srq_recv(self.0.id, wr)?)
    }

    /// Arms the limit: one [`AsyncEvent::SrqLimitReached`](super::AsyncEvent) when fewer receives are left.
    ///
    /// # Errors
    ///
    /// When the limit is above the capacity.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        Ok(self.0.pd.context().runtime().lock().nic.engine.arm_srq_limit(self.0.id, limit)?)
    }

    /// What it is like now.
    #[must_use]
    pub fn query(&self) -> Option<SrqAttributes> {
        self.0.pd.context().runtime().lock().nic.engine.query_srq(self.0.id)
    }
}
