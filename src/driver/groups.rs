//! Multicast groups: the device joins with the first queue pair and leaves with the last.

use std::io;
use std::net::IpAddr;

use roce_packet::Qpn;
use roce_transport::DestroyError;

use super::Nic;

/// The reason why the membership of a queue pair did not change.
#[derive(Debug)]
pub(crate) enum GroupError {
    /// The queue pair cannot join groups.
    QueuePair(DestroyError),
    /// The device cannot join or leave.
    Device(io::Error),
}

impl From<DestroyError> for GroupError {
    fn from(error: DestroyError) -> Self {
        Self::QueuePair(error)
    }
}

impl Nic {
    /// Makes a UD queue pair receive the datagrams of a group. Idempotent.
    pub(crate) fn join_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), GroupError> {
        // First, because the engine checks the queue pair.
        self.engine.attach_multicast(qpn, group)?;
        if self.groups.has(qpn, group) {
            return Ok(());
        }
        if !self.groups.has_any(group)
            && let Err(error) = self.device.set_multicast(group, true)
        {
            self.engine.detach_multicast(qpn, group)?;
            return Err(GroupError::Device(error));
        }
        self.groups.add(qpn, group);
        Ok(())
    }

    /// Ends the membership of a queue pair in a group. Idempotent.
    pub(crate) fn leave_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), GroupError> {
        if self.engine.qp_type(qpn).is_none() {
            return Err(DestroyError::UnknownQp.into());
        }
        // First, because the device may refuse.
        if self.groups.is_last(qpn, group) {
            self.device.set_multicast(group, false).map_err(GroupError::Device)?;
        }
        self.groups.remove(qpn, group);
        Ok(self.engine.detach_multicast(qpn, group)?)
    }

    /// Ends all memberships of a queue pair that is about to be destroyed.
    pub(crate) fn leave_all_groups(&mut self, qpn: Qpn) {
        for group in self.groups.all_of(qpn) {
            if let Err(error) = self.leave_group(qpn, group) {
                tracing::debug!(%group, ?error, "the device did not leave a group that no queue pair is in");
                self.groups.remove(qpn, group);
            }
        }
    }
}
