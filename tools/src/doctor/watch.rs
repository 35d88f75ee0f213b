//! A device around a device that remembers with which headers probes arrived.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roce_packet::{Bth, Deth, Opcode, Path};
use roce_transport::{Instant, Received, Transmit, TxSlot};

use super::wire::Stamp;
use roce_device::{Capabilities, Device, forward_to_inner};

/// More arrivals than any burst has are not remembered.
const MOST: usize = 1 << 14;

/// What has arrived since the last question.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The probes of one burst, whether their ICRC was right or not.
    pub(super) probes: Vec<(Stamp, Path)>,
    /// Bytes, BTH to ICRC, of the longest datagram of an RC queue pair.
    pub(super) longest: usize,
    /// Datagrams of any kind.
    pub(super) datagrams: u64,
}

/// What a [`Watch`] writes and the doctor reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Seen>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was seen; from now on it begins anew.
    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut *self.lock())
    }
}

/// See the module documentation.
pub(super) struct Watch {
    inner: Box<dyn Device>,
    log: Log,
}

impl Watch {
    pub(super) fn around(inner: Box<dyn Device>) -> (Self, Log) {
        let log = Log::default();
        (Self { inner, log: log.clone() }, log)
    }
}

fn note(seen: &mut Seen, received: &Received<'_>) {
    seen.datagrams += 1;
    let Ok((bth, rest)) = Bth::parse(received.head) else { return };
    if bth.opcode == Opcode::UD_SEND_ONLY {
        let stamp = Deth::parse(rest).ok().and_then(|(_, payload)| Stamp::read(payload));
        if let Some(stamp) = stamp
            && seen.probes.len() < MOST
        {
            seen.probes.push((stamp, received.path));
        }
    } else {
        seen.longest = seen.longest.max(received.head.len() + received.tail.len());
    }
}

impl Device for Watch {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.inner.commit(now, transmit);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let mut seen = self.log.lock();
        self.inner.receive(now, &mut |received| {
            note(&mut seen, received);
            sink(received);
        })
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}
