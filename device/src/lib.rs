//! Devices: how datagrams travel between an engine and the network.
//!
//! A [`Device`] moves RoCE datagrams (BTH to ICRC plus a [`Path`]), not Ethernet frames. So an unprivileged
//! UDP socket, a pair of queues in memory, a TAP and an AF_XDP ring are equals. [`open()`] opens the device
//! that a specification names. `framed::FramedDevice` turns any port for Ethernet frames into a device.
//! Wrappers (`fault`, `pcap`) are devices around a device. `roce::ContextBuilder::attach` takes any device.
//!
//! A device does not parse or change datagrams and never blocks: the caller passes the time and polls. Only
//! `pnet` has a thread, because its library waits. All functions return errors instead of panicking on input
//! from the network.
//!
//! ```
//! use roce_device::memory::MemoryDevice;
//! use roce_device::{Device, Encapsulation, Instant, Path, Qpn, Transmit};
//!
//! let (source, destination) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
//! let (mut near, mut far) = MemoryDevice::pair(source, destination)?;
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
//!
//! // An engine writes BTH to ICRC into the slot; any bytes do here.
//! let datagram = b"from BTH to ICRC";
//! let now = Instant::ZERO;
//! let slot = near.slot().expect("a device that was just opened has room");
//! slot.buffer[..datagram.len()].copy_from_slice(datagram);
//! near.commit(now, &Transmit::new(path, Qpn::default(), datagram.len(), 0));
//! near.flush(now)?;
//!
//! let count = far.receive(now, &mut |received| {
//!     assert_eq!((received.head(), received.path), (&datagram[..], path));
//! })?;
//! assert_eq!(count, 1);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `udp` (default) | `udp:ADDRESS`: a UDP socket, without privilege |
//! | `tap` | `tap:NAME`: a virtual Ethernet interface with a host of its own behind it |
//! | `xdp` | `xdp:IFNAME`: AF_XDP on an Ethernet interface |
//! | `raw` | `raw:IFNAME`: a packet socket on an Ethernet interface |
//! | `pnet` | `pnet:IFNAME`: the crate `pnet_datalink`, for systems without packet sockets |
//! | `framed` | `framed` and `host`: devices with Ethernet frames over custom ports; part of the four above |
//! | `kernel-host` | `host::kernel`: addresses, routes and neighbours of the kernel; part of `xdp`, `raw` and `pnet` |
//! | `whole` | `whole`: ports that carry every frame of a link unchanged, for a bridge; with `raw` and `tap` |
//! | `fault` | `fault`: faults around any device |
//! | `capture` | `pcap`: captures around any device |
//! | `xsk-rs` | `xdp:IFNAME,backend=libxdp`; needs clang, m4, libelf-dev and zlib1g-dev to build |
//!
//! Every build contains [`memory`].

#[cfg(test)]
extern crate self as roce_device;

#[cfg(feature = "framed")]
mod checksum;
mod clock;
#[cfg(any(feature = "udp", feature = "raw"))]
mod cmsg;
mod counters;
#[cfg(feature = "fault")]
pub mod fault;
#[cfg(feature = "framed")]
pub mod framed;
#[cfg(any(feature = "tap", feature = "kernel-host"))]
pub mod host;
mod host_tcp;
#[cfg(any(feature = "tap", feature = "kernel-host"))]
mod ifreq;
#[cfg(feature = "kernel-host")]
mod link;
pub mod memory;
#[cfg(any(feature = "udp", feature = "raw"))]
mod mmsg;
#[cfg(any(feature = "tap", feature = "raw"))]
mod offload;
mod open;
#[cfg(feature = "capture")]
pub mod pcap;
#[cfg(feature = "pnet")]
mod pnet;
#[cfg(feature = "raw")]
pub mod raw;
mod registry;
#[cfg(feature = "raw")]
mod segment;
#[cfg(any(feature = "udp", feature = "kernel-host"))]
mod sockets;
#[cfg(any(feature = "udp", feature = "tap", feature = "kernel-host"))]
mod spec;
#[cfg(feature = "tap")]
pub mod tap;
#[cfg(feature = "udp")]
pub mod udp;
#[cfg(feature = "whole")]
pub mod whole;
#[cfg(feature = "xdp")]
pub mod xdp;

#[cfg(all(test, feature = "capture"))]
#[path = "../tests/support/kept.rs"]
mod kept;
#[cfg(all(test, feature = "framed"))]
#[path = "../tests/support/ports.rs"]
mod ports;
#[cfg(all(test, feature = "kernel-host"))]
#[path = "../tests/support/suite.rs"]
mod suite;
#[cfg(test)]
#[path = "../tests/support/testing.rs"]
mod testing;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// Maximum length of a datagram in bytes: path MTU 4096 with all headers and in-band telemetry, rounded up.
pub const MAX_DATAGRAM: usize = 4224;

