//! The loop that sends frames when they are due.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use roce_capture::{Direction, PcapWriter};
use roce_device::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::pace::Pace;
use super::port::{Port, Skip, Taken};
use super::rewrite::{IcrcChange, Rewrite};
use super::source::{Macs, Original, Source};

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Frames that the device accepted, and their bytes from the Ethernet header on.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) elapsed_s: f64,
    /// Frames whose wrong ICRC was repaired.
    pub(super) icrc_repaired: u64,
    /// RoCE frames whose ICRC cannot be computed, because their headers are malformed or their end is
    /// missing. They are sent unchanged.
    pub(super) icrc_unrepairable: u64,
    /// Frames to the port of RoCE that may not be RoCE. They are sent unchanged.
    pub(super) icrc_uncertain: u64,
    pub(super) skipped: Skipped,
    /// Frames that the device or the kernel dropped.
    pub(super) refused: u64,
    /// Whether a signal ended the run.
    pub(super) interrupted: bool,
}

/// Frames that were not sent, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Skipped {
    /// Frames of which the capture contains only the first bytes.
    pub(super) cut: u64,
    /// Frames that are too long for the link.
    pub(super) too_long: u64,
    /// Frames that are shorter than an Ethernet header.
    pub(super) too_short: u64,
    /// Frames that are not RoCE v2, or of another IP version, if the device sends nothing else.
    pub(super) not_a_datagram: u64,
}

impl Skipped {
    pub(super) const fn sum(&self) -> u64 {
        self.cut + self.too_long + self.too_short + self.not_a_datagram
    }
}

