//! Two devices in one program, joined by queues.
//!
//! For tests, examples and programs that talk to themselves. Datagrams arrive with exactly the sender's
//! headers. As on a wire, datagrams that the other side does not receive in time are lost and counted. The
//! other side takes only datagrams for its address and for groups that it joined.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

use roce_packet::Path;
use roce_transport::{Identification, Instant, ProcessSlot, Received, Transmit, TxSlot};
use rustix::event::{EventfdFlags, eventfd};

use super::{Capabilities, Device, MAX_DATAGRAM};
use crate::counters::counters;
use crate::fork::Mutex;

/// One end of a pair of devices.
pub struct MemoryDevice {
    capabilities: Capabilities,
    addresses: [IpAddr; 1],
    peer: IpAddr,
    outgoing: Arc<Wire>,
    incoming: Arc<Wire>,
    /// Buffers for slots.
    spare: Vec<Packet>,
    /// Packets that are written but not yet flushed.
    staged: Vec<Packet>,
    /// Packets received last; the next call returns their buffers to the wire.
    burst: Vec<Packet>,
    counters: Counters,
}

counters! {
    struct Counters {
        /// Datagrams sent.
        sent => "memory_tx_datagrams",
        /// Datagrams dropped because the queue to the other end was full.
        overflow => "memory_tx_overflow",
        /// Datagrams dropped because they are neither for the other end nor for a group that it joined.
        bad_destination => "memory_tx_bad_destination",
        /// Commits without a slot, or longer than the slot.
        bad_commit => "memory_tx_bad_commit",
        /// Datagrams received.
        received => "memory_rx_datagrams",
    }
}

/// One direction of a pair.
struct Wire {
    queue: Mutex<Queue>,
    /// Readable while packets are queued; maintained once the descriptor was requested.
    event: OwnedFd,
}

struct Queue {
    packets: VecDeque<Packet>,
    free: Vec<Packet>,
    /// The groups that the receiving end joined.
    groups: Vec<IpAddr>,
    /// Whether the descriptor was requested; until then, the device makes no system call.
    watched: bool,
}

struct Packet {
    bytes: Box<[u8]>,
    len: usize,
    path: Path,
    identification: u16,
}

impl MemoryDevice {
    /// Maximum number of queued datagrams in one direction; more are lost.
    pub const CAPACITY: usize = 1024;

    /// Creates two devices that send to each other.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptors left.
    pub fn pair(a: IpAddr, b: IpAddr) -> io::Result<(Self, Self)> {
        let (there, back) = (Arc::new(Wire::new(a)?), Arc::new(Wire::new(b)?));
        Ok((Self::new(a, b, there.clone(), back.clone()), Self::new(b, a, back, there)))
    }

    fn new(address: IpAddr, peer: IpAddr, outgoing: Arc<Wire>, incoming: Arc<Wire>) -> Self {
        Self {
            capabilities: Capabilities {
                kind: "memory",
                max_datagram: MAX_DATAGRAM,
                max_segments: 1,
                sees_ip_header: true,
                carries_ethernet: false,
                process_slot: ProcessSlot::NONE,
                link_mtu: LINK_MTU,
            },
            addresses: [address],
            peer,
            outgoing,
            incoming,
            spare: Vec::with_capacity(BURST),
            staged: Vec::with_capacity(BURST),
            burst: Vec::with_capacity(BURST),
            counters: Counters::default(),
        }
    }
}

