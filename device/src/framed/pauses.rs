//! Pause and priority flow control as they arrive (IEEE 802.3 annex 31B, 802.1Qbb).

use roce_packet::PauseFrame;
use roce_packet::pause::{PRIORITIES, PauseRequest, pause_duration_ns};
use roce_transport::Instant;

/// The assumed rate of links that report none: pauses last rather too long than too short.
pub const ASSUMED_BITS_PER_SECOND: u64 = 10_000_000_000;

/// Which priorities pause until when.
pub struct Pauses {
    until: [Option<Instant>; PRIORITIES],
    bits_per_second: u64,
    /// Global pause frames received.
    pub global_frames: u64,
    /// PFC frames received that pause or resume each priority.
    pub frames: [u64; PRIORITIES],
    /// Nanoseconds that were asked for.
    pub duration_ns: [u64; PRIORITIES],
}

impl Pauses {
    /// No priority is paused. `bits_per_second` is the rate of the link, if it has one.
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

    /// Takes in a pause frame.
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

    /// Whether frames of a priority must wait.
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

    /// Forgets the pauses that are over, so that [`next_end`](Self::next_end) lies ahead.
    pub fn forget_ended(&mut self, now: Instant) {
        for until in &mut self.until {
            *until = until.filter(|end| now < *end);
        }
    }

    /// Whether a pause frame ever arrived.
    pub fn were_seen(&self) -> bool {
        self.global_frames > 0 || self.frames.iter().any(|count| *count > 0)
    }

    /// When the next pause ends. One that is over counts until `is_paused` is called for its priority.
    pub fn next_end(&self) -> Option<Instant> {
        self.until.iter().flatten().min().copied()
    }
}
