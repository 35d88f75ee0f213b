//! Extended reliable connections (annex A14): XRC domains, their shared receive queues, and targets.
//!
//! An initiator is an ordinary queue pair of type [`XrcSend`](roce_transport::QpType::XrcSend).

use roce_transport::{PdId, QpOptions, SrqId, XrcdId};

use super::Raw;
use crate::verbs::{Qpn, RawCq, VerbsError};

impl Raw<'_> {
    /// Allocates an XRC domain. It counts as a protection domain and a completion queue.
    ///
    /// # Errors
    ///
    /// Fails if the configured number of protection domains or completion queues is in use.
    pub fn allocate_xrcd(self) -> Result<XrcdId, VerbsError> {
        Ok(self.runtime().lock().nic.engine.allocate_xrcd()?)
    }

    /// Deallocates an XRC domain.
    ///
    /// # Errors
    ///
    /// Fails while targets or shared receive queues belong to it.
    pub fn deallocate_xrcd(self, xrcd: XrcdId) -> Result<(), VerbsError> {
        Ok(self.runtime().lock().nic.engine.deallocate_xrcd(xrcd)?)
    }

    /// Creates a shared receive queue of an XRC domain, whose receives complete in `cq`. Also returns its
    /// number, which peers use in [`SendWr::remote_srqn`](crate::verbs::SendWr::remote_srqn).
    ///
    /// # Errors
    ///
    /// Fails if a size or the number of queues is out of range, or if an argument names an object that does
    /// not exist.
    pub fn create_xrc_srq(
        self,
        pd: PdId,
        xrcd: XrcdId,
        cq: &RawCq,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<(SrqId, u32), VerbsError> {
        // XRC domains are in engine 0.
        match self.context.index_of_slot(cq.id().slot()) {
            0 => Ok(self.runtime().lock().nic.engine.create_xrc_srq(pd, xrcd, cq.id(), max_wr, max_sge)?),
            other => Err(VerbsError::OtherEngine {
                what: "completion queue of an XRC receive queue",
                other,
                engine: 0,
            }),
        }
    }

    /// Creates the target of an extended connection, which has no queues of its own.
    ///
    /// # Errors
    ///
    /// Fails if the number of queue pairs is out of range, or the XRC domain does not exist.
    pub fn create_xrc_target(self, xrcd: XrcdId, options: &QpOptions) -> Result<Qpn, VerbsError> {
        Ok(self.runtime().lock().nic.engine.create_xrc_target(xrcd, options)?)
    }
}
