//! A wrapper around a device that records the headers of received probes and examines their ICRCs. It sends
//! every datagram alone.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roce_analysis::icrc::Tally;
use roce_packet::{Bth, Deth, Opcode, Path};
use roce_transport::{Batch, Instant, Received, Transmit, TxSlot};

use super::icrc;
use super::wire::Stamp;
use roce_device::{Capabilities, Device, forward_to_inner};

/// Maximum number of recorded arrivals; no burst has more.
const MOST: usize = 1 << 14;

/// The arrivals since the last query.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The probes of one burst, with valid or invalid ICRC.
    pub(super) probes: Vec<(Stamp, Path)>,
    /// Bytes from BTH to ICRC of the longest datagram for an RC queue pair.
    pub(super) longest: usize,
    /// Datagrams of any kind.
    pub(super) datagrams: u64,
    /// The ICRCs of these datagrams.
    pub(super) icrcs: Tally,
}

/// The log that a [`Watch`] writes and the doctor reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Seen>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the arrivals, and clears the log.
    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut *self.lock())
    }
}

/// A wrapper around a device; see the module documentation.
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
    if let Some(verdict) = icrc::verdict(received) {
        seen.icrcs.add(&verdict);
    }
    let [head, tail] = received.body.pieces();
    let Ok((bth, rest)) = Bth::parse(head) else { return };
    if bth.opcode == Opcode::UD_SEND_ONLY {
        let stamp = Deth::parse(rest).ok().and_then(|(_, payload)| Stamp::read(payload));
        if let Some(stamp) = stamp
            && seen.probes.len() < MOST
        {
            seen.probes.push((stamp, received.path));
        }
    } else {
        seen.longest = seen.longest.max(head.len() + tail.len());
    }
}

impl Device for Watch {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    forward_to_inner!();

    /// Returns a slot with [`Batch::NONE`], so that the datagram does not become part of a superpacket. A
    /// network drops, marks and delays superpackets as a whole. A link may also carry superpackets of
    /// datagrams longer than its MTU.
    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot().map(|slot| TxSlot { batch: &Batch::NONE, ..slot })
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use roce_device::{Encapsulation, OpenOptions, Qpn, open};
    use roce_testing::{Cable, own_address};

    use super::*;

    /// Sends eight equal datagrams like an engine, which takes the Identification from the batch. Returns a
    /// counter.
    fn send_eight(device: &mut dyn Device, source: IpAddr, destination: IpAddr, counter: &str) -> u64 {
        let mut path = Path {
            encapsulation: Encapsulation::RoceV2,
            source,
            destination,
            source_port: 49152,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        };
        path.source_port = device.bind_source_port(&path, path.source_port).unwrap();
        for _ in 0..8 {
            let slot = device.slot().unwrap();
            slot.buffer[..64].fill(7);
            let identification = slot.batch.identification(&path, Qpn::new(9), 64);
            device.commit(Instant::ZERO, &Transmit::new(path, Qpn::new(9), 64, identification));
        }
        device.flush(Instant::ZERO).unwrap();
        let mut found = None;
        device.counters(&mut |name, value| found = if name == counter { Some(value) } else { found });
        found.unwrap()
    }

    /// Regression: probes were sent as superpackets, which virtual links forward and lose as a whole.
    #[test]
    fn every_datagram_leaves_alone() {
        let (source, destination) = (own_address().into(), own_address().into());
        let open_udp = || open(&format!("udp:{source}"), OpenOptions::default()).unwrap();
        let joined = send_eight(&mut *open_udp(), source, destination, "udp_tx_messages");
        assert!(joined < 8, "a device on its own joins them: {joined} messages");
        let (mut watch, _) = Watch::around(open_udp());
        assert_eq!(send_eight(&mut watch, source, destination, "udp_tx_messages"), 8);
    }

    #[test]
    fn every_datagram_is_a_frame_of_its_own() {
        let Some(cable) = Cable::new(1500) else { return };
        cable.near.ip(&["neighbour add 198.18.0.2 lladdr 02:00:00:00:00:02 dev v0"]);
        let (near, far): (IpAddr, IpAddr) = ([198, 18, 0, 1].into(), [198, 18, 0, 2].into());
        let frames = cable.near.run(move || {
            let (mut watch, _) = Watch::around(open("raw:v0", OpenOptions::default()).unwrap());
            send_eight(&mut watch, near, far, "raw_tx_frames")
        });
        assert_eq!(frames, 8);
    }
}
