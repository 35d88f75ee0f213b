//! RoCE over a packet socket (`AF_PACKET`), on an interface that the kernel uses too.
//!
//! The device controls every byte of a frame, so it can send and receive all features of RoCE: Identification
//! and flow label, UDP without checksum, 802.1Q tags, RoCE v1. The kernel splits superframes when sending and
//! delivers joined frames unsplit (UDP segmentation offload), which makes this about as fast as a UDP socket
//! on virtual links.
//!
//! Requires `CAP_NET_RAW`, which every user has inside `unshare -Urn`.
//!
//! The kernel sees the same frames and would answer each with "port unreachable"; `KernelHost` binds the port
//! to prevent this. Other frames go to the kernel alone.

mod arp;
mod filter;
mod receive;
mod socket;
mod spec;
mod transmit;
#[cfg(feature = "whole")]
mod whole;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use roce_transport::Instant;
use socket2::Socket;

use super::framed::port::{FramePort, Incoming, Outgoing, PortRecord};
use super::link::{Link, usable_addresses};
use super::{Availability, OpenError};
use crate::host::kernel::KernelHost;
use crate::offload::Offload;
use receive::Receiver;
use transmit::Transmitter;

pub use arp::who_has;
pub use spec::RawSpec;

/// A port that is a packet socket.
pub(crate) struct RawPort {
    record: PortRecord,
    socket: Socket,
    transmitter: Transmitter,
    receiver: Receiver,
    /// Frames that the kernel dropped because the socket's queue was full.
    overflow: Cell<u64>,
}

/// Opens a packet socket on an interface, which shares its addresses with the kernel.
pub(crate) fn open(spec: &RawSpec) -> Result<(RawPort, KernelHost), OpenError> {
    let text = spec.to_string();
    let link = Link::find(&text, &spec.interface)?;
    // First, so that a missing privilege is the reported error.
    let socket = socket::open(&text, &link)?;
    let host = KernelHost::open(&text, &link)?;
    let max_segments = if socket::can_split() { MAX_SEGMENTS } else { 1 };
    Ok((RawPort::new(socket, &link, max_segments), host))
}

/// Opens a packet socket without filter and makes the interface promiscuous.
#[cfg(feature = "whole")]
pub(crate) fn open_whole(spec: &RawSpec) -> Result<RawPort, OpenError> {
    let text = spec.to_string();
    let link = Link::find(&text, &spec.interface)?;
    let socket = socket::open_whole(&text, &link)?;
    // Frames are split only if they arrived joined.
    Ok(RawPort::new(socket, &link, MAX_SEGMENTS))
}

/// Returns whether packet sockets can be opened here, and on which addresses.
pub(crate) fn availability() -> Availability {
    if let Err(error) = socket::probe() {
        let missing = match error.kind() {
            io::ErrorKind::PermissionDenied => socket::PRIVILEGE.to_owned(),
            _ => format!("packet sockets: {error}"),
        };
        return Availability::Lacks(missing);
    }
    usable_addresses()
}

impl RawPort {
    fn new(socket: Socket, link: &Link, max_segments: u16) -> Self {
        let record = link.record("raw", max_segments);
        tracing::debug!(?record, "opened a packet socket");
        let (transmitter, receiver) = (Transmitter::new(max_segments), Receiver::new());
        Self { record, socket, transmitter, receiver, overflow: Cell::new(0) }
    }
}

impl FramePort for RawPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        self.transmitter.slot()
    }

    fn commit(&mut self, frame: Outgoing) {
        self.transmitter.commit(&frame.bytes, Offload::of(frame.split.as_ref()));
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        let result = self.transmitter.flush(now, self.socket.as_fd());
        if self.transmitter.split_refused && self.record.max_segments > 1 {
            tracing::warn!(
                interface = self.record.interface,
                "the kernel does not split frames; sending each frame separately"
            );
            self.record.max_segments = 1;
        }
        result
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        self.receiver.receive(self.socket.as_fd(), sink)
    }

    fn deadline(&self) -> Option<Instant> {
        self.transmitter.retry_at
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.transmitter.counters.visit(visit);
        self.receiver.counters.visit(visit);
        // Reading the number resets it in the kernel.
        self.overflow.set(self.overflow.get() + socket::take_overflow(&self.socket));
        visit("raw_rx_overflow", self.overflow.get());
    }
}

/// The limit of every kernel that splits UDP.
const MAX_SEGMENTS: u16 = 64;
