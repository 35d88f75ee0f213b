//! A packet socket that takes every frame of its interface, to whomever it goes.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use roce_transport::Instant;
use socket2::Socket;

use super::receive::Receiver;
use super::transmit::Transmitter;
use super::{MAX_SEGMENTS, RawSpec, socket};
use crate::device::OpenError;
use crate::device::framed::port::PortRecord;
use crate::device::link::Link;
use crate::device::whole::{Offload, WholeFrame, WholePort};

pub(crate) struct WholeRawPort {
    record: PortRecord,
    socket: Socket,
    transmitter: Transmitter,
    receiver: Receiver,
    /// Frames that the kernel dropped because the socket's queue was full.
    overflow: Cell<u64>,
}

/// Opens a packet socket without filter and makes the interface take what is not for it.
pub(crate) fn open_whole(spec: &RawSpec) -> Result<WholeRawPort, OpenError> {
    let text = spec.to_string();
    let link = Link::find(&text, &spec.interface)?;
    let socket = socket::open_whole(&text, &link)?;
    let record = PortRecord {
        kind: "raw",
        interface: link.name.clone(),
        mac: link.mac,
        link_mtu: link.mtu,
        max_segments: MAX_SEGMENTS,
        bits_per_second: link.bits_per_second,
    };
    tracing::debug!(?record, "opened a packet socket for all frames");
    let (transmitter, receiver) = (Transmitter::new(MAX_SEGMENTS), Receiver::new());
    Ok(WholeRawPort { record, socket, transmitter, receiver, overflow: Cell::new(0) })
}

impl WholePort for WholeRawPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&WholeFrame<'_>)) -> io::Result<usize> {
        self.receiver.receive_all(self.socket.as_fd(), &mut |header, bytes, vlan, _| {
            sink(&WholeFrame { offload: Offload(*header), bytes, vlan });
            true
        })
    }

    fn send(&mut self, offload: Offload, frame: &[u8]) -> bool {
        let Some(slot) = self.transmitter.slot() else { return false };
        // What is longer than any frame is refused by `commit` and counted.
        let len = frame.len().min(slot.len());
        slot[..len].copy_from_slice(&frame[..len]);
        self.transmitter.commit_with(&(0..frame.len()), &offload.0, offload.is_joined());
        true
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.transmitter.flush(now, self.socket.as_fd())
    }

    fn deadline(&self) -> Option<Instant> {
        self.transmitter.retry_at
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let transmit = &self.transmitter.counters;
        visit("raw_tx_frames", transmit.frames);
        visit("raw_tx_blocked", transmit.blocked);
        visit("raw_tx_too_long", transmit.too_long);
        visit("raw_tx_refused", transmit.refused);
        let receive = &self.receiver.counters;
        visit("raw_rx_frames", receive.frames);
        visit("raw_rx_too_long", receive.too_long);
        visit("raw_rx_bad_kind", receive.bad_kind);
        self.overflow.set(self.overflow.get() + socket::take_overflow(&self.socket));
        visit("raw_rx_overflow", self.overflow.get());
    }
}
