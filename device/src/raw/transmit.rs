//! Sending: frames lie one behind the other in one area and go out by the run.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use roce_transport::Instant;

use crate::counters::counters;
use crate::framed::port::{FRAME_ROOM, SUPERFRAME_ROOM};
use crate::mmsg;
use crate::offload::Offload;

counters! {
    pub(super) struct Counters {
        /// Frames sent; one with segmentation offload counts once.
        frames => "raw_tx_frames",
        /// Their bytes.
        bytes => "raw_tx_bytes",
        /// Frames that the kernel or the card had to split.
        superframes => "raw_tx_superframes",
        /// System calls that sent.
        calls => "raw_tx_calls",
        /// Attempts to send that found the send buffer of the socket full; the frames stay and are tried again.
        blocked => "raw_tx_blocked",
        /// Frames dropped because they are longer than the interface takes.
        too_long => "raw_tx_too_long",
        /// Frames dropped because the kernel refused them.
        refused => "raw_tx_refused",
    }
}

/// The frames that wait to be sent.
pub(super) struct Transmitter {
    /// Used as a ring: frames lie one behind the other, each with a header of its own in front, and never reach
    /// around the end.
    area: Vec<u8>,
    /// Where the next slot begins: behind all frames, or before the oldest once it has passed the end.
    write: usize,
    pending: VecDeque<Pending>,
    lent: bool,
    room: usize,
    /// When to try again after the kernel had no room.
    pub(super) retry_at: Option<Instant>,
    /// The kernel does not split frames after all.
    pub(super) split_refused: bool,
    reported_refusal: i32,
    pub(super) counters: Counters,
}

/// A frame with the header in front of it.
struct Pending {
    bytes: Range<usize>,
    is_split: bool,
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
            counters: Counters::default(),
        }
    }

    /// Room for the longest frame.
    pub(super) fn slot(&mut self) -> Option<&mut [u8]> {
        let needed = Offload::LEN + self.room;
        match self.pending.front().map(|oldest| oldest.bytes.start) {
            // A slot that was lent already stays where it is, with what was written into it.
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

    /// Takes what was written into the slot.
    pub(super) fn commit(&mut self, bytes: &Range<usize>, offload: Offload) {
        if !mem::take(&mut self.lent) || bytes.is_empty() || bytes.end > self.room {
            self.counters.refused += 1;
            return;
        }
        // The header goes right in front of the frame, wherever in the slot that begins.
        let (start, end) = (self.write + bytes.start, self.write + Offload::LEN + bytes.end);
        if let Some(place) = self.area.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut()) {
            *place = offload.0;
        }
        self.pending.push_back(Pending { bytes: start..end, is_split: offload.is_joined() });
        self.write = end.next_multiple_of(64);
    }

    /// Hands over what is pending.
    ///
    /// # Errors
    ///
    /// The socket or its interface is gone.
    pub(super) fn flush(&mut self, now: Instant, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.retry_at = None;
        let mut was_down = false;
        while !self.pending.is_empty() {
            match self.send_run(socket) {
                Ok(sent) => self.count(sent),
                Err(error) => match error.raw_os_error().unwrap_or(0) {
                    // ENOBUFS: the queue of the interface was full, and the frame is not in it.
                    libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => {
                        self.counters.blocked += 1;
                        self.retry_at = Some(now.plus_nanos(RETRY_NS));
                        return Ok(());
                    }
                    // Asking clears what was left from the last time that it was down.
                    libc::ENETDOWN if !was_down => was_down = true,
                    libc::ENETDOWN => {
                        self.counters.blocked += 1;
                        self.retry_at = Some(now.plus_nanos(DOWN_NS));
                        return Ok(());
                    }
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

    /// One system call; returns how many frames were taken, at least one.
    fn send_run(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.counters.calls += 1;
        mmsg::send_run::<_, MAX_RUN, 0>(socket, self.pending.iter(), |frame, _| {
            (&self.area[frame.bytes.clone()], None, 0)
        })
    }

    fn count(&mut self, sent: usize) {
        for frame in self.pending.drain(..sent.min(self.pending.len())) {
            self.counters.frames += 1;
            self.counters.superframes += u64::from(frame.is_split);
            self.counters.bytes += (frame.bytes.len() - Offload::LEN) as u64;
        }
    }

    /// Drops the oldest frame, which the kernel does not want.
    fn refuse(&mut self, code: i32, error: &io::Error) {
        let Some(frame) = self.pending.pop_front() else { return };
        self.counters.refused += 1;
        if frame.is_split && code == libc::EINVAL {
            self.split_refused = true;
        }
        if code != mem::replace(&mut self.reported_refusal, code) {
            tracing::warn!(%error, "the kernel refuses a frame");
        }
    }
}

/// Bytes of the area: some dozens of the longest frames.
const AREA_LEN: usize = 4 << 20;
const MAX_PENDING: usize = 512;
/// Frames for one system call.
const MAX_RUN: usize = 64;
/// How long the kernel may take to make room.
const RETRY_NS: u64 = 50_000;
/// How often to look whether the interface is up again.
const DOWN_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Before a flush the device asks for a slot for a frame of its host, which often has none.
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
            // The peer's queue is short, so that a flush sends a few.
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
