//! The same device through libxdp (crate `xsk-rs`), for interfaces that other XDP programs are on as well: libxdp
//! puts a dispatcher of its own there, which calls one program after the other. Only with the feature `xsk-rs`.
//!
//! What differs from our own: a frame is copied once more on its way out, because `xsk-rs` lets a frame begin only at
//! one place in its chunk; and a process that is killed leaves its program on the interface, where it does nothing.

mod program;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};

use roce_transport::Instant;
use rustix::net::xdp::XdpOptionsFlags;
use rustix::net::{RecvFlags, sockopt};
use xsk_rs::config::{BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

use super::socket::{FILL_RING_LEN, Opening, Report, TX_RING_LEN, with_patience};
use super::umem::{CHUNK_LEN, RX_CHUNKS, SLOT_CHUNKS, TX_CHUNKS};
use super::{Counters, ETHERNET, InterfaceWatch, MAX_BURST, kick, retry_after};
use crate::OpenError;
use crate::framed::port::{FRAME_ROOM, FramePort, Incoming, Outgoing, PortRecord};
use program::{MAX_QUEUES, Program};

/// A socket of libxdp. Dropped in this order: first no more frames come.
pub(super) struct LibxdpPort {
    _program: Program,
    queues: Queues,
    record: PortRecord,
    report: Report,
    /// The buffer of the engine, which is copied to where the kernel reads it.
    slot: Vec<u8>,
    /// Chunks to send from that the kernel is done with.
    free: Vec<FrameDesc>,
    /// Written, and not yet in the ring.
    committed: Vec<FrameDesc>,
    /// Received, without the rest of the last frame.
    received: Vec<FrameDesc>,
    scratch: Vec<u8>,
    retry_at: Option<Instant>,
    watch: InterfaceWatch,
    counters: Counters,
}

/// The socket: its rings, and the memory of frames.
struct Queues {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: Umem,
    /// All chunks: those to receive into, and those to send from.
    chunks: Vec<FrameDesc>,
}

/// Opens a socket of libxdp on a queue.
pub(super) fn open(opening: &Opening<'_>, record: PortRecord) -> Result<LibxdpPort, OpenError> {
    opening.check_queue()?;
    let queue = opening.spec.queue;
    if queue >= MAX_QUEUES {
        return Err(opening.unsuitable(format!(
            "backend=libxdp knows queues 0 to {}; use a lower queue, or leave backend= out",
            MAX_QUEUES - 1
        )));
    }
    let attach = |native| Program::attach(opening.link.index, opening.link.mac, native);
    let (program, is_native) = opening.in_the_first_mode(attach)?;
    let (mut queues, takes_fragments) = opening.with_fragments_if_possible(|fragments| {
        with_patience(|| Queues::open(&opening.link.name, queue, is_native, fragments))
    })?;
    opening.set_optional(queues.socket());
    // SAFETY: the chunks to receive into are in no ring yet, and only the kernel uses them from here on.
    let filled = unsafe { queues.fill.produce(&queues.chunks[..RX_CHUNKS as usize]) };
    debug_assert_eq!(filled, RX_CHUNKS as usize, "the ring has a place for every chunk");
    program
        .put_socket(queue, queues.tx.fd().as_raw_fd())
        .map_err(opening.fail("put the socket into the map of the XDP program"))?;
    let options = sockopt::xdp_options(queues.socket()).unwrap_or(XdpOptionsFlags::empty());
    let is_zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    let report = Report { is_native, is_zero_copy, takes_fragments };
    tracing::debug!(?record, ?report, "opened an AF_XDP socket of libxdp");
    Ok(LibxdpPort {
        _program: program,
        free: queues.chunks.split_off(RX_CHUNKS as usize),
        queues,
        record,
        report,
        slot: vec![0; FRAME_ROOM],
        committed: Vec::new(),
        received: Vec::new(),
        scratch: Vec::new(),
        retry_at: None,
        watch: InterfaceWatch::default(),
        counters: Counters::default(),
    })
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
            // Its program takes every frame; ours leaves the kernel what is not RoCE.
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

    /// Bytes that were received.
    ///
    /// # Safety
    ///
    /// The chunk must have come from the kernel and must not go back before the bytes are let go.
    unsafe fn bytes(&self, chunk: &FrameDesc) -> &[u8] {
        // SAFETY: the caller guarantees it.
        unsafe { self.umem.data(chunk) }.contents()
    }
}

/// The error of the system, behind that of xsk-rs.
fn system_error<E: Error + Send + Sync + 'static>(error: E) -> io::Error {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error),
    }
}

impl LibxdpPort {
    /// Takes back the chunks that the kernel is done with.
    fn reap(&mut self) {
        let mut done = [FrameDesc::default(); MAX_BURST as usize];
        loop {
            // SAFETY: what is taken out goes to the free ones and nowhere else.
            let count = unsafe { self.queues.completion.consume(&mut done) };
            self.free.extend_from_slice(&done[..count]);
            if count < done.len() {
                return;
            }
        }
    }

