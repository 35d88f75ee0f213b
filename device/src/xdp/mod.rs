//! RoCE over an AF_XDP socket, on one queue of an interface that the kernel uses too.
//!
//! Frames lie in memory shared by this process and the kernel; rings contain the full and the empty chunks. A
//! small program in the kernel passes RoCE to this socket and everything else to the kernel's stack. The
//! kernel removes it when the process ends, even if it is killed.
//!
//! Rings, memory and program (`rings`, `umem`, `program`) need no C library. (The feature `xsk-rs` adds
//! `libxdp`, for interfaces with other XDP programs.) Requires administrator privileges, and kernel 6.6 or
//! later for frames longer than 3840 bytes, which path MTU 4096 needs.
//!
//! # Limits on interfaces
//!
//! * Only one queue is read. If an interface has several, steer RoCE to this one, as the logged warning says.
//! * A kernel at the other end of a virtual cable sends superpackets, which it would split only for a real
//!   one. In native mode, the kernel splits them on the way. In generic mode, they arrive whole, without
//!   their segment length. Those above the MTU are dropped and counted as `xdp_rx_superpackets`; others look
//!   like a datagram with a wrong ICRC and count as `rx_icrc_encapsulated`. `ethtool -K INTERFACE tx off gso
//!   off` at the other end avoids both.
//! * A tag that the interface removes (`rxvlan`) is lost; `ethtool -K INTERFACE rxvlan off` keeps it.

mod backend;
mod bpf;
#[cfg(feature = "xsk-rs")]
mod libxdp;
mod program;
mod reserve;
mod rings;
mod socket;
mod spec;
mod umem;

#[cfg(test)]
mod tests;

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roce_transport::Instant;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::net::{RecvFlags, SendFlags};

use super::framed::port::{FramePort, Incoming, Outgoing, PortRecord};
use super::link::{DOWN_NS, Link, RETRY_NS, usable_addresses};
use super::{Availability, OpenError};
use crate::counters::counters;
use crate::host::kernel::KernelHost;
use backend::{Backend, MAX_BURST, can_be_sent, gather};
use reserve::Reserve;
use socket::{Opened, Report, Rings};
use umem::{CHUNK_LEN, SLOT_CHUNKS, TX_SLOTS, Umem};

pub use spec::{XdpBackend, XdpMode, XdpSpec};

/// A port over an AF_XDP socket. The backend owns the rings and the memory of frames.
pub(crate) struct XdpPort<B> {
    backend: B,
    record: PortRecord,
    report: Report,
    retry_at: Option<Instant>,
    watch: InterfaceWatch,
    counters: Counters,
}

/// Rings and memory of this crate. Fields are dropped in this order; see [`Opened`].
struct OwnBackend {
    _link: OwnedFd,
    rings: Rings,
    umem: Umem,
    socket: OwnedFd,
    /// Slots that the kernel has finished with.
    free: Vec<u32>,
    /// For each slot, the number of its chunks that the kernel has not returned.
    outstanding: Vec<u8>,
    /// The most recently lent slot.
    lent: Option<u32>,
    /// The joined contents behind the first chunk of a frame with three or more chunks.
    scratch: Vec<u8>,
    /// Receive chunks that the kernel does not need now.
    reserve: Reserve,
}

/// Queries the socket once per second, because polling it does not report that its interface was deleted.
#[derive(Debug, Default)]
struct InterfaceWatch {
    ask_at: Instant,
}

impl InterfaceWatch {
    const EVERY_NS: u64 = 1_000_000_000;

    fn ask(&mut self, now: Instant, socket: BorrowedFd<'_>) -> io::Result<()> {
        if now < self.ask_at {
            return Ok(());
        }
        self.ask_at = now.plus_nanos(Self::EVERY_NS);
        match sockopt::socket_error(socket) {
            Ok(Err(Errno::NETDOWN)) => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "its interface has been deleted"))
            }
            _ => Ok(()),
        }
    }
}

