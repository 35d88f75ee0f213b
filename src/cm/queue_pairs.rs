//! What connection management does with the queue pairs of connections.

use std::sync::Arc;

use roce_packet::{Qpn, RnrTimer};
use roce_transport::cm::CmQpParameters;
use roce_transport::{Access, Instant, ModifyQpError, ProcessSlot, QpAttr, QpState, QpType};

use crate::driver::{Nic, PortHolder};

/// The engines of a context beside the one that connection management is in.
pub(crate) trait OtherEngines: std::fmt::Debug + Send + Sync {
    /// Calls `work` with the NIC of the engine that has this process slot, if there is one, and sends what came of it.
    fn with_nic_of(&self, slot: ProcessSlot, work: &mut dyn FnMut(&mut Nic));
}

/// How connection management gets at queue pairs, which may be in any engine of the context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Siblings(Option<Arc<dyn OtherEngines>>);

impl Siblings {
    pub(crate) fn new(others: Arc<dyn OtherEngines>) -> Self {
        Self(Some(others))
    }

    /// Calls `work` with the NIC that has the queue pair: `own`, or that of another engine, which is locked meanwhile.
    pub(crate) fn with_nic_of<T>(&self, qpn: Qpn, own: &mut Nic, mut work: impl FnMut(&mut Nic) -> T) -> T {
        let slot = ProcessSlot::of(qpn.get());
        let Some(others) = self.0.as_ref().filter(|_| slot != own.engine.config().process_slot) else {
            return work(own);
        };
        let mut outcome = None;
        others.with_nic_of(slot, &mut |nic| outcome = Some(work(nic)));
        // No engine has this slot, so the queue pair does not exist: this engine reports that.
        outcome.unwrap_or_else(|| work(own))
    }
}

/// What a connection's queue pair gets besides what the ends agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    pub(crate) qpn: Qpn,
    pub(crate) access: Access,
    pub(crate) min_rnr_timer: RnrTimer,
}

impl Preparation {
    /// The step from RESET to INIT; `None` in any other state.
    pub(crate) fn first_step(&self, nic: &Nic) -> Option<QpAttr> {
        let state = nic.engine.query_qp(self.qpn)?.state;
        (state == QpState::Reset).then(|| QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(self.access),
            ..QpAttr::to_state(QpState::Init)
        })
    }

    /// Brings the queue pair from RESET or INIT to RTS, or changes nothing. With `hold` it goes on to SQD: it takes in and
    /// answers packets and keeps what is posted, until [`release`](Self::release).
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
        match nic.bind_source_port(PortHolder::QueuePair(self.qpn), &path, path.source_port) {
            Ok(port) => path.source_port = port,
            Err(error) => {
                tracing::debug!(%error, port = path.source_port, "the device cannot bind the source port");
            }
        }
        if let Some(step) = steps.get_mut(to_rtr) {
            step.path = Some(path);
        }
        nic.modify_qp(now, self.qpn, &steps)
    }

    /// The peer has answered: what was posted meanwhile is sent.
    pub(crate) fn release(&self, now: Instant, nic: &mut Nic) {
        if nic.engine.query_qp(self.qpn).is_some_and(|attributes| attributes.state == QpState::Sqd) {
            // From SQD this needs no attributes.
            let released = nic.engine.modify_qp(now, self.qpn, &QpAttr::to_state(QpState::Rts));
            debug_assert!(released.is_ok(), "SQD leads to RTS: {released:?}");
        }
    }
}

/// Moves a queue pair to ERR after what it still owes its peer has been sent.
pub(crate) fn to_error(now: Instant, nic: &mut Nic, qpn: Qpn) {
    nic.transmit_owed(now);
    // The application may have destroyed it.
    let _ = nic.engine.modify_qp(now, qpn, &QpAttr::to_state(QpState::Err));
}
