//! A device that records what it sends.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use roce::device::memory::MemoryDevice;
use roce::device::{Capabilities, Device};
use roce::verbs::*;
use roce_transport::{Instant, Received, Transmit, TxSlot};

/// Every committed datagram: its path, and its bytes from BTH to ICRC.
pub(crate) type Sent = Arc<Mutex<Vec<(Path, Vec<u8>)>>>;

/// One end of a pair in memory; records every datagram that is sent through it.
pub(crate) struct Recorder {
    inner: MemoryDevice,
    slot: Vec<u8>,
    sent: Sent,
}

impl Recorder {
    /// Returns two ends, of which the first one records.
    pub(crate) fn pair() -> (Self, MemoryDevice, Sent) {
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let (inner, peer) = MemoryDevice::pair(a, b).unwrap();
        let (slot, sent) = (vec![0; inner.capabilities().max_datagram], Sent::default());
        (Self { inner, slot, sent: sent.clone() }, peer, sent)
    }
}

impl Device for Recorder {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    roce::device::forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot().is_some().then(|| TxSlot::new(&mut self.slot))
    }
    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        let bytes = &self.slot[..transmit.len];
        self.sent.lock().unwrap().push((transmit.path, bytes.to_vec()));
        if let Some(slot) = self.inner.slot() {
            slot.buffer[..bytes.len()].copy_from_slice(bytes);
            self.inner.commit(now, transmit);
        }
    }
    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        self.inner.receive(now, sink)
    }
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}