counters! {
    struct Counters {
        /// Frames put into the transmit ring.
        tx_frames => "xdp_tx_frames",
        /// Bytes of the frames put into the transmit ring.
        tx_bytes => "xdp_tx_bytes",
        /// System calls that made the kernel send.
        tx_calls => "xdp_tx_calls",
        /// Attempts to send for which the kernel had no room; the frames stay and are tried again.
        tx_blocked => "xdp_tx_blocked",
        /// Frames dropped because they do not fit a slot, have no slot, or would have to be split.
        tx_refused => "xdp_tx_refused",
        /// Frames received and delivered.
        rx_frames => "xdp_rx_frames",
        /// Bytes of the frames that were delivered.
        rx_bytes => "xdp_rx_bytes",
        /// Frames that arrived in several chunks.
        rx_fragmented => "xdp_rx_fragmented",
        /// Frames dropped because they exceed the MTU: the sending end of a virtual cable did not split them.
        rx_superpackets => "xdp_rx_superpackets",
        /// System calls that made the driver use free chunks.
        rx_wakeups => "xdp_rx_wakeups",
    }
}

/// Opens the backend that `spec` names, on a queue of an interface that shares its addresses with the kernel.
pub(crate) fn open(spec: &XdpSpec) -> Result<(Box<dyn FramePort>, KernelHost), OpenError> {
    match spec.backend {
        XdpBackend::Own => {
            let (port, host) = open_own(spec)?;
            Ok((Box::new(port), host))
        }
        XdpBackend::Libxdp => open_libxdp(spec),
    }
}

#[cfg(feature = "xsk-rs")]
fn open_libxdp(spec: &XdpSpec) -> Result<(Box<dyn FramePort>, KernelHost), OpenError> {
    let text = spec.to_string();
    let link = Link::find(&text, &spec.interface)?;
    // First, so that a missing privilege is the reported error.
    drop(open_socket(spec, &text)?);
    let host = KernelHost::open(&text, &link)?;
    let (backend, report) = libxdp::open(&socket::Opening { spec, link: &link, text })?;
    Ok((Box::new(XdpPort::new(backend, report, &link)), host))
}

#[cfg(not(feature = "xsk-rs"))]
fn open_libxdp(spec: &XdpSpec) -> Result<(Box<dyn FramePort>, KernelHost), OpenError> {
    Err(OpenError::Unsuitable {
        spec: spec.to_string(),
        problem: "this roce was built without libxdp; `cargo build --release --features xsk-rs` builds one with it \
                  (docs/how-to/interfaces.md lists the requirements); without backend=libxdp, roce uses its own program"
            .to_owned(),
    })
}

fn open_own(spec: &XdpSpec) -> Result<(XdpPort<OwnBackend>, KernelHost), OpenError> {
    let text = spec.to_string();
    let link = Link::find(&text, &spec.interface)?;
    // First, so that a missing privilege is the reported error.
    let socket = open_socket(spec, &text)?;
    let host = KernelHost::open(&text, &link)?;
    let Opened { link: attached, rings, umem, reserve, socket, report } =
        socket::set_up(spec, &link, socket)?;
    let backend = OwnBackend {
        _link: attached,
        rings,
        umem,
        socket,
        free: (0..TX_SLOTS).rev().collect(),
        outstanding: vec![0; TX_SLOTS as usize],
        lent: None,
        scratch: Vec::new(),
        reserve,
    };
    Ok((XdpPort::new(backend, report, &link), host))
}

fn open_socket(spec: &XdpSpec, text: &str) -> Result<OwnedFd, OpenError> {
    socket::create().map_err(|error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => OpenError::Unsuitable {
            spec: text.to_owned(),
            problem: format!(
                "this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS); use raw:{}",
                spec.interface
            ),
        },
        _ => OpenError::unless_privileged(text, "open an AF_XDP socket", socket::PRIVILEGE)(error),
    })
}

/// Returns whether AF_XDP works here, and on which addresses. Opens a socket and a map, without an interface.
pub(crate) fn availability() -> Availability {
    match socket::create().and_then(|_| bpf::create_socket_map(1)) {
        Ok(_) => usable_addresses(),
        Err(error) => Availability::Lacks(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => socket::PRIVILEGE.to_owned(),
            Some(libc::EAFNOSUPPORT) => "a kernel with AF_XDP (CONFIG_XDP_SOCKETS)".to_owned(),
            _ => format!("AF_XDP sockets: {error}"),
        }),
    }
}

