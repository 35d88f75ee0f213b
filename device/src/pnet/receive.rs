//! Receiving: a thread reads frames into a queue, and the port takes them out.
//!
//! The queue has two areas of fixed size. The thread fills one while the port reads the other, and the port
//! exchanges them when it has read everything. So a lock is held only to copy one frame or to exchange.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pnet_datalink::DataLinkReceiver;
use roce_machine::fork::Mutex;
use roce_packet::{EtherType, EthernetHeader, EthernetView, Frame, MacAddr, ParseErrorKind, VlanHeader};

use crate::counters::counters;
use crate::framed::port::Incoming;
use crate::link::Link;

counters! {
    pub(super) struct Counters {
        /// Frames of RoCE and flow control received.
        frames => "pnet_rx_frames",
        /// Bytes of these frames.
        bytes => "pnet_rx_bytes",
        /// Frames of other protocols, to other hosts or from this one, which are left to the kernel.
        others => "pnet_rx_others",
        /// Frames dropped because the process did not receive for too long, so the queue was full.
        overflow => "pnet_rx_overflow",
        /// Frames dropped because they are longer than the MTU: the kernel joined several.
        too_long => "pnet_rx_too_long",
        /// Frames of RoCE dropped because their headers are damaged or not supported.
        malformed => "pnet_rx_malformed",
        /// Calls that failed to receive, for example because the interface is down.
        errors => "pnet_rx_errors",
    }
}

/// The end of the queue that the port reads.
pub(super) struct Receiver {
    shared: Arc<Shared>,
    /// Has a byte in it while the queue is signalled.
    readable: PipeReader,
    /// The area that the port reads, and the number of frames read.
    taken: Frames,
    read: usize,
}

/// The state that the thread and the port share.
struct Shared {
    queue: Mutex<Queue>,
    /// Whether the port is gone, so that the thread must end.
    is_closed: AtomicBool,
}

struct Queue {
    /// The area that the thread fills.
    frames: Frames,
    signal: PipeWriter,
    is_signalled: bool,
    /// Why the thread has ended, unless the port is gone.
    failure: Option<&'static str>,
    counters: Counters,
}

/// Frames in a row, in memory of fixed size.
struct Frames {
    bytes: Vec<u8>,
    /// The end of each frame in `bytes`.
    ends: Vec<usize>,
}

impl Frames {
    fn new() -> Self {
        Self { bytes: Vec::with_capacity(QUEUE_BYTES), ends: Vec::with_capacity(QUEUE_FRAMES) }
    }

    /// Appends a frame; returns whether there was room.
    fn push(&mut self, frame: &[u8]) -> bool {
        let has_room =
            self.ends.len() < QUEUE_FRAMES && frame.len() <= QUEUE_BYTES.saturating_sub(self.bytes.len());
        if has_room {
            self.bytes.extend_from_slice(frame);
            self.ends.push(self.bytes.len());
        }
        has_room
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(start..*self.ends.get(index)?)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl Queue {
    /// Makes the pipe readable. It has at most one byte, so writing never waits.
    fn signal(&mut self) {
        if !self.is_signalled {
            self.is_signalled = self.signal.write_all(&[1]).is_ok();
        }
    }
}

impl Receiver {
    /// Starts the thread that receives from an interface.
    pub(super) fn start(source: Box<dyn DataLinkReceiver>, link: &Link) -> io::Result<Self> {
        let (readable, signal) = io::pipe()?;
        let (frames, counters) = (Frames::new(), Counters::default());
        let queue = Queue { frames, signal, is_signalled: false, failure: None, counters };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), is_closed: AtomicBool::new(false) });
        let reader = Reader {
            source,
            shared: Arc::clone(&shared),
            own: link.mac,
            longest: link.mtu + EthernetHeader::LEN + VlanHeader::LEN,
            interface: link.name.clone(),
        };
        std::thread::Builder::new().name("roce-pnet".into()).spawn(move || reader.run())?;
        Ok(Self { shared, readable, taken: Frames::new(), read: 0 })
    }

    /// Receives one burst.
    ///
    /// # Errors
    ///
    /// Fails if the interface is gone and every frame that arrived before was received.
    pub(super) fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        if self.read == self.taken.ends.len() {
            self.exchange()?;
        }
        let first = self.read;
        while self.read < first + BURST
            && let Some(head) = self.taken.get(self.read)
        {
            self.read += 1;
            sink(&Incoming { head, tail: &[], segment_len: None, vlan: None });
        }
        Ok(self.read - first)
    }

    /// Exchanges the area that was read for the one that the thread has filled.
    fn exchange(&mut self) -> io::Result<()> {
        self.taken.clear();
        self.read = 0;
        let mut queue = self.shared.queue.lock();
        mem::swap(&mut self.taken, &mut queue.frames);
        if !self.taken.ends.is_empty() {
            return Ok(());
        }
        // The pipe stays readable after a failure, so that a thread that waits looks.
        if let Some(failure) = queue.failure {
            return Err(io::Error::new(io::ErrorKind::NotConnected, failure));
        }
        if mem::take(&mut queue.is_signalled) {
            let _ = self.readable.read(&mut [0]);
        }
        Ok(())
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    pub(super) fn counters(&self) -> Counters {
        self.shared.queue.lock().counters
    }
}