    /// How many chunks the kernel has not taken out of the ring yet.
    fn unread(&mut self) -> u32 {
        TX_RING_LEN.saturating_sub(self.queues.tx.nb_free_exact())
    }

    /// Gives a frame to `sink`; whether it did.
    fn deliver(&mut self, first: usize, count: usize, sink: &mut dyn FnMut(&Incoming<'_>)) -> bool {
        let Self { queues, received, scratch, counters, record, .. } = self;
        let chunks = &received[first..first + count];
        // SAFETY: the kernel has given them, and they go back in `receive`, after this.
        let piece = |index: usize| unsafe { queues.bytes(&chunks[index]) };
        let tail = match count {
            1 => &[],
            2 => piece(1),
            _ => {
                scratch.clear();
                (1..count).for_each(|index| scratch.extend_from_slice(piece(index)));
                scratch.as_slice()
            }
        };
        counters.deliver(record, piece(0), tail, count > 1, sink)
    }
}

impl FramePort for LibxdpPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.free.len() < SLOT_CHUNKS as usize {
            self.reap();
        }
        (self.free.len() >= SLOT_CHUNKS as usize).then_some(&mut self.slot[..])
    }

    fn commit(&mut self, frame: Outgoing) {
        let bytes = self.slot.get(frame.bytes).filter(|bytes| bytes.len() >= ETHERNET);
        let Some(bytes) = bytes.filter(|_| frame.split.is_none()) else {
            self.counters.tx_refused += 1;
            return;
        };
        let count = bytes.len().div_ceil(PIECE_LEN);
        if self.free.len() < count {
            self.counters.tx_refused += 1;
            return;
        }
        for (index, piece) in bytes.chunks(PIECE_LEN).enumerate() {
            let Some(mut chunk) = self.free.pop() else { return };
            // SAFETY: the kernel is done with it.
            let mut data = unsafe { self.queues.umem.data_mut(&mut chunk) };
            let mut cursor = data.cursor();
            cursor.set_pos(0);
            let written = cursor.write_all(piece);
            debug_assert!(written.is_ok(), "a piece fits");
            chunk.set_options(if index + 1 < count { XDP_PKT_CONTD } else { 0 });
            self.committed.push(chunk);
        }
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += bytes.len() as u64;
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.watch.ask(now, self.queues.socket())?;
        self.retry_at = None;
        // SAFETY: they were written and are not used until the kernel gives them back.
        let produced = unsafe { self.queues.tx.produce(&self.committed) };
        // It takes all or nothing, so no frame is torn apart.
        self.committed.drain(..produced);
        if !self.committed.is_empty() {
            self.retry_at = Some(retry_after(now, true));
        }
        let mut unread = self.unread();
        while unread > 0 && self.queues.tx.needs_wakeup() {
            self.counters.tx_calls += 1;
            let is_up = kick(self.queues.socket())?;
            self.reap();
            let before = std::mem::replace(&mut unread, self.unread());
            if unread == before {
                self.counters.tx_blocked += 1;
                self.retry_at = Some(retry_after(now, is_up));
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        let mut chunks = [FrameDesc::default(); MAX_BURST as usize];
        // SAFETY: what is taken out stays in `received` until it goes back below.
        let count = unsafe { self.queues.rx.consume(&mut chunks) };
        self.received.extend_from_slice(&chunks[..count]);
        let (mut begin, mut delivered) = (0, 0);
        while let Some(last) = self.received[begin..].iter().position(|chunk| !chunk.has_more_frames()) {
            delivered += usize::from(self.deliver(begin, last + 1, sink));
            begin += last + 1;
        }
        if begin > 0 {
            // SAFETY: the caller has read them.
            let filled = unsafe { self.queues.fill.produce(&self.received[..begin]) };
            debug_assert_eq!(filled, begin, "the ring has a place for every chunk");
            self.received.drain(..begin);
            self.counters.rx_frames += delivered as u64;
        }
        // A driver that ran out of chunks stops until a system call tells it that there are some again.
        if self.report.is_native && self.queues.fill.needs_wakeup() {
            self.counters.rx_wakeups += 1;
            let _ = rustix::net::recv(self.queues.socket(), &mut [0_u8; 0], RecvFlags::DONTWAIT);
        }
        Ok(delivered)
    }

    fn deadline(&self) -> Option<Instant> {
        self.retry_at.into_iter().chain([self.watch.ask_at]).min()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queues.socket()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit_all(&self.report, self.queues.socket(), visit);
    }
}

impl std::fmt::Debug for LibxdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibxdpPort")
            .field("record", &self.record)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// What xsk-rs leaves of a chunk: it keeps 256 bytes in front.
const PIECE_LEN: usize = CHUNK_LEN - 256;
/// `XDP_PKT_CONTD`: the frame continues in the next chunk.
const XDP_PKT_CONTD: u32 = 1;
