//! Received pause frames and priority flow control (IEEE 802.3 annex 31B, 802.1Qbb).

use roce_packet::PauseFrame;
use roce_packet::pause::{PRIORITIES, PauseRequest, pause_duration_ns};
use roce_transport::Instant;

/// The assumed rate of links that report none; pauses rather last too long than too short.
pub const ASSUMED_BITS_PER_SECOND: u64 = 10_000_000_000;

/// The pauses of each priority.
pub struct Pauses {
    until: [Option<Instant>; PRIORITIES],
    bits_per_second: u64,
    /// Global pause frames received.
    pub global_frames: u64,
    /// PFC frames received that pause or resume each priority.
    pub frames: [u64; PRIORITIES],
    /// Nanoseconds of requested pauses for each priority.
    pub duration_ns: [u64; PRIORITIES],
}

impl Pauses {
    /// Creates a value without pauses. `bits_per_second` is the rate of the link, if it has one.
    #[must_use]
    pub fn new(bits_per_second: Option<u64>) -> Self {
        Self {
            until: [None; PRIORITIES],
            bits_per_second: bits_per_second.unwrap_or(ASSUMED_BITS_PER_SECOND),
            global_frames: 0,
            frames: [0; PRIORITIES],
            duration_ns: [0; PRIORITIES],
        }
    }

    /// Handles a pause frame.
    pub fn handle(&mut self, now: Instant, frame: &PauseFrame) {
        let quanta = match frame.request {
            PauseRequest::All(quanta) => {
                self.global_frames += 1;
                [Some(quanta); PRIORITIES]
            }
            PauseRequest::PerPriority(quanta) => {
                for (count, _) in self.frames.iter_mut().zip(&quanta).filter(|(_, quanta)| quanta.is_some()) {
                    *count += 1;
                }
                quanta
            }
        };
        for ((until, duration), quanta) in self.until.iter_mut().zip(&mut self.duration_ns).zip(quanta) {
            match quanta {
                None => {}
                Some(0) => *until = None,
                Some(quanta) => {
                    let pause = pause_duration_ns(quanta, self.bits_per_second);
                    *duration = duration.saturating_add(pause);
                    *until = Some(now.plus_nanos(pause));
                }
            }
        }
    }

    /// Returns whether frames of a priority must wait.
    pub fn is_paused(&mut self, now: Instant, priority: u8) -> bool {
        let Some(until) = self.until.get_mut(usize::from(priority)) else { return false };
        match *until {
            Some(end) if now < end => true,
            Some(_) => {
                *until = None;
                false
            }
            None => false,
        }
    }

    /// Removes expired pauses, so that [`next_end`](Self::next_end) lies in the future.
    pub fn forget_ended(&mut self, now: Instant) {
        for until in &mut self.until {
            *until = until.filter(|end| now < *end);
        }
    }

    /// Returns whether a pause frame ever arrived.
    pub fn were_seen(&self) -> bool {
        self.global_frames > 0 || self.frames.iter().any(|count| *count > 0)
    }

    /// Returns when the next pause ends. Expired pauses count until `is_paused` is called for their priority.
    pub fn next_end(&self) -> Option<Instant> {
        self.until.iter().flatten().min().copied()
    }
}