impl Device for MemoryDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn bind_source_port(&mut self, _path: &Path, wanted: u16) -> io::Result<u16> {
        Ok(wanted)
    }

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        if self.staged.len() == BURST {
            return None;
        }
        if self.spare.is_empty() {
            let mut queue = self.outgoing.lock();
            let keep = queue.free.len().saturating_sub(BURST);
            self.spare.extend(queue.free.drain(keep..));
        }
        self.spare.last_mut().map(|packet| TxSlot::new(&mut packet.bytes))
    }

    fn commit(&mut self, _now: Instant, transmit: &Transmit) {
        let Some(mut packet) = self.spare.pop().filter(|packet| transmit.len <= packet.bytes.len()) else {
            self.counters.bad_commit += 1;
            return;
        };
        packet.len = transmit.len;
        packet.path = transmit.path;
        packet.identification = transmit.identification;
        self.staged.push(packet);
    }

    fn flush(&mut self, _now: Instant) -> io::Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let mut guard = self.outgoing.lock();
        let queue = &mut *guard;
        let was_empty = queue.packets.is_empty();
        for packet in self.staged.drain(..) {
            let destination = packet.path.destination;
            if destination != self.peer && !queue.groups.contains(&destination) {
                self.counters.bad_destination += 1;
                queue.free.push(packet);
            } else if queue.packets.len() == Self::CAPACITY {
                self.counters.overflow += 1;
                queue.free.push(packet);
            } else {
                self.counters.sent += 1;
                queue.packets.push_back(packet);
            }
        }
        if queue.watched && was_empty && !queue.packets.is_empty() {
            self.outgoing.raise();
        }
        Ok(())
    }

    fn receive(&mut self, _now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        {
            let mut guard = self.incoming.lock();
            let queue = &mut *guard;
            queue.free.append(&mut self.burst);
            let count = queue.packets.len().min(BURST);
            self.burst.extend(queue.packets.drain(..count));
            if queue.watched && count > 0 && queue.packets.is_empty() {
                self.incoming.lower();
            }
        }
        for packet in &self.burst {
            let identification = match packet.path.source {
                IpAddr::V4(_) => {
                    Identification::Known { identification: packet.identification, dont_fragment: true }
                }
                IpAddr::V6(_) => Identification::ABSENT,
            };
            let head = packet.bytes.get(..packet.len).unwrap_or_default();
            sink(&Received::whole(packet.path, identification, head));
        }
        self.counters.received += self.burst.len() as u64;
        Ok(self.burst.len())
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        let mut queue = self.incoming.lock();
        if !queue.watched {
            queue.watched = true;
            if !queue.packets.is_empty() {
                self.incoming.raise();
            }
        }
        Some(self.incoming.event.as_fd())
    }

    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        let mut queue = self.incoming.lock();
        queue.groups.retain(|known| *known != group);
        if join {
            queue.groups.push(group);
        }
        Ok(())
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(visit);
    }
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDevice")
            .field("address", &self.addresses[0])
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Wire {
    fn new(address: IpAddr) -> io::Result<Self> {
        let nowhere = Path {
            encapsulation: roce_packet::Encapsulation::RoceV2,
            source: address,
            destination: address,
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            vlan: None,
        };
        let packet = || Packet {
            bytes: vec![0; MAX_DATAGRAM].into_boxed_slice(),
            len: 0,
            path: nowhere,
            identification: 0,
        };
        let queue = Queue {
            packets: VecDeque::with_capacity(MemoryDevice::CAPACITY),
            // A full queue plus the maximum that both ends hold: spare, staged and one burst.
            free: std::iter::repeat_with(packet).take(POPULATION).collect(),
            groups: Vec::new(),
            watched: false,
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::new(queue), event })
    }

    /// Locks the queue. The queue is consistent at any time, so a panic of a lock holder is harmless.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Makes the event readable. Can only fail if it already is and its count is at the maximum.
    fn raise(&self) {
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Makes the event unreadable. Can only fail if it already is.
    fn lower(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

/// Maximum number of staged datagrams, and of datagrams in one burst.
const BURST: usize = 64;
const POPULATION: usize = MemoryDevice::CAPACITY + 3 * BURST;
/// The MTU of a link with jumbo frames.
const LINK_MTU: usize = 9000;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use roce_packet::Qpn;

    use super::*;
    use crate::testing::{counter, datagram, path, readable, receive_all, send};

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn datagrams_arrive_as_they_were_sent() {
        let (mut a, mut b) = MemoryDevice::pair(A, B).unwrap();
        assert_eq!(a.bind_source_port(&path(A, B), 50_000).unwrap(), 50_000);
        let (first, second) = (datagram(&path(A, B), 0, 100), datagram(&path(A, B), 0, 4096));
        send(&mut a, &path(A, B), &[&first, &second]);
        let received = receive_all(&mut b);
        assert_eq!(received.len(), 2);
        assert_eq!(received[0].bytes, first);
        assert_eq!(received[1].bytes, second);
        assert_eq!(received[0].path, path(A, B));
        let known = Identification::Known { identification: 0, dont_fragment: true };
        assert_eq!(received[0].identification, known);
        // Also in the reverse direction.
        send(&mut b, &path(B, A), &[&first]);
        assert_eq!(receive_all(&mut a).len(), 1);
        assert_eq!(receive_all(&mut b).len(), 0);
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted() {
        let (mut a, mut b) = MemoryDevice::pair(A, B).unwrap();
        let bytes = datagram(&path(A, B), 0, 8);
        for _ in 0..MemoryDevice::CAPACITY + 10 {
            send(&mut a, &path(A, B), &[&bytes]);
        }
        assert_eq!(counter(&a, "memory_tx_overflow"), 10);
        assert_eq!(receive_all(&mut b).len(), MemoryDevice::CAPACITY);
        // The buffers are reused.
        for _ in 0..10 * POPULATION {
            send(&mut a, &path(A, B), &[&bytes]);
            assert_eq!(receive_all(&mut b).len(), 1);
        }
    }

    #[test]
    fn a_full_device_says_so_until_it_is_flushed() {
        let (mut a, _b) = MemoryDevice::pair(A, B).unwrap();
        let mut count = 0;
        while a.slot().is_some() {
            a.commit(Instant::ZERO, &Transmit::new(path(A, B), Qpn::default(), 16, 0));
            count += 1;
        }
        assert_eq!(count, BURST);
        a.flush(Instant::ZERO).unwrap();
        assert!(a.slot().is_some());
    }

    #[test]
    fn what_is_for_another_address_is_not_taken() {
        let (mut a, mut b) = MemoryDevice::pair(A, B).unwrap();
        let group: IpAddr = "239.1.2.3".parse().unwrap();
        let bytes = datagram(&path(A, group), 0, 8);
        send(&mut a, &path(A, A), &[&bytes]);
        send(&mut a, &path(A, group), &[&bytes]);
        assert_eq!(receive_all(&mut b).len(), 0);
        assert_eq!(counter(&a, "memory_tx_bad_destination"), 2);
        b.set_multicast(group, true).unwrap();
        send(&mut a, &path(A, group), &[&bytes]);
        assert_eq!(receive_all(&mut b).len(), 1);
        b.set_multicast(group, false).unwrap();
        send(&mut a, &path(A, group), &[&bytes]);
        assert_eq!(receive_all(&mut b).len(), 0);
    }

    #[test]
    fn the_descriptor_is_readable_while_something_waits() {
        let (mut a, mut b) = MemoryDevice::pair(A, B).unwrap();
        let bytes = datagram(&path(A, B), 0, 8);
        // Sent before the descriptor was requested.
        send(&mut a, &path(A, B), &[&bytes]);
        assert!(readable(&b));
        receive_all(&mut b);
        assert!(!readable(&b));
        for _ in 0..BURST + 1 {
            send(&mut a, &path(A, B), &[&bytes]);
        }
        assert!(readable(&b));
        // One burst does not empty the queue.
        assert_eq!(b.receive(Instant::ZERO, &mut |_| {}).unwrap(), BURST);
        assert!(readable(&b));
        assert_eq!(b.receive(Instant::ZERO, &mut |_| {}).unwrap(), 1);
        assert!(!readable(&b));
    }

    #[test]
    fn threads_at_both_ends_get_everything() {
        let (mut a, mut b) = MemoryDevice::pair(A, B).unwrap();
        let bytes = datagram(&path(A, B), 0, 64);
        let sender = std::thread::spawn(move || {
            for _ in 0..20_000 {
                send(&mut a, &path(A, B), &[&bytes]);
            }
            (counter(&a, "memory_tx_datagrams"), counter(&a, "memory_tx_overflow"))
        });
        let mut received = 0;
        while !sender.is_finished() {
            received += receive_all(&mut b).len() as u64;
        }
        received += receive_all(&mut b).len() as u64;
        let (sent, lost) = sender.join().unwrap();
        assert_eq!(sent, received);
        assert_eq!(sent + lost, 20_000);
    }
}
