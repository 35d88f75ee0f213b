//! Extended reliable connections: the domains and their shared receive queues (annex A14).

use crate::ids::{CqId, PdId, XrcdId};

/// An XRC domain.
#[derive(Debug)]
pub(crate) struct XrcDomain {
    /// Attributes of a target while no message arrives. Nothing is registered in this protection domain, and
    /// nothing completes in this queue.
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    /// Number of targets and shared receive queues.
    pub(crate) members: usize,
}

/// Attributes of a shared receive queue in an XRC domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: XrcdId,
    /// The number that peers use.
    pub(crate) number: u32,
    /// The queue in which the receives complete.
    pub(crate) cq: CqId,
}
