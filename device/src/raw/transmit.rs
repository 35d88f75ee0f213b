//! Sending: frames are stored in one area and sent in runs.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use roce_transport::Instant;

use crate::counters::counters;
use crate::framed::port::{FRAME_ROOM, SUPERFRAME_ROOM};
use crate::link::{DOWN_NS, RETRY_NS};
use crate::mmsg;
use crate::offload::Offload;
use crate::segment::Plan;

counters! {
    pub(super) struct Counters {
        /// Frames sent; one with segmentation offload counts once.
        frames => "raw_tx_frames",
        /// Bytes of these frames.
        bytes => "raw_tx_bytes",
        /// Frames that the kernel or the network card had to split.
        superframes => "raw_tx_superframes",
        /// System calls that sent.
        calls => "raw_tx_calls",
        /// Attempts to send with a full send buffer of the socket; the frames stay and are tried again.
        blocked => "raw_tx_blocked",
        /// Frames dropped because they are too long for the interface.
        too_long => "raw_tx_too_long",
        /// Frames dropped because the kernel refused them.
        refused => "raw_tx_refused",
        /// Frames dropped because the interface's queue stayed full, or the kernel had no memory for them.
        gave_up => "raw_tx_gave_up",
        /// Frames of several packets, or with an incomplete checksum, that this process completed because the
        /// kernel cannot: those inside a tunnel, and those that the kernel refused.
        finished => "raw_tx_finished",
    }
}

/// The frames that are waiting to be sent.
pub(super) struct Transmitter {
    /// Used as a ring: each frame is contiguous, has its own header in front, and never wraps around the end.
    area: Vec<u8>,
    /// Offset of the next slot: behind all frames, or before the oldest after wrapping.
    write: usize,
    pending: VecDeque<Pending>,
    lent: bool,
    room: usize,
    /// Time of the next attempt after the kernel had no room.
    pub(super) retry_at: Option<Instant>,
    /// Whether the kernel turned out not to split frames.
    pub(super) split_refused: bool,
    reported_refusal: i32,
    /// One packet of a frame that this process splits.
    single: Vec<u8>,
    pub(super) counters: Counters,
}

/// A frame and the header in front of it.
struct Pending {
    bytes: Range<usize>,
    is_split: bool,
    /// Number of attempts that the kernel answered with "no room" or "no memory".
    failures: u32,
    /// The offloads of the frame, if this process carries them out, and the number of packets sent so far.
    plan: Option<(Plan, usize)>,
}

