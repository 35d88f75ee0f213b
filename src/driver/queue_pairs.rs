//! Changes of a queue pair that consist of several steps.

use roce_packet::Qpn;
use roce_transport::{Instant, ModifyQpError, QpAttr, QpState};

use super::Nic;

impl Nic {
    /// Changes attributes and state in several steps, or nothing at all.
    pub(crate) fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        steps: &[QpAttr],
    ) -> Result<(), ModifyQpError> {
        self.engine.check_modify_qp(qpn, steps)?;
        steps.iter().try_for_each(|step| {
            let to = step.state.map(QpState::name);
            let _modify = tracing::debug_span!("modify", to).entered();
            self.engine.modify_qp(now, qpn, step)
        })?;
        if steps.iter().any(|step| step.path.is_some()) {
            self.bind_other_paths(qpn);
        }
        Ok(())
    }
}
