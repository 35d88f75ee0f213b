//! IP of the host: smoltcp answers pings and provides TCP. It receives and sends IP packets; the Ethernet
//! addresses are resolved outside, so there is a single neighbour table.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use roce_transport::Instant;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::sockets::Sockets;

/// Maximum length of sent packets, if the link allows it: fits into a slot of any port.
const LONGEST_PACKET: usize = 4096;
/// Maximum number of packets that wait to be sent.
const OUTBOX: usize = 64;
/// Delay before the stack is polled again if it was due but sent nothing.
const SECOND_LOOK: Duration = Duration::from_millis(1);

/// smoltcp, its sockets, and the packets that it sends.
pub(super) struct Stack {
    pub(super) interface: Interface,
    pub(super) sockets: Sockets,
    outbox: Outbox,
    /// Time of the next request for packets.
    wake: Option<Instant>,
}

/// Queue of packets to send, which reuses their memory.
struct Outbox {
    packets: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    mtu: usize,
}

impl Stack {
    /// Creates a stack with these addresses and prefix lengths.
    pub(super) fn new(addresses: &[(IpAddr, u8)], link_mtu: usize, seed: u64) -> Self {
        let mut outbox =
            Outbox { packets: VecDeque::new(), spare: Vec::new(), mtu: link_mtu.min(LONGEST_PACKET) };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface =
            Interface::new(config, &mut Wire { incoming: None, outbox: &mut outbox }, StackInstant::ZERO);
        interface.update_ip_addrs(|known| {
            for (address, prefix_len) in addresses {
                // There is room for one address of each kind, which is the maximum.
                let _ = known.push(IpCidr::new((*address).into(), *prefix_len));
            }
        });
        let sockets = Sockets::new(SocketSet::new(Vec::new()), seed);
        Self { interface, sockets, outbox, wake: None }
    }

    /// Handles a packet for one of the addresses.
    pub(super) fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        let mut wire = Wire { incoming: Some(packet), outbox: &mut self.outbox };
        self.interface.poll_ingress_single(to_stack(now), &mut wire, &mut self.sockets.set);
        self.sockets.listen_again();
        self.wake = Some(now);
    }

    /// Returns the next packet to send. [`give_back`](Self::give_back) takes its memory.
    pub(super) fn poll_packet(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.outbox.packets.is_empty() && self.wake.is_some_and(|wake| wake <= now) {
            self.run(now);
        }
        self.outbox.packets.pop_front()
    }

    pub(super) fn give_back(&mut self, packet: Vec<u8>) {
        if self.outbox.spare.len() < OUTBOX {
            self.outbox.spare.push(packet);
        }
    }

    /// Notes that a socket was changed.
    pub(super) fn touch(&mut self) {
        self.wake = Some(Instant::ZERO);
    }

    /// Returns when [`poll_packet`](Self::poll_packet) has a packet.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.outbox.packets.is_empty() { self.wake } else { Some(Instant::ZERO) }
    }

    fn run(&mut self, now: Instant) {
        let mut wire = Wire { incoming: None, outbox: &mut self.outbox };
        self.interface.poll_egress(to_stack(now), &mut wire, &mut self.sockets.set);
        self.sockets.listen_again();
        self.sockets.remove_closed();
        let wake = self.interface.poll_at(to_stack(now), &self.sockets.set).map(from_stack);
        self.wake = match wake {
            Some(wake) if wake <= now && self.outbox.packets.is_empty() => Some(now + SECOND_LOOK),
            wake => wake,
        };
    }
}

/// Converts to smoltcp's time, which is in microseconds.
pub(super) fn to_stack(now: Instant) -> StackInstant {
    StackInstant::from_micros_const(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}

fn from_stack(instant: StackInstant) -> Instant {
    let micros = u64::try_from(instant.total_micros()).unwrap_or(0);
    Instant::from_nanos(micros.saturating_mul(1000))
}

/// A smoltcp device for the duration of one call.
struct Wire<'a> {
    incoming: Option<&'a [u8]>,
    outbox: &'a mut Outbox,
}

impl Device for Wire<'_> {
    type RxToken<'a>
        = Packet<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Room<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: StackInstant) -> Option<(Packet<'_>, Room<'_>)> {
        let packet = self.incoming.take()?;
        // Answers without room are dropped: a host that floods this one gets fewer of them.
        Some((Packet(packet), Room(self.outbox)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Room<'_>> {
        (self.outbox.packets.len() < OUTBOX).then_some(Room(self.outbox))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.outbox.mtu;
        capabilities
    }
}

struct Packet<'a>(&'a [u8]);

impl RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

struct Room<'a>(&'a mut Outbox);

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = self.0.spare.pop().unwrap_or_default();
        packet.clear();
        packet.resize(len, 0);
        let result = write(&mut packet);
        if self.0.packets.len() < OUTBOX {
            self.0.packets.push_back(packet);
        }
        result
    }
}
