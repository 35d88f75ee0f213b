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
        let paths = self.engine.other_paths(qpn);
        let own = self.engine.query_qp(qpn).and_then(|attributes| attributes.path);
        let holder = PortHolder::QueuePair(qpn);
        let is_used = |port| paths.iter().chain(&own).any(|path| path.source_port == port);
        // Those of a path that the queue pair had before.
        let unused = if paths.is_empty() { Vec::new() } else { self.source_ports.all_of(holder) };
        for port in unused.into_iter().filter(|port| !is_used(*port)) {
            if self.source_ports.remove(holder, port) {
                self.device.release_source_port(port);
            }
        }
        for path in &paths {
            if let Err(error) = self.bind_source_port(holder, path, path.source_port) {
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
