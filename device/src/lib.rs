//! Devices: what moves datagrams between an engine and the world.
//!
//! A device moves RoCE datagrams (BTH to ICRC plus a [`Path`]), not Ethernet frames, so an
//! unprivileged UDP socket, a pair of queues in memory, a TAP and an AF_XDP ring are equals. Wrappers
//! ([`fault`], [`pcap`]) are devices around a device.

#[cfg(test)]
extern crate self as roce_device;

mod clock;
#[cfg(any(feature = "udp", feature = "raw"))]
mod cmsg;
mod counters;
#[cfg(feature = "fault")]
pub mod fault;
#[cfg(feature = "framed")]
pub mod framed;
pub mod host;
mod interfaces;
#[cfg(feature = "kernel-host")]
mod link;
pub mod memory;
#[cfg(any(feature = "udp", feature = "raw"))]
mod mmsg;
mod netlink;
mod open;
#[cfg(feature = "capture")]
pub mod pcap;
#[cfg(feature = "raw")]
pub mod raw;
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

#[cfg(all(test, feature = "framed"))]
mod ports;
#[cfg(test)]
mod testing;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

pub use clock::Clock;
#[cfg(feature = "framed")]
pub use framed::FrameSettings;
pub use interfaces::{LocalAddress, local_addresses};
pub use open::{Availability, Kind, OpenError, OpenOptions, kinds, open, wrap};

pub use crate::host::{HostTcp, TcpId};

use roce_packet::{Path, VlanTag};
use roce_transport::{Instant, Received, Transmit, TxSlot};

/// What a device can do and what it does to a datagram on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kind, as `--device` names it: `udp`, `memory`, ….
    pub kind: &'static str,
    /// The largest datagram, BTH to ICRC, in bytes.
    pub max_datagram: usize,
    /// The most segments that one send can carry; 1 where there is no segmentation offload.
    pub max_segments: u16,
    /// Whether received datagrams come with the IP header that was on the wire.
    pub sees_ip_header: bool,
    /// Whether whole Ethernet frames are carried, so that VLAN tags and RoCE v1 exist.
    pub carries_ethernet: bool,
    /// The link MTU in bytes (the largest IP packet), from which the largest path MTU follows.
    pub link_mtu: usize,
}

/// One way onto a wire. See the module documentation for the order of calls.
///
/// Transmit: [`slot`](Self::slot), write, [`commit`](Self::commit), repeat, [`flush`](Self::flush).
/// A slot that is not committed is forgotten.
pub trait Device: Send {
    /// What this device can do.
    fn capabilities(&self) -> &Capabilities;

    /// The addresses that this device sends from and receives for, in GID table order.
    fn addresses(&self) -> &[IpAddr];

    /// Asks for datagrams to leave with UDP source port `wanted`; returns the port they will leave
    /// with, which is `wanted` wherever the device can choose. The ICRC covers the port, so whoever
    /// builds a path asks first. Called when a queue pair gets its path, never per packet.
    ///
    /// # Errors
    ///
    /// When the socket for another port cannot be opened and there is no fallback.
    fn bind_source_port(&mut self, path: &Path, wanted: u16) -> io::Result<u16>;

    /// Nobody who asked for this source port is left: what it took may be given up.
    fn release_source_port(&mut self, port: u16) {
        let _ = port;
    }

    /// The 802.1Q tag of frames with this traffic class, where the device carries Ethernet and uses one.
    fn vlan(&self, traffic_class: u8) -> Option<VlanTag> {
        let _ = traffic_class;
        None
    }

    /// Room for one more datagram, or `None` when the device is full until [`flush`](Self::flush)
    /// makes progress.
    fn slot(&mut self) -> Option<TxSlot<'_>>;

    /// Takes the datagram that was written into the slot lent last.
    fn commit(&mut self, now: Instant, transmit: &Transmit);

    /// Hands everything committed to the wire. What the kernel would not take now stays and is tried
    /// again at the next call; nothing committed is lost silently (what has to be dropped is counted).
    ///
    /// # Errors
    ///
    /// Only for errors that will not go away by themselves.
    fn flush(&mut self, now: Instant) -> io::Result<()>;

    /// Receives one burst, calling `sink` for each datagram, and returns how many there were. Never
    /// blocks.
    ///
    /// # Errors
    ///
    /// Only for errors that will not go away by themselves.
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize>;

    /// When [`flush`](Self::flush) or [`receive`](Self::receive) must be called again although nothing arrived: a
    /// wrapper that delays datagrams holds one until then.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// A descriptor that becomes readable when something can be received. It stays the same as long as
    /// the device lives, whatever is joined meanwhile.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Joins or leaves a multicast group, where the device has such a thing.
    ///
    /// # Errors
    ///
    /// `Unsupported` where it does not.
    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        let _ = (group, join);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this device carries no multicast"))
    }

    /// TCP from this device's address, where the kernel does not have that address; `None` where the kernel's
    /// own TCP does. Programs use `roce::Tcp`, which knows both.
    fn host_tcp(&mut self) -> Option<&mut dyn HostTcp> {
        None
    }

    /// Counters of this device and what it wraps: name and value.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

/// Inside `impl Device` of a wrapper with a field `inner`: what no wrapper does in another way than what it wraps.
#[macro_export]
macro_rules! forward_to_inner {
    () => {
        fn addresses(&self) -> &[std::net::IpAddr] {
            self.inner.addresses()
        }

        fn vlan(&self, traffic_class: u8) -> Option<roce_packet::VlanTag> {
            self.inner.vlan(traffic_class)
        }

        fn bind_source_port(&mut self, path: &roce_packet::Path, wanted: u16) -> std::io::Result<u16> {
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

        fn host_tcp(&mut self) -> Option<&mut dyn $crate::HostTcp> {
            self.inner.host_tcp()
        }
    };
}
