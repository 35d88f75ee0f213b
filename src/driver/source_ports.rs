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

    /// Requests the source port of a path, and returns the one that it gets. Traces an error.
    pub(crate) fn try_bind_source_port(&mut self, holder: PortHolder, path: &Path) -> Option<u16> {
        let bound = self.bind_source_port(holder, path, path.source_port).inspect_err(|error| {
            tracing::debug!(%error, port = path.source_port, "the device cannot bind the source port");
        });
        bound.ok()
    }

    /// Requests the source ports of the other paths of a queue pair. What would leave with a port that is not
    /// to be had leaves with the main one of the device.
    pub(crate) fn bind_other_paths(&mut self, qpn: Qpn) {
        let paths = self.engine.other_paths(qpn);
        if paths.is_empty() {
            return;
        }
        let own = self.engine.query_qp(qpn).and_then(|attributes| attributes.path);
        let holder = PortHolder::QueuePair(qpn);
        // Others belong to a path that the queue pair had before.
        self.release_if(holder, |port| paths.iter().chain(&own).all(|path| path.source_port != port));
        for path in &paths {
            self.try_bind_source_port(holder, path);
        }
    }

    /// Releases the ports of a holder. Datagrams that are still queued then leave from the main port of the
    /// device.
    pub(crate) fn release_source_ports(&mut self, holder: PortHolder) {
        self.release_if(holder, |_| true);
    }

    fn release_if(&mut self, holder: PortHolder, is_unused: impl Fn(u16) -> bool) {
        for port in self.source_ports.all_of(holder) {
            if is_unused(port) && self.source_ports.remove(holder, port) {
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
