//! Extended reliable connections: the domains, and how a target finds the shared receive queue of a message (annex A14).

use roce_packet::Datagram;

use crate::ids::{CqId, PdId, SrqId, XrcdId};
use crate::qp::QpCore;
use crate::shared::Shared;

/// An XRC domain.
#[derive(Debug)]
pub(crate) struct XrcDomain {
    /// What a target has while no message arrives. Nothing is registered in this domain, and nothing completes in this queue.
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    /// Targets and shared receive queues.
    pub(crate) members: usize,
}

/// What makes a shared receive queue one of an XRC domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: XrcdId,
    /// The number that peers name.
    pub(crate) number: u32,
    /// Where its receives complete.
    pub(crate) cq: CqId,
}

impl Shared {
    /// The shared receive queue of a domain with this number.
    fn xrc_srq(&self, xrcd: XrcdId, number: u32) -> Option<(SrqId, PdId, XrcSrq)> {
        let position = self.srq_numbers.get(number)?;
        let srq = self.srqs.get(position)?;
        let xrc = srq.xrc.filter(|xrc| xrc.xrcd == xrcd)?;
        Some((SrqId::new(self.config.process_slot, position), srq.pd, xrc))
    }
}

impl QpCore {
    /// Takes on the shared receive queue that a request names. All packets of a message name the same.
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

    /// As while no message arrives.
    pub(crate) fn forget_srq(&mut self, domain: &XrcDomain) {
        (self.srq, self.pd, self.receive_pd, self.recv_cq) = (None, domain.pd, domain.pd, domain.cq);
    }
}