/// The state of a run.
pub(super) struct Run<'a> {
    pub(super) port: Port,
    pub(super) rewrite: &'a Rewrite,
    pub(super) pace: Pace,
    /// Maximum number of frames.
    pub(super) limit: u64,
    pub(super) capture: Option<PcapWriter>,
    /// A function that is called about once a second.
    pub(super) progress: &'a mut dyn FnMut(&Outcome, Duration),
    signals: SignalFd,
    clock: Clock,
    /// The start of the clock, in nanoseconds since 1970 UTC.
    epoch_ns: u64,
    outcome: Outcome,
    frame: Vec<u8>,
    next_progress: Duration,
    since_flush: u32,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        port: Port,
        rewrite: &'a Rewrite,
        pace: Pace,
        progress: &'a mut dyn FnMut(&Outcome, Duration),
    ) -> anyhow::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            port,
            rewrite,
            pace,
            limit: u64::MAX,
            capture: None,
            progress,
            signals: signals.context("cannot create a signalfd")?,
            clock: Clock::start(),
            epoch_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
            outcome: Outcome::default(),
            frame: Vec::new(),
            next_progress: SECOND,
            since_flush: 0,
        })
    }

    /// Sends everything in `source`, `rounds` times.
    pub(super) fn run(mut self, source: &Source, rounds: u64) -> anyhow::Result<Outcome> {
        for _ in 0..rounds {
            let before = self.outcome.clone();
            source.read(&mut |original| self.take(original))?;
            if self.is_over() {
                break;
            }
            // A round that sends nothing would be repeated forever.
            if self.outcome.frames == before.frames {
                break;
            }
            self.pace.next_round();
        }
        self.drain()?;
        if let Some(capture) = &mut self.capture {
            capture.flush()?;
        }
        self.outcome.refused = self.port.refused().iter().map(|(_, count)| count).sum();
        self.outcome.frames = self.outcome.frames.saturating_sub(self.outcome.refused);
        self.outcome.elapsed_s = self.elapsed().as_secs_f64();
        Ok(self.outcome)
    }

    fn is_over(&self) -> bool {
        self.outcome.interrupted || self.outcome.frames >= self.limit
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.clock.now().as_nanos())
    }

    /// Sends one frame when it is due. Returns whether more may follow.
    fn take(&mut self, original: &Original<'_>) -> anyhow::Result<bool> {
        if self.is_over() {
            return Ok(false);
        }
        let due = self.pace.due(original.len(), original.time_ns)?;
        if !self.wait_until(due)? {
            return Ok(false);
        }
        if original.is_cut {
            self.outcome.skipped.cut += 1;
            return Ok(true);
        }
        let mut frame = std::mem::take(&mut self.frame);
        let macs = Macs {
            source: self.rewrite.source_mac.or(self.port.mac()),
            destination: self.rewrite.destination_mac,
            needed: !matches!(self.port, Port::Datagrams(_)),
        };
        original.to_frame(&mut frame, macs)?;
        let icrc = self.rewrite.apply(&mut frame);
        let taken = self.send(&frame);
        match taken? {
            Taken::Sent => self.sent(&frame, icrc)?,
            Taken::Skipped(skip) => {
                let skipped = &mut self.outcome.skipped;
                *match skip {
                    Skip::TooLong => &mut skipped.too_long,
                    Skip::TooShort => &mut skipped.too_short,
                    Skip::NotADatagram => &mut skipped.not_a_datagram,
                } += 1;
            }
            Taken::NoRoom => {}
        }
        self.frame = frame;
        Ok(!self.is_over())
    }

    fn sent(&mut self, frame: &[u8], icrc: IcrcChange) -> anyhow::Result<()> {
        self.outcome.frames += 1;
        self.outcome.bytes += frame.len() as u64;
        self.outcome.icrc_repaired += u64::from(icrc == IcrcChange::Repaired);
        self.outcome.icrc_unrepairable += u64::from(icrc == IcrcChange::Impossible);
        self.outcome.icrc_uncertain += u64::from(icrc == IcrcChange::Uncertain);
        if let Some(capture) = &mut self.capture {
            let time_ns = self.epoch_ns.saturating_add(self.clock.now().as_nanos());
            capture.write(0, time_ns, Direction::Outbound, None, frame)?;
        }
        self.since_flush += 1;
        if self.since_flush >= MOST_PER_FLUSH {
            self.flush()?;
        }
        Ok(())
    }

    /// Passes a frame to the device, which may have to send others first. Returns `NoRoom` after an
    /// interruption.
    fn send(&mut self, frame: &[u8]) -> anyhow::Result<Taken> {
        let end = self.elapsed() + PATIENCE;
        loop {
            let taken = self.port.send(frame)?;
            if taken != Taken::NoRoom || self.outcome.interrupted {
                return Ok(taken);
            }
            let wait = self.flush()?.unwrap_or_default();
            self.check_patience(end)?;
            self.pause(wait)?;
        }
    }

    fn flush(&mut self) -> io::Result<Option<Duration>> {
        self.since_flush = 0;
        self.port.flush(self.clock.now())
    }

    /// Sends the frames that the device still holds.
    fn drain(&mut self) -> anyhow::Result<()> {
        let end = self.elapsed() + PATIENCE;
        while let Some(wait) = self.flush()? {
            self.check_patience(end)?;
            // After an interruption, the signal may still be readable. Accepted frames are sent in either
            // case.
            self.pause(wait)?;
        }
        Ok(())
    }

    fn check_patience(&self, end: Duration) -> anyhow::Result<()> {
        if self.elapsed() > end {
            bail!(
                "the device has accepted no frame for {} s; check that the interface is up (`ip link`)",
                PATIENCE.as_secs()
            );
        }
        Ok(())
    }

    /// Waits until a frame is due. Returns `false` after a signal.
    fn wait_until(&mut self, due: Duration) -> anyhow::Result<bool> {
        loop {
            let now = self.elapsed();
            if now >= self.next_progress {
                (self.progress)(&self.outcome, now);
                self.next_progress = now + SECOND;
                // A run that never waits checks for signals here.
                self.pause(Duration::ZERO)?;
            }
            if self.outcome.interrupted {
                return Ok(false);
            }
            if due <= now {
                return Ok(true);
            }
            self.flush()?;
            self.pause((due - now).min(SECOND))?;
        }
    }

    /// Waits until `time` is over or a signal arrives.
    fn pause(&mut self, time: Duration) -> io::Result<()> {
        if is_signalled(self.signals.as_fd(), time)? && matches!(self.signals.read_signal(), Ok(Some(_))) {
            self.outcome.interrupted = true;
        }
        Ok(())
    }
}

fn is_signalled(signals: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let mut polled = [PollFd::from_borrowed_fd(signals, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// Time limit for a device that accepts no frames.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of frames between two calls of the kernel.
const MOST_PER_FLUSH: u32 = 32;
