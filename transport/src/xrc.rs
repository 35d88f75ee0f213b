//! Extended reliable connections: the domains, and the shared receive queue of a message at a target (annex
//! A14).

use roce_packet::Datagram;

use crate::ids::{CqId, PdId, SrqId, XrcdId};
use crate::qp::QpCore;
use crate::shared::Shared;

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

impl Shared {
    /// Returns the shared receive queue of a domain with this number.
    fn xrc_srq(&self, xrcd: XrcdId, number: u32) -> Option<(SrqId, PdId, XrcSrq)> {
        let position = self.srq_numbers.get(number)?;
        let srq = self.srqs.get(position)?;
        let xrc = srq.xrc.filter(|xrc| xrc.xrcd == xrcd)?;
        Some((SrqId::new(self.config.process_slot, position), srq.pd, xrc))
    }
}

impl QpCore {
    /// Selects the shared receive queue that a request names, which all packets of a message must name.
    pub(crate) fn choose_srq(
        &mut self,
        shared: &Shared,
        datagram: &Datagram<'_>,
        begins: bool,
    ) -> Option<()> {
        let (srq, pd, xrc) = shared.xrc_srq(self.xrcd?, datagram.xrceth()?.srq)?;
        if !begins && self.srq != Some(srq) {
            return None;
        }
        (self.srq, self.pd, self.receive_pd, self.recv_cq) = (Some(srq), pd, pd, xrc.cq);
        Some(())
    }

    /// Restores the attributes that a target has while no message arrives.
    pub(crate) fn forget_srq(&mut self, domain: &XrcDomain) {
        (self.srq, self.pd, self.receive_pd, self.recv_cq) = (None, domain.pd, domain.pd, domain.cq);
    }
}
