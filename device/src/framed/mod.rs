//! Devices that carry Ethernet frames. A port moves frames, and a host knows addresses and neighbours. A
//! [`FramedDevice`] connects both with the engine: it adds and removes the headers of datagrams.
//!
//! ```text
//!   engine                        datagrams
//!     |
//!   FramedDevice    transmit: L2 to L4 headers, superframes     receive: which datagrams are ours
//!     |      \      held: paused priorities, unknown neighbours   pauses: PFC
//!   port     host                 frames
//! ```
//!
//! A custom port and host make a device. The following two live in memory:
//!
//! ```
//! use std::io::{self, PipeReader};
//! use std::net::IpAddr;
//! use std::os::fd::{AsFd, BorrowedFd};
//! use std::sync::{Arc, Mutex};
//!
//! use roce_device::framed::FramedDevice;
//! use roce_device::framed::port::{FRAME_ROOM, FramePort, Incoming, Outgoing, PortRecord};
//! use roce_device::framed::{Host, Resolution};
//! use roce_device::{Device, Encapsulation, FrameSettings, Instant, MacAddr, Path, Qpn, Transmit};
//!
//! struct MemoryPort {
//!     record: PortRecord,
//!     slot: Vec<u8>,
//!     sent: Arc<Mutex<Vec<Vec<u8>>>>,
//!     readable: PipeReader,
//! }
//!
//! impl FramePort for MemoryPort {
//!     fn record(&self) -> &PortRecord {
//!         &self.record
//!     }
//!
//!     fn slot(&mut self) -> Option<&mut [u8]> {
//!         Some(&mut self.slot)
//!     }
//!
//!     fn commit(&mut self, frame: Outgoing) {
//!         self.sent.lock().unwrap().push(self.slot[frame.bytes].to_vec());
//!     }
//!
//!     fn flush(&mut self, _: Instant) -> io::Result<()> {
//!         Ok(())
//!     }
//!
//!     fn receive(&mut self, _: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
//!         Ok(0)
//!     }
//!
//!     fn as_fd(&self) -> BorrowedFd<'_> {
//!         self.readable.as_fd()
//!     }
//!
//!     fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
//! }
//!
//! /// All its neighbours have the same Ethernet address.
//! struct MemoryHost([IpAddr; 1], MacAddr);
//!
//! impl Host for MemoryHost {
//!     fn addresses(&self) -> &[IpAddr] {
//!         &self.0
//!     }
//!
//!     fn resolve(&mut self, _: Instant, _: IpAddr) -> Resolution {
//!         Resolution::Known(self.1)
//!     }
//!
//!     fn set_multicast(&mut self, _: IpAddr, _: bool) -> io::Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let (source, destination) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
//! let record = PortRecord {
//!     kind: "memory",
//!     interface: "none".to_owned(),
//!     mac: MacAddr([2, 0, 0, 0, 0, 1]),
//!     link_mtu: 4200,
//!     max_segments: 1,
//!     bits_per_second: None,
//! };
//! let sent = Arc::default();
//! let (readable, _) = io::pipe()?;
//! let port = MemoryPort { record, slot: vec![0; FRAME_ROOM], sent: Arc::clone(&sent), readable };
//! let host = MemoryHost([source], MacAddr([2, 0, 0, 0, 0, 2]));
//! let mut device = FramedDevice::new(Box::new(port), Box::new(host), FrameSettings::default());
//!
//! let path = Path {
//!     encapsulation: Encapsulation::RoceV2,
//!     source,
//!     destination,
//!     source_port: 49152,
//!     traffic_class: 0,
//!     hop_limit: 64,
//!     flow_label: 0,
//!     vlan: None,
//! };
//! let slot = device.slot().expect("a new device has room");
//! slot.buffer[..16].copy_from_slice(b"from BTH to ICRC");
//! device.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), 16, 0));
//! device.flush(Instant::ZERO)?;
//!
//! let sent = sent.lock().unwrap();
//! let frame = &sent[0];
//! assert_eq!(frame[..6], [2, 0, 0, 0, 0, 2], "the neighbour");
//! assert_eq!(frame[12..14], [0x08, 0x00], "IPv4");
//! assert_eq!(frame[36..38], 4791_u16.to_be_bytes(), "the UDP port of RoCE v2");
//! assert_eq!(&frame[42..], b"from BTH to ICRC");
//! # Ok::<(), io::Error>(())
//! ```
//!
//! `examples/unix_socket.rs` is a complete program with such a port, which also receives.

