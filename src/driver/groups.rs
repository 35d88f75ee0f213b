//! Multicast groups: the device joins with the first queue pair and leaves with the last.

use std::net::IpAddr;

use roce_packet::Qpn;

use super::Driver;
use crate::verbs::VerbsError;

impl Driver {
    /// Lets a UD queue pair hear a group; twice is as good as once.
    pub(crate) fn join_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        // First, because it knows which queue pairs may.
        self.engine.attach_multicast(qpn, group)?;
        if self.groups.has(qpn, group) {
            return Ok(());
        }
        if !self.groups.has_any(group)
            && let Err(error) = self.device.set_multicast(group, true)
        {
            self.engine.detach_multicast(qpn, group)?;
            return Err(VerbsError::io("joining a multicast group")(error));
        }
        self.groups.add(qpn, group);
        Ok(())
    }

    /// A queue pair hears a group no more. Nothing happens if it did not.
    pub(crate) fn leave_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        self.engine.detach_multicast(qpn, group)?;
        if !self.groups.remove(qpn, group) {
            return Ok(());
        }
        self.device.set_multicast(group, false).map_err(VerbsError::io("leaving a multicast group"))
    }

    /// A queue pair is about to be destroyed.
    pub(crate) fn leave_all_groups(&mut self, qpn: Qpn) {
        for group in self.groups.all_of(qpn) {
            if let Err(error) = self.leave_group(qpn, group) {
                tracing::debug!(%group, %error, "the device stays in a group that nobody is in");
            }
        }
    }
}