impl Drop for Receiver {
    /// The thread notices within [`READ_TIMEOUT`](super::READ_TIMEOUT), or when the next frame arrives.
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
    }
}

/// The thread's part.
struct Reader {
    source: Box<dyn DataLinkReceiver>,
    shared: Arc<Shared>,
    own: MacAddr,
    /// Length of the longest frame that was not joined, in bytes.
    longest: usize,
    interface: String,
}

impl Reader {
    fn run(mut self) {
        // Whether the last call failed. An interface that is down may come up again unless it is deleted.
        let mut has_failed = false;
        while !self.shared.is_closed.load(Ordering::Relaxed) {
            match self.source.next() {
                Ok(frame) => {
                    has_failed = false;
                    let verdict = judge(frame, self.own, self.longest);
                    store(&mut self.shared.queue.lock(), frame, verdict);
                    continue;
                }
                Err(error) if is_transient(&error) && !has_failed => continue,
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    self.shared.queue.lock().counters.errors += 1;
                    // The first call reports an error and clears it; the second one may report it forever.
                    if mem::replace(&mut has_failed, true) {
                        tracing::debug!(%error, interface = self.interface, "receiving fails");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
            if !pnet_datalink::interfaces().iter().any(|known| known.name == self.interface) {
                let mut queue = self.shared.queue.lock();
                queue.failure = Some("its interface has been deleted");
                queue.signal();
                return;
            }
        }
    }
}

/// Returns whether an error only means that nothing arrived.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock | Interrupted)
}

/// The treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Take,
    /// Not for this device.
    Leave,
    TooLong,
    Malformed,
}

/// Selects the frames that the filter of a `raw` device selects. BPF also delivers the frames of this host.
fn judge(frame: &[u8], own: MacAddr, longest: usize) -> Verdict {
    let Ok((ethernet, _)) = EthernetView::from_prefix(frame) else { return Verdict::Leave };
    let destination = ethernet.destination();
    if ethernet.source() == own || (destination != own && !destination.is_multicast()) {
        return Verdict::Leave;
    }
    let is_other_kind = matches!(ethernet.ether_type(), EtherType::MAC_CONTROL | EtherType::ROCE_V1);
    match Frame::parse(frame) {
        Err(error) if error.kind == ParseErrorKind::NotRoce && !is_other_kind => Verdict::Leave,
        _ if frame.len() > longest => Verdict::TooLong,
        Err(_) if !is_other_kind => Verdict::Malformed,
        _ => Verdict::Take,
    }
}

fn store(queue: &mut Queue, frame: &[u8], verdict: Verdict) {
    match verdict {
        Verdict::Take if queue.frames.push(frame) => {
            queue.counters.frames += 1;
            queue.counters.bytes += frame.len() as u64;
            queue.signal();
        }
        Verdict::Take => queue.counters.overflow += 1,
        Verdict::Leave => queue.counters.others += 1,
        Verdict::TooLong => queue.counters.too_long += 1,
        Verdict::Malformed => queue.counters.malformed += 1,
    }
}

/// Size of each of the two areas.
pub(super) const QUEUE_BYTES: usize = 8 << 20;
const QUEUE_FRAMES: usize = 8192;
/// Maximum number of frames that one call delivers.
const BURST: usize = 32;
/// Time between two calls that fail.
const PAUSE: Duration = Duration::from_millis(20);