mod held;
mod host;
pub mod pauses;
pub mod port;
mod receive;
mod settings;
mod superframe;
#[cfg(test)]
mod tests;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use roce_packet::{Gid, MacAddr, Path, VlanTag};
use roce_transport::{Instant, ProcessSlot, Received, Transmit, TxSlot};

use super::{Capabilities, Device, HostTcp};
use crate::counters::counters;
use held::{Held, HeldDatagram};
use pauses::Pauses;
use port::{FramePort, MAX_DATAGRAM};
use superframe::{Superframe, address_in};

pub use host::{Host, Resolution, Unreachable};
pub use settings::FrameSettings;

/// Interval between checks of held datagrams while no other event comes.
const HELD_CHECK_NS: u64 = 200_000;
/// Maximum number of queued datagrams to an own address.
const MAX_OWN: usize = 1024;

/// A device made of a port and a host.
pub struct FramedDevice {
    port: Box<dyn FramePort>,
    host: Box<dyn Host>,
    settings: FrameSettings,
    capabilities: Capabilities,
    mac: MacAddr,
    max_segments: u16,
    addresses: Vec<IpAddr>,
    groups: Vec<IpAddr>,
    /// The frame that is being filled in the port's slot.
    open: Option<Superframe>,
    held: Held,
    /// The time of the next check of `held`.
    check_held_at: Option<Instant>,
    /// Whether datagrams are held because the port had no room; they leave first.
    is_port_full: bool,
    pauses: Pauses,
    /// Datagrams that left since the last check for pauses.
    unlooked: u32,
    /// Datagrams to this device, delivered by the next call of `receive`.
    own: VecDeque<HeldDatagram>,
    scratch: Vec<u8>,
    /// The latest time passed to a call, for calls without a time.
    latest: Instant,
    counters: Counters,
}

counters! {
    struct Counters {
        /// Frames with datagrams given to the port.
        tx_frames => "frame_tx_frames",
        /// Datagrams in these frames.
        tx_datagrams => "frame_tx_datagrams",
        /// Bytes of these frames, headers included.
        tx_bytes => "frame_tx_bytes",
        /// Datagrams to an address of this device, delivered without the port.
        tx_own => "frame_tx_own",
        /// Datagrams that had to wait because their priority was paused or their neighbour was not resolved.
        tx_held => "frame_tx_held",
        /// Frames of the host, such as ARP.
        tx_host_frames => "frame_tx_host",
        /// Datagrams dropped because the next hop does not answer or no route leads to the destination.
        tx_unreachable => "frame_tx_unreachable",
        /// Datagrams dropped because too many wait for neighbours that are not resolved.
        tx_unresolved => "frame_tx_unresolved",
        /// Datagrams dropped because no headers exist for their path.
        tx_bad_path => "frame_tx_bad_path",
        /// Frames received, of every protocol.
        rx_frames => "frame_rx_frames",
        /// Datagrams delivered.
        rx_datagrams => "frame_rx_datagrams",
        /// Frames passed on to the host.
        rx_host_frames => "frame_rx_host",
        /// Frames dropped because their headers do not parse.
        rx_malformed => "frame_rx_malformed",
        /// Frames dropped because they belong to another VLAN.
        rx_wrong_vlan => "frame_rx_wrong_vlan",
        /// RoCE frames dropped because their destination is not an address or group of this device.
        rx_not_for_us => "frame_rx_not_for_us",
    }
}

