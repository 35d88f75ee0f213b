//! UDP source ports: a device has a limited number of them.

use std::io;

use roce_packet::{Path, Qpn};

use super::Nic;

impl Nic {
    /// Asks the device for a source port, see [`Device::bind_source_port`](crate::device::Device::bind_source_port), and
    /// keeps it as long as this queue pair exists. Address handles are never destroyed; queue pair 1 holds their ports.
    pub(crate) fn bind_source_port(&mut self, qpn: Qpn, path: &Path, wanted: u16) -> io::Result<u16> {
        let port = self.device.bind_source_port(path, wanted)?;
        self.source_ports.add(qpn, port);
        Ok(port)
    }

    /// Releases the ports of a queue pair that is about to be destroyed.
    pub(crate) fn release_source_ports(&mut self, qpn: Qpn) {
        for port in self.source_ports.all_of(qpn) {
            if self.source_ports.remove(qpn, port) {
                self.device.release_source_port(port);
            }
        }
    }
}
