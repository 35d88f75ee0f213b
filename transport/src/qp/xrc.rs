//! Extended reliable connections: the shared receive queue of a message at a target (annex A14).

use roce_packet::Datagram;

use super::QpCore;
use crate::ids::{PdId, SrqId, XrcdId};
use crate::shared::Shared;
use crate::xrc::{XrcDomain, XrcSrq};

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
