//! The device through libxdp (crate `xsk-rs`), for interfaces with other XDP programs: libxdp attaches its
//! own dispatcher, which calls the programs in turn. Requires the feature `xsk-rs`.
//!
//! Differences from the own backend: each sent frame is copied once more, because `xsk-rs` fixes its start in
//! the chunk; and a killed process leaves its program on the interface, where it does nothing.

mod program;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt;
use rustix::net::xdp::XdpOptionsFlags;
use xsk_rs::config::{BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

use super::backend::{Backend, MAX_BURST, can_be_sent, gather};
use super::socket::{FILL_RING_LEN, Opening, Report, TX_RING_LEN, with_patience};
use super::umem::{CHUNK_LEN, RX_CHUNKS, SLOT_CHUNKS, TX_CHUNKS};
use crate::OpenError;
use crate::framed::port::{FRAME_ROOM, Outgoing};
use program::{MAX_QUEUES, Program};

/// A socket of libxdp. Dropped in this order, so that no more frames arrive first.
pub(super) struct LibxdpBackend {
    _program: Program,
    queues: Queues,
    /// The buffer for the engine, which is copied to the kernel's chunks.
    slot: Vec<u8>,
    /// Transmit chunks that the kernel has finished with.
    free: Vec<FrameDesc>,
    /// Written, but not yet in the ring.
    committed: Vec<FrameDesc>,
    /// Received, without the rest of the last frame.
    received: Vec<FrameDesc>,
    scratch: Vec<u8>,
}

/// The rings of the socket and the memory of frames.
struct Queues {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: Umem,
    /// Receive chunks, followed by transmit chunks.
    chunks: Vec<FrameDesc>,
}

/// Opens a socket of libxdp on a queue.
pub(super) fn open(opening: &Opening<'_>) -> Result<(LibxdpBackend, Report), OpenError> {
    opening.check_queue()?;
    let queue = opening.spec.queue;
    if queue >= MAX_QUEUES {
        return Err(opening.unsuitable(format!(
            "backend=libxdp supports queues 0 to {}; use a lower queue, or leave backend= out",
            MAX_QUEUES - 1
        )));
    }
    let attach = |native| Program::attach(opening.link.index, opening.link.mac, native);
    let (program, is_native) = opening.in_the_first_mode(attach)?;
    let (mut queues, takes_fragments) = opening.with_fragments_if_possible(|fragments| {
        with_patience(|| Queues::open(&opening.link.name, queue, is_native, fragments))
    })?;
    opening.set_optional(queues.socket());
    // SAFETY: the receive chunks are in no ring yet, and only the kernel uses them from here on.
    let filled = unsafe { queues.fill.produce(&queues.chunks[..RX_CHUNKS as usize]) };
    debug_assert_eq!(filled, RX_CHUNKS as usize, "the ring has a place for every chunk");
    program
        .put_socket(queue, queues.tx.fd().as_raw_fd())
        .map_err(opening.fail("put the socket into the map of the XDP program"))?;
    let options = sockopt::xdp_options(queues.socket()).unwrap_or(XdpOptionsFlags::empty());
    let is_zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    let report = Report { is_native, is_zero_copy, takes_fragments };
    let backend = LibxdpBackend {
        _program: program,
        free: queues.chunks.split_off(RX_CHUNKS as usize),
        queues,
        slot: vec![0; FRAME_ROOM],
        committed: Vec::new(),
        received: Vec::new(),
        scratch: Vec::new(),
    };
    Ok((backend, report))
}

impl Queues {
    fn open(interface: &str, queue: u32, is_native: bool, fragments: bool) -> io::Result<Self> {
        let size = |count| QueueSize::new(count).map_err(io::Error::other);
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(CHUNK_LEN as u32).map_err(io::Error::other)?)
            .fill_queue_size(size(FILL_RING_LEN)?)
            .comp_queue_size(size(TX_CHUNKS)?)
            .build()
            .map_err(io::Error::other)?;
        let count = NonZeroU32::MIN.saturating_add(RX_CHUNKS + TX_CHUNKS - 1);
        let (umem, chunks) = Umem::new(config, count, false).map_err(system_error)?;
        let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
        flags.set(BindFlags::XDP_USE_SG, fragments);
        flags.set(BindFlags::XDP_COPY, !is_native);
        let config = SocketConfig::builder()
            .rx_queue_size(size(RX_CHUNKS)?)
            .tx_queue_size(size(TX_RING_LEN)?)
            // The program of libxdp takes every frame; that of this crate leaves other frames to the kernel.
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags)
            .build();
        let interface: Interface = interface.parse().map_err(io::Error::other)?;
        // SAFETY: this memory is used for one socket only.
        let made = unsafe { Socket::new(config, &umem, &interface, queue) }.map_err(system_error)?;
        let (tx, rx, Some((fill, completion))) = made else {
            return Err(io::Error::other("libxdp made no rings for memory of its own"));
        };
        Ok(Self { tx, rx, fill, completion, umem, chunks })
    }

    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as any of its queues.
        unsafe { BorrowedFd::borrow_raw(self.tx.fd().as_raw_fd()) }
    }

    /// Returns the bytes of a received chunk.
    ///
    /// # Safety
    ///
    /// The chunk must have come from the kernel and must not be returned while the bytes are borrowed.
    unsafe fn bytes(&self, chunk: &FrameDesc) -> &[u8] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.umem.data(chunk) }.contents()
    }
}