pub use clock::Clock;
#[cfg(feature = "framed")]
pub use framed::FrameSettings;
pub use open::{Availability, OpenError};
pub use registry::{FEATURES, Kind, ListedDevice, OpenOptions, kinds, open, wrap};

pub use host_tcp::{HostTcp, TcpId};

// Re-exported for the public items above.
pub use roce_machine::interfaces::{LocalAddress, ethernet_interfaces, interfaces_of, local_addresses};
pub use roce_machine::{descriptors, fork, users};

// Types in the signatures of this crate.
pub use roce_packet::{Encapsulation, MacAddr, Path, Qpn, VlanTag};
pub use roce_transport::{Batch, Body, Identification, Instant, ProcessSlot, Received, Transmit, TxSlot};

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kind, as `--device` names it: `udp`, `memory`, ….
    pub kind: &'static str,
    /// The largest datagram, BTH to ICRC, in bytes.
    pub max_datagram: usize,
    /// The maximum number of segments in one send; 1 without segmentation offload.
    pub max_segments: u16,
    /// Whether received datagrams come with the IP header from the wire.
    pub sees_ip_header: bool,
    /// Whether whole Ethernet frames are carried, so that VLAN tags and RoCE v1 exist.
    pub carries_ethernet: bool,
    /// The prefix of this device's queue pair numbers if several devices share an address. Datagrams for
    /// queue pairs of the other devices do not arrive here.
    pub process_slot: ProcessSlot,
    /// The link MTU in bytes (the largest IP packet), from which the largest path MTU follows.
    pub link_mtu: usize,
}

/// Moves datagrams between an engine and the network.
///
/// To transmit, repeat [`slot`](Self::slot), write and [`commit`](Self::commit), then [`flush`](Self::flush).
/// An uncommitted slot is discarded. [`receive`](Self::receive) calls a closure for each datagram.
///
/// An implementation needs eight methods. This device delivers every datagram to itself:
///
/// ```
/// use std::io;
/// use std::net::IpAddr;
/// use std::os::fd::BorrowedFd;
///
/// use roce_device::{Capabilities, Device, Identification, Instant, Path, Qpn, Received, Transmit, TxSlot};
///
/// struct Loopback {
///     capabilities: Capabilities,
///     addresses: [IpAddr; 1],
///     slot: Vec<u8>,
///     queue: Vec<(Path, Vec<u8>)>,
/// }
///
/// impl Device for Loopback {
///     fn capabilities(&self) -> &Capabilities {
///         &self.capabilities
///     }
///
///     fn addresses(&self) -> &[IpAddr] {
///         &self.addresses
///     }
///
///     fn bind_source_port(&mut self, _: &Path, wanted: u16) -> io::Result<u16> {
///         Ok(wanted)
///     }
///
///     fn slot(&mut self) -> Option<TxSlot<'_>> {
///         Some(TxSlot::new(&mut self.slot))
///     }
///
///     fn commit(&mut self, _: Instant, transmit: &Transmit) {
///         self.queue.push((transmit.path, self.slot[..transmit.len].to_vec()));
///     }
///
///     fn flush(&mut self, _: Instant) -> io::Result<()> {
///         Ok(())
///     }
///
///     fn receive(&mut self, _: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
///         let burst = std::mem::take(&mut self.queue);
///         for (path, bytes) in &burst {
///             let identification = Identification::ABSENT;
///             sink(&Received::whole(*path, identification, bytes));
///         }
///         Ok(burst.len())
///     }
///
///     fn as_fd(&self) -> Option<BorrowedFd<'_>> {
///         None
///     }
///
///     fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
/// }
///
/// let address = "2001:db8::1".parse().unwrap();
/// let capabilities = Capabilities {
///     kind: "loopback",
///     max_datagram: 4160,
///     max_segments: 1,
///     sees_ip_header: true,
///     carries_ethernet: false,
///     process_slot: roce_device::ProcessSlot::NONE,
///     link_mtu: 4300,
/// };
/// let mut device = Loopback { capabilities, addresses: [address], slot: vec![0; 4160], queue: Vec::new() };
/// let path = Path {
///     encapsulation: roce_device::Encapsulation::RoceV2,
///     source: address,
///     destination: address,
///     source_port: 49152,
///     traffic_class: 0,
///     hop_limit: 64,
///     flow_label: 0,
///     vlan: None,
/// };
/// let slot = device.slot().unwrap();
/// slot.buffer[..16].copy_from_slice(b"from BTH to ICRC");
/// device.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), 16, 0));
/// device.flush(Instant::ZERO)?;
/// assert_eq!(device.receive(Instant::ZERO, &mut |received| assert_eq!(received.head().len(), 16))?, 1);
/// # Ok::<(), io::Error>(())
/// ```
pub trait Device: Send {
    /// Returns the properties of this device.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the addresses that this device sends from and receives for, in GID table order.
    fn addresses(&self) -> &[IpAddr];

