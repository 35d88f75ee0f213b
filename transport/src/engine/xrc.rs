//! The verbs of extended reliable connections (XRC).

use rand_core::Rng as _;
use roce_packet::Qpn;

use super::Engine;
use super::{CqError, PdError, SrqError};
use crate::ids::{CqId, PdId, SrqId, XrcdId};
use crate::qp::{CreateQpError, QpCapabilities, QpCore, QpInit, QpOptions, QpType};
use crate::xrc::{XrcDomain, XrcSrq};

/// An error of an operation on an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XrcdError {
    /// The XRC domain does not exist.
    #[error("there is no such XRC domain")]
    Unknown,
    /// Objects still belong to the XRC domain.
    #[error("{members} targets and shared receive queues still belong to the XRC domain; destroy them first")]
    InUse {
        /// Number of targets and shared receive queues.
        members: usize,
    },
    /// The XRC domain could not get its own protection domain.
    #[error("no protection domain for the XRC domain")]
    Pd(#[from] PdError),
    /// The XRC domain could not get its own completion queue.
    #[error("no completion queue for the XRC domain")]
    Cq(#[from] CqError),
}

/// Extended reliable connections.
impl Engine {
    /// Creates an XRC domain. It counts as a protection domain and a completion queue.
    ///
    /// # Errors
    ///
    /// Returns an error if the configured number of protection domains or completion queues is in use.
    pub fn allocate_xrcd(&mut self) -> Result<XrcdId, XrcdError> {
        let pd = self.allocate_pd()?;
        let cq = match self.create_cq(1) {
            Ok(cq) => cq,
            Err(error) => {
                self.deallocate_pd(pd)?;
                return Err(error.into());
            }
        };
        Ok(XrcdId::from_index(self.shared.xrcds.insert(XrcDomain { pd, cq, members: 0 })))
    }

    /// Removes an XRC domain.
    ///
    /// # Errors
    ///
    /// Returns an error while targets or shared receive queues belong to the XRC domain.
    pub fn deallocate_xrcd(&mut self, xrcd: XrcdId) -> Result<(), XrcdError> {
        let domain = self.shared.xrcds.get(xrcd.index()).ok_or(XrcdError::Unknown)?;
        if domain.members > 0 {
            return Err(XrcdError::InUse { members: domain.members });
        }
        let (pd, cq) = (domain.pd, domain.cq);
        self.shared.xrcds.remove(xrcd.index());
        self.destroy_cq(cq)?;
        Ok(self.deallocate_pd(pd)?)
    }

    /// Creates a shared receive queue of an XRC domain, whose receives complete in `cq`. Also returns its
    /// number, which peers put into their requests.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`create_srq`](Self::create_srq), or an error if the XRC domain or the
    /// completion queue does not exist.
    pub fn create_xrc_srq(
        &mut self,
        pd: PdId,
        xrcd: XrcdId,
        cq: CqId,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<(SrqId, u32), SrqError> {
        if !self.shared.xrcds.contains(xrcd.index()) || !self.shared.cqs.contains(cq.index()) {
            return Err(SrqError::UnknownXrcDomainOrCq);
        }
        let srq = self.create_srq(pd, max_wr, max_sge)?;
        // There are far fewer queues than numbers, so a few draws find a free one.
        let number = loop {
            let number = self.rng.next_u32() & 0x00ff_ffff;
            if number != 0 && self.shared.srq_numbers.insert(number, srq.index()) {
                break number;
            }
        };
        if let Some(queue) = self.shared.srqs.get_mut(srq.index()) {
            queue.xrc = Some(XrcSrq { xrcd, number, cq });
        }
        self.count_xrc(xrcd, cq, 1);
        Ok((srq, number))
    }

    /// Creates the target of an XRC connection, which has no queues of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if the XRC domain does not exist or all numbers are in use.
    pub fn create_xrc_target(&mut self, xrcd: XrcdId, options: &QpOptions) -> Result<Qpn, CreateQpError> {
        let domain = self.shared.xrcds.get(xrcd.index()).ok_or(CreateQpError::UnknownXrcDomain)?;
        let capabilities = QpCapabilities {
            max_send_wr: 1,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
        };
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            pd: domain.pd,
            send_cq: domain.cq,
            recv_cq: domain.cq,
            srq: None,
            capabilities,
            signal_all: false,
        };
        let number = self.add_qp(&init, options)?;
        if let Some(qp) = self.numbers.get(number.get()).and_then(|position| self.qps.get_mut(position)) {
            qp.core.xrcd = Some(xrcd);
        }
        if let Some(domain) = self.shared.xrcds.get_mut(xrcd.index()) {
            domain.members += 1;
        }
        Ok(number)
    }

    /// Removes a target from its XRC domain, and restores the attributes that it was created with.
    pub(super) fn leave_xrcd(&mut self, core: &mut QpCore) {
        if let Some(domain) = core.xrcd.and_then(|xrcd| self.shared.xrcds.get_mut(xrcd.index())) {
            domain.members = domain.members.saturating_sub(1);
            core.forget_srq(domain);
        }
    }

    /// Removes a shared receive queue from the targets that receive into it.
    pub(super) fn leave_targets(&mut self, srq: SrqId, xrc: XrcSrq) {
        self.shared.srq_numbers.remove(xrc.number);
        self.count_xrc(xrc.xrcd, xrc.cq, -1);
        let Some(domain) = self.shared.xrcds.get(xrc.xrcd.index()) else { return };
        for (_, qp) in &mut self.qps {
            if qp.core.xrcd.is_some() && qp.core.srq == Some(srq) {
                // The receive went with the queue. The next packet of the message is refused.
                let _ = qp.halves.take_receive();
                qp.core.forget_srq(domain);
            }
        }
    }

    fn count_xrc(&mut self, xrcd: XrcdId, cq: CqId, change: isize) {
        if let Some(domain) = self.shared.xrcds.get_mut(xrcd.index()) {
            domain.members = domain.members.saturating_add_signed(change);
        }
        if let Some(queue) = self.shared.cqs.get_mut(cq.index()) {
            queue.users = queue.users.saturating_add_signed(change);
        }
    }
}
