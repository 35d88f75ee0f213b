//! Multicast groups: the device joins with the first queue pair and leaves with the last, for it keeps no count.

use std::net::IpAddr;

use roce_packet::Qpn;

use super::Driver;
use crate::verbs::VerbsError;

/// Which queue pairs are in which groups.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<(IpAddr, Qpn)>);

impl Groups {
    fn has_members(&self, group: IpAddr) -> bool {
        self.0.iter().any(|(known, _)| *known == group)
    }
}

impl Driver {
    /// Lets a UD queue pair hear a group; twice is as good as once.
    pub(crate) fn join_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        // First, because it knows which queue pairs may.
        self.engine.attach_multicast(qpn, group)?;
        if self.groups.0.contains(&(group, qpn)) {
            return Ok(());
        }
        if !self.groups.has_members(group)
            && let Err(error) = self.device.set_multicast(group, true)
        {
            self.engine.detach_multicast(qpn, group)?;
            return Err(VerbsError::io("joining a multicast group")(error));
        }
        self.groups.0.push((group, qpn));
        Ok(())
    }

    /// A queue pair hears a group no more. Nothing happens if it did not.
    pub(crate) fn leave_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        self.engine.detach_multicast(qpn, group)?;
        let Some(place) = self.groups.0.iter().position(|member| *member == (group, qpn)) else {
            return Ok(());
        };
        self.groups.0.swap_remove(place);
        if self.groups.has_members(group) {
            return Ok(());
        }
        self.device.set_multicast(group, false).map_err(VerbsError::io("leaving a multicast group"))
    }

    /// A queue pair is about to be destroyed.
    pub(crate) fn leave_all_groups(&mut self, qpn: Qpn) {
        let groups: Vec<IpAddr> =
            self.groups.0.iter().filter(|(_, member)| *member == qpn).map(|(group, _)| *group).collect();
        for group in groups {
            if let Err(error) = self.leave_group(qpn, group) {
                tracing::debug!(%group, %error, "the device stays in a group that nobody is in");
            }
        }
    }
}