    /// Requests UDP source port `wanted` for datagrams on `path`, and returns the port that they will have:
    /// `wanted`, unless the device cannot choose. The ICRC covers the port, so a caller that builds a path
    /// asks first. Called when a queue pair gets its path, never per packet.
    ///
    /// # Errors
    ///
    /// Fails if the socket for another port cannot be opened and there is no fallback.
    fn bind_source_port(&mut self, path: &Path, wanted: u16) -> io::Result<u16>;

    /// Tells the device that source port `port` has no more users, so the device may free its resources.
    fn release_source_port(&mut self, port: u16) {
        let _ = port;
    }

    /// Returns the index of the interface that this device's link-local addresses belong to. Sockets on these
    /// addresses need it as scope ID. `None` if the kernel does not have the addresses.
    fn scope_id(&self) -> Option<u32> {
        None
    }

    /// Returns the 802.1Q tag of frames with this traffic class, or `None` if the device does not use tags.
    fn vlan(&self, traffic_class: u8) -> Option<VlanTag> {
        let _ = traffic_class;
        None
    }

    /// Lends the buffer for one more datagram, or returns `None` if the device is full until
    /// [`flush`](Self::flush) makes progress.
    ///
    /// The [`Batch`] of the slot decides whether the datagram may join a superpacket. A wrapper that lends
    /// slots with [`Batch::NONE`] sends every datagram alone, for measurements of network effects on packets.
    fn slot(&mut self) -> Option<TxSlot<'_>>;

    /// Takes the datagram that was written into the most recently lent slot.
    fn commit(&mut self, now: Instant, transmit: &Transmit);

    /// Hands all committed datagrams to the wire. Datagrams that the kernel does not accept yet stay, and the
    /// next call tries them again. Dropped datagrams are counted.
    ///
    /// # Errors
    ///
    /// Returns only errors that are not transient.
    fn flush(&mut self, now: Instant) -> io::Result<()>;

    /// Returns whether [`flush`](Self::flush) may have work if nothing was committed since its last call.
    fn is_flush_due(&self, now: Instant) -> bool {
        let _ = now;
        true
    }

    /// Receives one burst, calls `sink` for each datagram, and returns their number. Never blocks.
    ///
    /// # Errors
    ///
    /// Returns only errors that are not transient.
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize>;

    /// Returns the time at which [`flush`](Self::flush) or [`receive`](Self::receive) must be called again
    /// even if nothing arrives: for example, a wrapper that delays datagrams holds one until then.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns a descriptor that becomes readable when datagrams can be received. It stays the same for the
    /// life of the device, also when groups are joined or left.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Joins or leaves a multicast group.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the device does not support multicast.
    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        let _ = (group, join);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this device does not support multicast"))
    }

    /// Accepts the first messages of connections to this service (REQ and SIDR_REQ). If several devices share
    /// an address, the message goes to the device that claimed its service, or to any of them if none did.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another device of the address has claimed the service.
    fn claim_service(&mut self, service_id: u64) -> io::Result<()> {
        let _ = service_id;
        Ok(())
    }

    /// Leaves the first messages of connections to the other devices of the address from now on, because one
    /// of those does the connection management of this device.
    fn leave_requests(&mut self) {}

    /// Reverses [`claim_service`](Self::claim_service).
    fn release_service(&mut self, service_id: u64) {
        let _ = service_id;
    }

    /// Returns TCP from this device's address if the kernel does not have that address, and `None` if the
    /// kernel's own TCP serves it. Programs use `roce::Tcp`, which supports both.
    fn host_tcp(&mut self) -> Option<&mut dyn HostTcp> {
        None
    }

    /// Calls `visit` with name and value of each counter of this device and of the devices that it wraps.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

/// Implements, in `impl Device` of a wrapper with a field `inner`, the methods that every wrapper forwards.
#[macro_export]
macro_rules! forward_to_inner {
    () => {
        fn addresses(&self) -> &[std::net::IpAddr] {
            self.inner.addresses()
        }

        fn scope_id(&self) -> Option<u32> {
            self.inner.scope_id()
        }

        fn vlan(&self, traffic_class: u8) -> Option<$crate::VlanTag> {
            self.inner.vlan(traffic_class)
        }

        fn bind_source_port(&mut self, path: &$crate::Path, wanted: u16) -> std::io::Result<u16> {
            self.inner.bind_source_port(path, wanted)
        }

        fn release_source_port(&mut self, port: u16) {
            self.inner.release_source_port(port);
        }

        fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.inner.as_fd()
        }

        fn set_multicast(&mut self, group: std::net::IpAddr, join: bool) -> std::io::Result<()> {
            self.inner.set_multicast(group, join)
        }

        fn claim_service(&mut self, service_id: u64) -> std::io::Result<()> {
            self.inner.claim_service(service_id)
        }

        fn leave_requests(&mut self) {
            self.inner.leave_requests();
        }

        fn release_service(&mut self, service_id: u64) {
            self.inner.release_service(service_id);
        }

        fn host_tcp(&mut self) -> Option<&mut dyn $crate::HostTcp> {
            self.inner.host_tcp()
        }
    };
}
