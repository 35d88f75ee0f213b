//! Operations of connection management on the queue pairs of connections.

use std::sync::Arc;

use roce_packet::{Qpn, RnrTimer};
use roce_transport::cm::CmQpParameters;
use roce_transport::{Access, Instant, ModifyQpError, ProcessSlot, QpAttr, QpState, QpType};

use crate::driver::{Nic, PortHolder};

/// The engines of a context other than the one that runs connection management.
pub(crate) trait OtherEngines: std::fmt::Debug + Send + Sync {
    /// Calls `work` with the NIC of the engine with this process slot, if it exists, and sends the resulting
    /// packets.
    fn with_nic_of(&self, slot: ProcessSlot, work: &mut dyn FnMut(&mut Nic));
}

/// Access to queue pairs in all engines of the context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Siblings(Option<Arc<dyn OtherEngines>>);

impl Siblings {
    pub(crate) fn new(others: Arc<dyn OtherEngines>) -> Self {
        Self(Some(others))
    }

    /// Calls `work` with the NIC that has the queue pair: `own`, or that of another engine, which is locked
    /// during the call.
    pub(crate) fn with_nic_of<T>(&self, qpn: Qpn, own: &mut Nic, mut work: impl FnMut(&mut Nic) -> T) -> T {
        let slot = ProcessSlot::of(qpn.get());
        let Some(others) = self.0.as_ref().filter(|_| slot != own.engine.config().process_slot) else {
            return work(own);
        };
        let mut outcome = None;
        others.with_nic_of(slot, &mut |nic| outcome = Some(work(nic)));
        // No engine has this slot, so the queue pair does not exist. This engine reports that.
        outcome.unwrap_or_else(|| work(own))
    }
}

/// Settings of a connection's queue pair that the ends do not negotiate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    pub(crate) qpn: Qpn,
    pub(crate) access: Access,
    pub(crate) min_rnr_timer: RnrTimer,
}

impl Preparation {
    /// Returns the step from RESET or INIT to INIT, which sets what the peer may do, or `None` in any other
    /// state.
    pub(crate) fn first_step(&self, nic: &Nic) -> Option<QpAttr> {
        let state = nic.engine.query_qp(self.qpn)?.state;
        matches!(state, QpState::Reset | QpState::Init).then(|| QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(self.access),
            ..QpAttr::to_state(QpState::Init)
        })
    }

    /// Moves the queue pair from RESET or INIT to RTS, or changes nothing. With `hold` it continues to SQD:
    /// it receives and answers packets but keeps posted requests, until [`release`](Self::release).
    pub(crate) fn bring_up(
        &self,
        now: Instant,
        nic: &mut Nic,
        parameters: &CmQpParameters,
        hold: bool,
    ) -> Result<(), ModifyQpError> {
        let rc = nic.engine.qp_type(self.qpn) == Some(QpType::Rc);
        let mut steps: Vec<QpAttr> = self.first_step(nic).into_iter().collect();
        let to_rtr = steps.len();
        let mut path = parameters.path;
        path.vlan = nic.device_mut().vlan(path.traffic_class);
        steps.push(QpAttr {
            path: Some(path),
            path_mtu: Some(parameters.path_mtu),
            dest_qpn: Some(parameters.dest_qpn),
            rq_psn: Some(parameters.rq_psn),
            max_dest_rd_atomic: rc.then_some(parameters.max_dest_rd_atomic),
            min_rnr_timer: rc.then_some(self.min_rnr_timer),
            ..QpAttr::to_state(QpState::Rtr)
        });
        steps.push(QpAttr {
            sq_psn: Some(parameters.sq_psn),
            timeout: rc.then(|| parameters.timeout.code()),
            retry_cnt: rc.then_some(parameters.retry_cnt),
            rnr_retry: rc.then_some(parameters.rnr_retry),
            max_rd_atomic: rc.then_some(parameters.max_rd_atomic),
            ..QpAttr::to_state(QpState::Rts)
        });
        steps.extend(hold.then(|| QpAttr::to_state(QpState::Sqd)));
        nic.engine.check_modify_qp(self.qpn, &steps)?;
        if let Some(port) = nic.try_bind_source_port(PortHolder::QueuePair(self.qpn), &path) {
            path.source_port = port;
        }
        if let Some(step) = steps.get_mut(to_rtr) {
            step.path = Some(path);
        }
        nic.modify_qp(now, self.qpn, &steps)
    }

    /// Sends the requests that were posted since `bring_up`, because the peer has answered.
    pub(crate) fn release(&self, now: Instant, nic: &mut Nic) {
        if nic.engine.query_qp(self.qpn).is_some_and(|attributes| attributes.state == QpState::Sqd) {
            // From SQD this transition requires no attributes.
            let released = nic.engine.modify_qp(now, self.qpn, &QpAttr::to_state(QpState::Rts));
            debug_assert!(released.is_ok(), "SQD leads to RTS: {released:?}");
        }
    }
}

/// Moves a queue pair to ERR after sending its pending responses.
pub(crate) fn to_error(now: Instant, nic: &mut Nic, qpn: Qpn) {
    nic.transmit_owed(now);
    // The application may have destroyed the queue pair.
    let _ = nic.engine.modify_qp(now, qpn, &QpAttr::to_state(QpState::Err));
}