/// Returns the system error that caused an error of xsk-rs.
fn system_error<E: Error + Send + Sync + 'static>(error: E) -> io::Error {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error),
    }
}

impl Backend for LibxdpBackend {
    fn socket(&self) -> BorrowedFd<'_> {
        self.queues.socket()
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.free.len() < SLOT_CHUNKS as usize {
            self.reap();
        }
        (self.free.len() >= SLOT_CHUNKS as usize).then_some(&mut self.slot[..])
    }

    fn commit(&mut self, frame: &Outgoing) -> bool {
        let bytes = self.slot.get(frame.bytes.clone()).filter(|_| can_be_sent(frame));
        let Some(bytes) = bytes else { return false };
        let count = bytes.len().div_ceil(PIECE_LEN);
        if self.free.len() < count {
            return false;
        }
        for (index, piece) in bytes.chunks(PIECE_LEN).enumerate() {
            let Some(mut chunk) = self.free.pop() else { return false };
            // SAFETY: the kernel has finished with the chunk.
            let mut data = unsafe { self.queues.umem.data_mut(&mut chunk) };
            let mut cursor = data.cursor();
            cursor.set_pos(0);
            let written = cursor.write_all(piece);
            debug_assert!(written.is_ok(), "a piece fits");
            chunk.set_options(if index + 1 < count { XDP_PKT_CONTD } else { 0 });
            self.committed.push(chunk);
        }
        true
    }

    fn submit(&mut self) -> bool {
        // SAFETY: the chunks were written and are not used until the kernel returns them.
        let produced = unsafe { self.queues.tx.produce(&self.committed) };
        // `produce` takes all or nothing, so no frame is torn apart.
        self.committed.drain(..produced);
        self.committed.is_empty()
    }

    fn unread(&mut self) -> u32 {
        TX_RING_LEN.saturating_sub(self.queues.tx.nb_free_exact())
    }

    fn needs_wakeup(&self) -> (bool, bool) {
        (self.queues.tx.needs_wakeup(), self.queues.fill.needs_wakeup())
    }

    fn reap(&mut self) {
        let mut done = [FrameDesc::default(); MAX_BURST as usize];
        loop {
            // SAFETY: the consumed chunks go to `free` and nowhere else.
            let count = unsafe { self.queues.completion.consume(&mut done) };
            self.free.extend_from_slice(&done[..count]);
            if count < done.len() {
                return;
            }
        }
    }

    fn receive(&mut self, mut deliver: impl FnMut(&[u8], &[u8], bool)) {
        let mut chunks = [FrameDesc::default(); MAX_BURST as usize];
        // SAFETY: the consumed chunks stay in `received` until they are returned below.
        let count = unsafe { self.queues.rx.consume(&mut chunks) };
        self.received.extend_from_slice(&chunks[..count]);
        let mut begin = 0;
        while let Some(last) = self.received[begin..].iter().position(|chunk| !chunk.has_more_frames()) {
            // SAFETY: the chunks came from the kernel, and they are returned below, after this.
            let chunk = |index: usize| unsafe { self.queues.bytes(&self.received[begin + index]) };
            let (head, tail) = gather(last + 1, chunk, &mut self.scratch);
            deliver(head, tail, last > 0);
            begin += last + 1;
        }
        if begin > 0 {
            // SAFETY: the caller has read the chunks.
            let filled = unsafe { self.queues.fill.produce(&self.received[..begin]) };
            debug_assert_eq!(filled, begin, "the ring has a place for every chunk");
            self.received.drain(..begin);
        }
    }
}

/// The usable part of a chunk: xsk-rs reserves 256 bytes in front.
const PIECE_LEN: usize = CHUNK_LEN - 256;
/// `XDP_PKT_CONTD`: the frame continues in the next chunk.
const XDP_PKT_CONTD: u32 = 1;