impl FramedDevice {
    /// Creates a device. `settings` contains the VLAN and priority of its frames.
    #[must_use]
    pub fn new(port: Box<dyn FramePort>, host: Box<dyn Host>, settings: FrameSettings) -> Self {
        let record = port.record().clone();
        let capabilities = Capabilities {
            kind: record.kind,
            max_datagram: MAX_DATAGRAM,
            max_segments: record.max_segments,
            sees_ip_header: true,
            carries_ethernet: true,
            process_slot: ProcessSlot::NONE,
            link_mtu: record.link_mtu,
        };
        let mut addresses = host.addresses().to_vec();
        let link_local = IpAddr::V6(Gid::link_local(record.mac).to_ipv6());
        if !addresses.contains(&link_local) {
            // The default GID of RoCE v1, which does not require a neighbour table.
            addresses.push(link_local);
        }
        Self {
            addresses,
            port,
            host,
            settings,
            capabilities,
            mac: record.mac,
            max_segments: record.max_segments,
            groups: Vec::new(),
            open: None,
            held: Held::default(),
            check_held_at: None,
            is_port_full: false,
            pauses: Pauses::new(record.bits_per_second),
            unlooked: 0,
            own: VecDeque::new(),
            scratch: vec![0; MAX_DATAGRAM],
            latest: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

impl Device for FramedDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn scope_id(&self) -> Option<u32> {
        self.host.scope_id()
    }

    fn vlan(&self, traffic_class: u8) -> Option<VlanTag> {
        self.settings.tag(traffic_class)
    }

    fn bind_source_port(&mut self, path: &Path, wanted: u16) -> io::Result<u16> {
        // Start the resolution here, so that the address is known when the first datagram leaves.
        if !self.is_own(path.destination)
            && address_in(path).is_none()
            && let Resolution::Failed(reason) = self.host.resolve(self.latest, path.destination)
        {
            return Err(io::Error::new(
                io::ErrorKind::HostUnreachable,
                format!("{}: {reason}", path.destination),
            ));
        }
        Ok(wanted)
    }

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.lend_slot()
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.take(now, transmit);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.latest = self.latest.max(now);
        self.close(now);
        self.release_held(now);
        self.send_for_host(now);
        let mut flushed = self.port.flush(now);
        if self.is_port_full && flushed.is_ok() {
            self.release_held(now);
            flushed = self.port.flush(now);
        }
        // A port detects only during a flush that the system does not split frames.
        self.max_segments = self.port.record().max_segments;
        flushed
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        self.latest = self.latest.max(now);
        self.unlooked = 0;
        self.receive_burst(now, sink)
    }

    fn deadline(&self) -> Option<Instant> {
        let own = (!self.own.is_empty()).then_some(Instant::ZERO);
        let pause = if self.held.is_empty() { None } else { self.pauses.next_end() };
        [own, pause, self.check_held_at, self.host.deadline(), self.port.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.as_fd())
    }

    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        self.host.set_multicast(group, join)?;
        self.groups.retain(|known| *known != group);
        if join {
            self.groups.push(group);
        }
        Ok(())
    }

    fn host_tcp(&mut self) -> Option<&mut dyn HostTcp> {
        self.host.tcp()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(visit);
        visit("rx_global_pause", self.pauses.global_frames);
        for (name, value) in PAUSE_COUNTERS.iter().zip(self.pauses.frames) {
            visit(name, value);
        }
        for (name, value) in PAUSE_DURATION_COUNTERS.iter().zip(self.pauses.duration_ns) {
            visit(name, value / 1000);
        }
        self.port.counters(visit);
        self.host.counters(visit);
    }
}

const PAUSE_COUNTERS: [&str; 8] = [
    "rx_prio0_pause",
    "rx_prio1_pause",
    "rx_prio2_pause",
    "rx_prio3_pause",
    "rx_prio4_pause",
    "rx_prio5_pause",
    "rx_prio6_pause",
    "rx_prio7_pause",
];

/// Durations in microseconds, like the mlx5 counters.
const PAUSE_DURATION_COUNTERS: [&str; 8] = [
    "rx_prio0_pause_duration",
    "rx_prio1_pause_duration",
    "rx_prio2_pause_duration",
    "rx_prio3_pause_duration",
    "rx_prio4_pause_duration",
    "rx_prio5_pause_duration",
    "rx_prio6_pause_duration",
    "rx_prio7_pause_duration",
];