impl Transmitter {
    pub(super) fn new(max_segments: u16) -> Self {
        let room = if max_segments > 1 { SUPERFRAME_ROOM } else { FRAME_ROOM };
        Self {
            area: vec![0; AREA_LEN],
            write: 0,
            pending: VecDeque::with_capacity(MAX_PENDING),
            lent: false,
            room,
            retry_at: None,
            split_refused: false,
            reported_refusal: 0,
            single: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Lends room for the longest frame.
    pub(super) fn slot(&mut self) -> Option<&mut [u8]> {
        let needed = Offload::LEN + self.room;
        match self.pending.front().map(|oldest| oldest.bytes.start) {
            // A slot that is lent already stays in place, with its contents.
            _ if self.lent => {}
            None => self.write = 0,
            Some(_) if self.pending.len() == MAX_PENDING => return None,
            Some(oldest) => {
                if self.write > oldest && self.write + needed > AREA_LEN {
                    self.write = 0;
                }
                if self.write <= oldest && self.write + needed > oldest {
                    return None;
                }
            }
        }
        self.lent = true;
        let start = self.write + Offload::LEN;
        self.area.get_mut(start..start + self.room)
    }

    /// Takes the frame that was written into the slot.
    pub(super) fn commit(&mut self, bytes: &Range<usize>, offload: Offload) {
        if !mem::take(&mut self.lent) || bytes.is_empty() || bytes.end > self.room {
            self.counters.refused += 1;
            return;
        }
        // The header goes directly in front of the frame, wherever that begins in the slot.
        let (start, end) = (self.write + bytes.start, self.write + Offload::LEN + bytes.end);
        if let Some(place) = self.area.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut()) {
            *place = offload.0;
        }
        let is_split = offload.is_joined();
        self.pending.push_back(Pending { bytes: start..end, is_split, failures: 0, plan: None });
        self.write = end.next_multiple_of(64);
    }

    /// Carries out the offloads of the most recently committed frame if its packet is in a tunnel.
    #[cfg(feature = "whole")]
    pub(super) fn finish_if_in_tunnel(&mut self) {
        let Self { pending, area, counters, .. } = self;
        let Some(frame) = pending.back_mut() else { return };
        if let Some(plan) = frame.plan(area).filter(Plan::is_tunnel) {
            frame.plan = Some((plan, 0));
            counters.finished += 1;
        }
    }

    /// Passes pending frames to the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the socket or its interface is gone.
    pub(super) fn flush(&mut self, now: Instant, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.retry_at = None;
        let mut was_down = false;
        while !self.pending.is_empty() {
            let sent = match self.pending.front() {
                Some(Pending { plan: Some(_), .. }) => self.send_finished(socket),
                _ => self.send_run(socket),
            };
            match sent {
                Ok(sent) => self.count(sent),
                Err(error) => match error.raw_os_error().unwrap_or(0) {
                    libc::EAGAIN => return self.retry(now, RETRY_NS),
                    // ENOBUFS: the interface's queue was full, and the frame is not in it, or a filter drops
                    // the frame. ENOMEM: the kernel cannot split the frame, or has no memory.
                    code @ (libc::ENOBUFS | libc::ENOMEM) => {
                        if self.may_retry(code, &error) {
                            return self.retry(now, RETRY_NS);
                        }
                    }
                    // The call clears an error that remained from the last time that the interface was down.
                    libc::ENETDOWN if !was_down => was_down = true,
                    libc::ENETDOWN => return self.retry(now, DOWN_NS),
                    libc::EINTR => {}
                    libc::ENXIO | libc::ENODEV | libc::EBADF | libc::ENOTSOCK | libc::EFAULT => {
                        return Err(error);
                    }
                    libc::EMSGSIZE => {
                        self.pending.pop_front();
                        self.counters.too_long += 1;
                    }
                    code => self.refuse(code, &error),
                },
            }
        }
        Ok(())
    }

    /// Makes one system call; returns the number of accepted frames, at least one.
    fn send_run(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.counters.calls += 1;
        let run = self.pending.iter().take_while(|frame| frame.plan.is_none());
        mmsg::send_run::<_, MAX_RUN, 0>(socket, run, |frame, _| (&self.area[frame.bytes.clone()], None, 0))
    }

    /// Sends the packets of the oldest frame, which this process splits; returns 1 when all have left.
    fn send_finished(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let Self { pending, area, single, counters, .. } = self;
        let Some(frame) = pending.front_mut() else { return Ok(0) };
        let bytes = &area[frame.bytes.clone()];
        let Some((plan, sent)) = &mut frame.plan else { return Ok(0) };
        while *sent < plan.count() {
            // The header in front of the packet requests no offloads.
            plan.write(&bytes[Offload::LEN..], *sent, single, &Offload::NONE.0);
            counters.calls += 1;
            mmsg::send_run::<_, 1, 0>(socket, std::iter::once(&*single), |single, _| (single, None, 0))?;
            *sent += 1;
            frame.failures = 0;
        }
        Ok(1)
    }

    /// Keeps the waiting frames until the next attempt, `after_ns` from now.
    fn retry(&mut self, now: Instant, after_ns: u64) -> io::Result<()> {
        self.counters.blocked += 1;
        self.retry_at = Some(now.plus_nanos(after_ns));
        Ok(())
    }

    /// Returns whether the oldest frame stays queued after the kernel had no room or no memory for it.
    /// Otherwise splits or drops it, because a frame that is never accepted must not block the others.
    fn may_retry(&mut self, code: i32, error: &io::Error) -> bool {
        let Some(frame) = self.pending.front_mut() else { return false };
        frame.failures += 1;
        if code == libc::ENOMEM && self.finish_oldest() {
            return false;
        }
        let Some(frame) = self.pending.front() else { return false };
        let most = if code == libc::ENOMEM { MAX_NO_MEMORY } else { MAX_NO_ROOM };
        if frame.failures <= most {
            return true;
        }
        self.pending.pop_front();
        self.counters.gave_up += 1;
        self.report(code, error);
        false
    }

    /// Carries out the offloads of the oldest frame from now on; `false` if impossible or already done.
    fn finish_oldest(&mut self) -> bool {
        let Self { pending, area, counters, .. } = self;
        let Some(frame) = pending.front_mut().filter(|frame| frame.plan.is_none()) else { return false };
        let Some(plan) = frame.plan(area) else { return false };
        frame.plan = Some((plan, 0));
        counters.finished += 1;
        true
    }

    fn count(&mut self, sent: usize) {
        for frame in self.pending.drain(..sent.min(self.pending.len())) {
            self.counters.frames += 1;
            self.counters.superframes += u64::from(frame.is_split && frame.plan.is_none());
            self.counters.bytes += (frame.bytes.len() - Offload::LEN) as u64;
        }
    }

    /// Splits the oldest frame, which the kernel refuses, or drops it.
    fn refuse(&mut self, code: i32, error: &io::Error) {
        let is_split = self.pending.front().is_some_and(|frame| frame.is_split && frame.plan.is_none());
        self.split_refused |= is_split && code == libc::EINVAL;
        if self.finish_oldest() {
            return;
        }
        self.pending.pop_front();
        self.counters.refused += 1;
        self.report(code, error);
    }

    fn report(&mut self, code: i32, error: &io::Error) {
        if code != mem::replace(&mut self.reported_refusal, code) {
            tracing::warn!(%error, "the kernel refuses a frame; the frame is dropped and counted");
        }
    }
}

impl Pending {
    /// Returns how this process can carry out the frame's offloads.
    fn plan(&self, area: &[u8]) -> Option<Plan> {
        let (offload, frame) = area.get(self.bytes.clone())?.split_first_chunk()?;
        Plan::of(frame, &Offload(*offload))
    }
}

/// Size of the area in bytes: dozens of the longest frames.
const AREA_LEN: usize = 4 << 20;
const MAX_PENDING: usize = 512;
/// Maximum number of frames in one system call.
const MAX_RUN: usize = 64;
/// Maximum attempts to send a frame to an interface without room: at least 50 ms. The longest pause at 10
/// Gb/s lasts 3.4 ms; at 10 Mb/s, a queue of 1,000 frames of 1,500 bytes moves by one each 1.2 ms.
const MAX_NO_ROOM: u32 = 1000;
/// Maximum attempts to send a frame for which the kernel has no memory. Packet memory is available again
/// within a millisecond; otherwise the error is about this frame.
const MAX_NO_MEMORY: u32 = 16;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Regression: the device requests a slot for a host frame before a flush, often without using it.
    #[test]
    fn a_slot_that_was_lent_over_a_flush_does_not_make_the_area_full() {
        let (socket, peer) = UnixDatagram::pair().unwrap();
        let mut transmitter = Transmitter::new(64);
        let mut room = vec![0; SUPERFRAME_ROOM];
        for round in 0..3 * AREA_LEN / SUPERFRAME_ROOM {
            for frame in 0..2 {
                let slot = transmitter.slot().unwrap_or_else(|| panic!("no room in round {round}"));
                slot[..60_000].fill((2 * round + frame) as u8);
                transmitter.commit(&(0..60_000), Offload::NONE);
            }
            assert!(transmitter.slot().is_some(), "round {round}");
            transmitter.flush(Instant::ZERO, socket.as_fd()).unwrap();
            for frame in 0..2 {
                let len = peer.recv(&mut room).unwrap();
                assert_eq!(len, Offload::LEN + 60_000);
                let content = (2 * round + frame) as u8;
                assert!(room[Offload::LEN..len].iter().all(|byte| *byte == content), "round {round}");
            }
        }
        assert_eq!(transmitter.counters.blocked, 0);
    }

    #[test]
    fn frames_that_wait_are_not_written_over() {
        let (socket, peer) = UnixDatagram::pair().unwrap();
        let mut transmitter = Transmitter::new(64);
        let mut count = 0_u32;
        while let Some(slot) = transmitter.slot() {
            slot[..60_000].fill(count as u8);
            transmitter.commit(&(0..60_000), Offload::NONE);
            count += 1;
        }
        assert!(count > 40, "{count}");
        let mut room = vec![0; SUPERFRAME_ROOM];
        let (mut expected, all) = (0, count + 40);
        while expected < all {
            // The peer's queue is short, so a flush sends only a few.
            transmitter.flush(Instant::ZERO, socket.as_fd()).unwrap();
            let len = peer.recv(&mut room).unwrap();
            assert!(room[Offload::LEN..len].iter().all(|byte| *byte == expected as u8), "frame {expected}");
            expected += 1;
            if count < all
                && let Some(slot) = transmitter.slot()
            {
                slot[..60_000].fill(count as u8);
                transmitter.commit(&(0..60_000), Offload::NONE);
                count += 1;
            }
        }
    }
}
