//! Sending: frames wait in slots until the kernel has room for them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use pnet_datalink::DataLinkSender;
use roce_transport::Instant;

use crate::counters::counters;
use crate::framed::port::FRAME_ROOM;
use crate::link::{DOWN_NS, RETRY_NS};

counters! {
    pub(super) struct Counters {
        /// Frames sent.
        frames => "pnet_tx_frames",
        /// Bytes of these frames.
        bytes => "pnet_tx_bytes",
        /// Attempts to send without room in the kernel, or with the interface down; the frames stay.
        blocked => "pnet_tx_blocked",
        /// Frames dropped because they are too long for the interface.
        too_long => "pnet_tx_too_long",
        /// Frames dropped because the kernel refused them.
        refused => "pnet_tx_refused",
        /// Frames dropped because the kernel had no room for them for too long.
        gave_up => "pnet_tx_gave_up",
    }
}

/// The frames that wait to be sent.
pub(super) struct Transmitter {
    sender: Box<dyn DataLinkSender>,
    /// Slots of [`FRAME_ROOM`] bytes, used as a ring.
    slots: Vec<u8>,
    /// The slot to lend next.
    next: usize,
    /// The ranges in `slots` of waiting frames, the oldest first.
    pending: VecDeque<Range<usize>>,
    /// Number of attempts to send the oldest frame for which the kernel had no room.
    failures: u32,
    /// Time of the next attempt.
    pub(super) retry_at: Option<Instant>,
    pub(super) counters: Counters,
}

impl Transmitter {
    pub(super) fn new(sender: Box<dyn DataLinkSender>) -> Self {
        Self {
            sender,
            slots: vec![0; SLOTS * FRAME_ROOM],
            next: 0,
            pending: VecDeque::with_capacity(SLOTS),
            failures: 0,
            retry_at: None,
            counters: Counters::default(),
        }
    }

    /// Lends the next slot; `None` while all have frames in them.
    pub(super) fn slot(&mut self) -> Option<&mut [u8]> {
        let start = self.next * FRAME_ROOM;
        if self.pending.len() == SLOTS { None } else { self.slots.get_mut(start..start + FRAME_ROOM) }
    }

    /// Takes the frame that was written into the slot.
    pub(super) fn commit(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() || bytes.end > FRAME_ROOM || self.pending.len() == SLOTS {
            self.counters.refused += 1;
            return;
        }
        let start = self.next * FRAME_ROOM;
        self.pending.push_back(start + bytes.start..start + bytes.end);
        self.next = (self.next + 1) % SLOTS;
    }

    /// Passes waiting frames to the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the interface is gone.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.retry_at = None;
        let mut was_down = false;
        while let Some(range) = self.pending.front().cloned() {
            let frame = self.slots.get(range).unwrap_or_default();
            match self
                .sender
                .send_to(frame, None)
                .unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EMSGSIZE)))
            {
                Ok(()) => {
                    self.counters.frames += 1;
                    self.counters.bytes += frame.len() as u64;
                    self.forget_oldest();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The call clears an error that remained from the last time that the interface was down.
                Err(error) if is_down(&error) && !was_down => was_down = true,
                Err(error) if is_down(&error) => return self.retry(now, DOWN_NS),
                // The interface has still to send what the socket holds.
                Err(error) if is_full(&error) => return self.retry(now, RETRY_NS),
                Err(error) if has_no_room(&error) => {
                    self.failures += 1;
                    if self.failures <= MAX_FAILURES {
                        return self.retry(now, RETRY_NS);
                    }
                    self.counters.gave_up += 1;
                    self.forget_oldest();
                }
                Err(error) if is_gone(&error) => return Err(error),
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.counters.too_long += 1;
                    self.forget_oldest();
                }
                Err(error) => {
                    tracing::debug!(%error, "the kernel refuses a frame; the frame is dropped and counted");
                    self.counters.refused += 1;
                    self.forget_oldest();
                }
            }
        }
        Ok(())
    }

    fn forget_oldest(&mut self) {
        self.pending.pop_front();
        self.failures = 0;
    }

    /// Keeps the waiting frames until the next attempt, `after_ns` from now.
    fn retry(&mut self, now: Instant, after_ns: u64) -> io::Result<()> {
        self.counters.blocked += 1;
        self.retry_at = Some(now.plus_nanos(after_ns));
        Ok(())
    }
}

fn is_down(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENETDOWN)
}

/// Returns whether the socket is full, which `pnet_datalink` reports as a timeout.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Returns whether the queue of the interface is full, or `pnet_datalink` failed without a system call.
fn has_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM) | None)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::EBADF))
}

/// Number of frames that wait at most.
const SLOTS: usize = 256;
/// Maximum number of attempts to send a frame without room in the kernel: at least 50 ms.
const MAX_FAILURES: u32 = 1000;
