//! UDP source ports: a device has a limited number of them.

use std::io;

use roce_packet::{Path, Qpn};

use super::{Nic, PortHolder};

impl Nic {
    /// Requests a source port from the device, see
    /// [`Device::bind_source_port`](crate::device::Device::bind_source_port), and keeps it until
    /// [`release_source_ports`](Self::release_source_ports).
    pub(crate) fn bind_source_port(
        &mut self,
        holder: PortHolder,
        path: &Path,
        wanted: u16,
    ) -> io::Result<u16> {
        let port = self.device.bind_source_port(path, wanted)?;
        self.source_ports.add(holder, port);
        Ok(port)
    }

    /// Requests the source ports of the other paths of a queue pair. What would leave with a port that is not
    /// to be had leaves with the main one of the device.
    pub(crate) fn bind_other_paths(&mut self, qpn: Qpn) {
        for path in self.engine.other_paths(qpn) {
            if let Err(error) = self.bind_source_port(PortHolder::QueuePair(qpn), &path, path.source_port) {
                tracing::debug!(%error, port = path.source_port, "the device cannot bind the source port");
            }
        }
    }

    /// Releases the ports of a holder. Datagrams that are still queued then leave from the main port of the
    /// device.
    pub(crate) fn release_source_ports(&mut self, holder: PortHolder) {
        for port in self.source_ports.all_of(holder) {
            if self.source_ports.remove(holder, port) {
                self.device.release_source_port(port);
            }
        }
    }

    /// Returns a number for a new address handle.
    pub(crate) fn next_address_handle(&mut self) -> PortHolder {
        self.address_handles += 1;
        PortHolder::AddressHandle(self.address_handles)
    }
}
