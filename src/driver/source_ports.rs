//! UDP source ports: a device has a number of them, and keeps no count of who needs which.

use std::collections::{BTreeMap, BTreeSet};

use roce_packet::Qpn;

use super::Driver;

/// Which queue pairs send from which ports.
#[derive(Debug, Default)]
pub(super) struct SourcePorts {
    of: BTreeMap<Qpn, BTreeSet<u16>>,
    holders: BTreeMap<u16, usize>,
}

impl SourcePorts {
    fn hold(&mut self, qpn: Qpn, port: u16) {
        if self.of.entry(qpn).or_default().insert(port) {
            *self.holders.entry(port).or_default() += 1;
        }
    }

    /// The ports that nobody holds when this queue pair is gone.
    fn release(&mut self, qpn: Qpn) -> Vec<u16> {
        let mut held = self.of.remove(&qpn).unwrap_or_default();
        held.retain(|port| {
            let holders = self.holders.entry(*port).or_default();
            *holders = holders.saturating_sub(1);
            *holders == 0
        });
        for port in &held {
            self.holders.remove(port);
        }
        held.into_iter().collect()
    }
}

impl Driver {
    /// A queue pair sends from this port as long as it exists. Address handles, which nobody destroys,
    /// hold theirs as queue pair 1.
    pub(crate) fn hold_source_port(&mut self, qpn: Qpn, port: u16) {
        self.source_ports.hold(qpn, port);
    }

    /// A queue pair is about to be destroyed.
    pub(crate) fn release_source_ports(&mut self, qpn: Qpn) {
        for port in self.source_ports.release(qpn) {
            self.device.release_source_port(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_released_by_the_last_queue_pair() {
        let (mut ports, [one, two]) = (SourcePorts::default(), [17, 18].map(Qpn::new));
        ports.hold(one, 50_000);
        ports.hold(one, 50_000);
        ports.hold(two, 50_000);
        ports.hold(two, 50_001);
        assert!(ports.release(one).is_empty());
        assert!(ports.release(one).is_empty());
        assert_eq!(ports.release(two), [50_000, 50_001]);
        assert!(ports.of.is_empty() && ports.holders.is_empty());
    }
}