impl<B> XdpPort<B> {
    fn new(backend: B, report: Report, link: &Link) -> Self {
        let record = link.record("xdp", 1);
        tracing::debug!(?record, ?report, "opened an AF_XDP socket");
        let (watch, counters) = (InterfaceWatch::default(), Counters::default());
        Self { backend, record, report, retry_at: None, watch, counters }
    }
}

impl OwnBackend {
    /// Returns the number of descriptors of the next frame, or `None` if its last one has not arrived.
    fn frame_at(&self, begin: u32, available: u32) -> Option<u32> {
        let is_last =
            |index: &u32| !self.rings.rx.peek(*index).options.contains(XdpDescOptions::XDP_PKT_CONTD);
        (begin..available).find(is_last).map(|last| last - begin + 1)
    }
}

/// Makes one system call that starts sending; returns whether the interface is up.
fn kick(socket: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::net::send(socket, &[], SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        // EAGAIN: the kernel sent its maximum per call, or has no room. EBUSY and ENOBUFS: the queue of the
        // interface lost a frame, as on any network.
        Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Ok(true),
        Err(Errno::NETDOWN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the time of the next attempt to send.
const fn retry_after(now: Instant, is_up: bool) -> Instant {
    now.plus_nanos(if is_up { RETRY_NS } else { DOWN_NS })
}

impl Counters {
    /// Passes a received frame to `sink`, unless it is longer than the link allows.
    fn deliver(
        &mut self,
        record: &PortRecord,
        head: &[u8],
        tail: &[u8],
        is_fragmented: bool,
        sink: &mut dyn FnMut(&Incoming<'_>),
    ) {
        let len = head.len() + tail.len();
        if len > record.link_mtu + ETHERNET_AND_TAGS {
            if self.rx_superpackets == 0 {
                tracing::warn!(
                    interface = record.interface,
                    len,
                    "frames longer than the link arrive: `ethtool -K INTERFACE tx off gso off` at the sending end \
                     of the cable makes its kernel split them"
                );
            }
            self.rx_superpackets += 1;
            return;
        }
        self.rx_frames += 1;
        self.rx_bytes += len as u64;
        self.rx_fragmented += u64::from(is_fragmented);
        sink(&Incoming { head, tail, segment_len: None, vlan: None });
    }
}

impl Backend for OwnBackend {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.lent.is_none() {
            // A slot may be free before its descriptors are read, but a frame needs all its descriptors at
            // once.
            if self.rings.tx.room(SLOT_CHUNKS) < SLOT_CHUNKS {
                return None;
            }
            if self.free.is_empty() {
                self.reap();
            }
            self.lent = self.free.pop();
        }
        let slot = self.lent?;
        // SAFETY: the slot was in the list of those that the kernel has finished with.
        unsafe { self.umem.slot(slot) }
    }

    fn commit(&mut self, frame: &Outgoing) -> bool {
        let Some(slot) = self.lent.take() else { return false };
        let Outgoing { bytes, .. } = frame;
        if bytes.end > umem::SLOT_LEN || !can_be_sent(frame) {
            self.free.push(slot);
            return false;
        }
        let (mut at, mut count) = (bytes.start, 0);
        while at < bytes.end {
            let next = bytes.end.min((at / CHUNK_LEN + 1) * CHUNK_LEN);
            let mut options = XdpDescOptions::empty();
            options.set(XdpDescOptions::XDP_PKT_CONTD, next < bytes.end);
            let addr = Umem::slot_address(slot) + at as u64;
            let has_room = self.rings.tx.push(XdpDesc { addr, len: (next - at) as u32, options });
            debug_assert!(has_room, "there was room when the slot was lent");
            (at, count) = (next, count + 1);
        }
        self.outstanding[slot as usize] = count;
        true
    }

    fn submit(&mut self) -> bool {
        self.rings.tx.submit();
        true
    }

    fn unread(&mut self) -> u32 {
        self.rings.tx.unread()
    }

    fn needs_wakeup(&self) -> (bool, bool) {
        (self.rings.tx.needs_wakeup(), self.rings.fill.needs_wakeup())
    }

    fn reap(&mut self) {
        let available = self.rings.completion.available();
        if available == 0 {
            return;
        }
        for index in 0..available {
            let Some(slot) = Umem::slot_of(self.rings.completion.peek(index)) else { continue };
            let outstanding = &mut self.outstanding[slot as usize];
            *outstanding = outstanding.saturating_sub(1);
            if *outstanding == 0 {
                self.free.push(slot);
            }
        }
        self.rings.completion.release(available);
    }

    fn receive(&mut self, mut deliver: impl FnMut(&[u8], &[u8], bool)) {
        // No more than can be returned.
        let waiting = self.rings.rx.available();
        let available = waiting.min(MAX_BURST).min(self.rings.fill.room(MAX_BURST));
        let mut begin = 0;
        while let Some(count) = self.frame_at(begin, available) {
            let chunk = |index: usize| {
                let XdpDesc { addr, len, .. } = self.rings.rx.peek(begin + index as u32);
                // SAFETY: the kernel has put it into the ring, and it goes back below, after this.
                unsafe { self.umem.received(addr, len) }.unwrap_or_default()
            };
            let (head, tail) = gather(count as usize, chunk, &mut self.scratch);
            deliver(head, tail, count > 1);
            begin += count;
        }
        if begin == 0 {
            return;
        }
        self.reserve.found(waiting);
        for index in 0..begin {
            let Some(chunk) = Umem::rx_chunk_of(self.rings.rx.peek(index).addr) else { continue };
            for chunk in self.reserve.exchange(chunk) {
                let has_room = self.rings.fill.push(chunk);
                debug_assert!(has_room, "the ring has an entry for each chunk");
            }
        }
        self.rings.rx.release(begin);
        self.rings.fill.submit();
    }
}

impl<B: Backend> FramePort for XdpPort<B> {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        self.backend.slot()
    }

    fn commit(&mut self, frame: Outgoing) {
        if self.backend.commit(&frame) {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += frame.bytes.len() as u64;
        } else {
            self.counters.tx_refused += 1;
        }
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.watch.ask(now, self.backend.socket())?;
        self.retry_at = if self.backend.submit() { None } else { Some(retry_after(now, true)) };
        let mut unread = self.backend.unread();
        while unread > 0 && self.backend.needs_wakeup().0 {
            self.counters.tx_calls += 1;
            let is_up = kick(self.backend.socket())?;
            self.backend.reap();
            let before = mem::replace(&mut unread, self.backend.unread());
            if unread == before {
                self.counters.tx_blocked += 1;
                self.retry_at = Some(retry_after(now, is_up));
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        let Self { backend, record, counters, .. } = self;
        let before = counters.rx_frames;
        backend
            .receive(|head, tail, is_fragmented| counters.deliver(record, head, tail, is_fragmented, sink));
        // A driver that ran out of chunks stops until a system call tells it that there are some again.
        if self.report.is_native && backend.needs_wakeup().1 {
            counters.rx_wakeups += 1;
            let _ = rustix::net::recv(backend.socket(), &mut [0_u8; 0], RecvFlags::DONTWAIT);
        }
        Ok((counters.rx_frames - before) as usize)
    }

    fn is_drained(&mut self) -> bool {
        self.retry_at.is_none() && self.backend.unread() == 0
    }

    fn deadline(&self) -> Option<Instant> {
        self.retry_at.into_iter().chain([self.watch.ask_at]).min()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.socket()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("xdp_native", self.report.is_native.into());
        visit("xdp_zero_copy", self.report.is_zero_copy.into());
        self.counters.visit(visit);
        let Ok(kernel) = sockopt::xdp_statistics(self.backend.socket()) else { return };
        visit("xdp_rx_dropped", kernel.rx_dropped);
        visit("xdp_rx_invalid", kernel.rx_invalid_descs);
        visit("xdp_tx_invalid", kernel.tx_invalid_descs);
        visit("xdp_rx_ring_full", kernel.rx_ring_full.unwrap_or(0));
        visit("xdp_rx_fill_empty", kernel.rx_fill_ring_empty_descs.unwrap_or(0));
    }
}

/// Maximum header in front of an IP packet: Ethernet with two tags.
const ETHERNET_AND_TAGS: usize = 14 + 8;
