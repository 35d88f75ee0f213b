//! The loop around a bridge, with two devices, the clock and a capture.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use roce_packet::{EtherType, VlanHeader};
use roce_transport::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::direction::Leaving;
use super::{Bridge, Port, Settings, Side};
use roce_capture::{CaptureError, Direction, PcapWriter};
use roce_device::Clock;
use roce_device::OpenError;
use roce_device::whole::{WholeFrame, WholePort, open_whole};

/// A bridge between two devices.
pub struct Runner {
    bridge: Bridge,
    ports: [Box<dyn WholePort>; 2],
    clock: Clock,
    /// The start of the clock, in nanoseconds since 1970 UTC.
    epoch_ns: u64,
    capture: Option<PcapWriter>,
    /// The frame that the device of a side had no room for.
    waiting: [Option<Leaving>; 2],
}

/// The reason why a bridge ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] io::Error),
    /// The capture cannot be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// An observer of a running bridge.
pub trait Observer {
    /// Returns a descriptor that becomes readable when the bridge must end.
    fn end(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the time of the next call of [`observe`](Self::observe), counted from the start.
    fn next(&self) -> Duration;

    /// Observes the bridge. The runner calls it at about the time that `next` returned.
    fn observe(&mut self, since_start: Duration, bridge: &Bridge) -> ControlFlow<()>;
}

impl Runner {
    /// Opens both devices.
    ///
    /// # Errors
    ///
    /// A device cannot be opened.
    pub fn open(settings: &Settings, devices: [&str; 2]) -> Result<Self, OpenError> {
        let [left, right] = devices;
        let ports = [open_whole(left)?, open_whole(right)?];
        let facts = ports.each_ref().map(|port| {
            let record = port.record();
            Port { mac: record.mac, bits_per_second: record.bits_per_second }
        });
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            bridge: Bridge::new(settings, facts),
            ports,
            clock: Clock::start(),
            epoch_ns: since_1970.as_nanos() as u64,
            capture: None,
            waiting: [None, None],
        })
    }

    /// Writes every forwarded and every dropped frame to a file. A comment describes the changes to each
    /// frame. Each direction is an interface.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub fn capture(&mut self, path: &Path) -> Result<(), CaptureError> {
        self.capture = Some(PcapWriter::create(path, &["from left to right", "from right to left"])?);
        self.bridge.keep_lost();
        Ok(())
    }

    /// Returns the bridge, for its counters.
    pub const fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// Returns the interfaces of both devices.
    pub fn interfaces(&self) -> [&str; 2] {
        self.ports.each_ref().map(|port| port.record().interface.as_str())
    }

    /// Returns the MTUs of both devices.
    pub fn mtus(&self) -> [usize; 2] {
        self.ports.each_ref().map(|port| port.record().link_mtu)
    }

    /// Returns the time since the start in seconds.
    pub fn seconds(&self) -> f64 {
        self.clock.now().as_nanos() as f64 / 1e9
    }

    /// Returns the counters of the device of a side.
    pub fn device_counters(&self, side: Side) -> Vec<(&'static str, u64)> {
        let mut found = Vec::new();
        self.ports[side as usize].counters(&mut |name, value| found.push((name, value)));
        found
    }

    /// Forwards frames until the observer ends it.
    ///
    /// # Errors
    ///
    /// A device fails, or the capture cannot be written.
    pub fn run(&mut self, observer: &mut impl Observer) -> Result<(), BridgeError> {
        loop {
            let mut received = 0;
            for side in Side::BOTH {
                received += self.receive(side)?;
            }
            let now = self.clock.now();
            self.bridge.handle_timeout(now);
            for side in Side::BOTH {
                self.transmit(now, side)?;
                self.write_lost(now, side)?;
            }
            let since_start = Duration::from_nanos(now.as_nanos());
            if observer.next() <= since_start && observer.observe(since_start, &self.bridge).is_break() {
                break;
            }
            if received == 0 && self.sleep(observer)? {
                break;
            }
        }
        if let Some(capture) = &mut self.capture {
            capture.flush()?;
        }
        Ok(())
    }

    fn receive(&mut self, from: Side) -> io::Result<usize> {
        let Self { bridge, ports, clock, .. } = self;
        let mut tagged = Vec::new();
        ports[from as usize].receive_whole(&mut |frame| {
            let now = clock.now();
            if put_tag_in(frame, &mut tagged) {
                bridge.handle_frame(now, from, frame.offload.moved_by(VlanHeader::LEN as u16), &tagged);
            } else {
                bridge.handle_frame(now, from, frame.offload, frame.bytes);
            }
        })
    }

    fn transmit(&mut self, now: Instant, to: Side) -> Result<(), BridgeError> {
        let Self { bridge, ports, waiting, .. } = self;
        let (port, waiting) = (&mut ports[to as usize], &mut waiting[to as usize]);
        let mut flushed = false;
        while let Some(leaving) = waiting.take().or_else(|| bridge.poll_transmit(now, to)) {
            if port.send_whole(leaving.offload, &leaving.bytes) {
                flushed = false;
                if let Some(capture) = &mut self.capture {
                    write(capture, self.epoch_ns, bridge, now, to.other(), &leaving)?;
                }
                continue;
            }
            *waiting = Some(leaving);
            if flushed {
                break;
            }
            port.flush(now)?;
            flushed = true;
        }
        bridge.set_full(to, waiting.is_some());
        port.flush(now)?;
        Ok(())
    }

    fn write_lost(&mut self, now: Instant, from: Side) -> Result<(), CaptureError> {
        let Some(capture) = &mut self.capture else { return Ok(()) };
        while let Some(lost) = self.bridge.poll_lost(from) {
            write(capture, self.epoch_ns, &self.bridge, now, from, &lost)?;
        }
        Ok(())
    }

    /// Waits until there is work. Returns `true` if the bridge must end.
    fn sleep(&mut self, observer: &impl Observer) -> io::Result<bool> {
        let now = self.clock.now();
        let due = self.bridge.poll_timeout(now);
        let devices = self.ports.iter().filter_map(|port| port.deadline());
        let look = Instant::from_nanos(observer.next().as_nanos() as u64);
        let next = devices.chain(due).chain([look]).min().unwrap_or(look);
        // A frame that a device had no room for is retried soon.
        let retry = self.waiting.iter().any(Option::is_some).then(|| now.plus_nanos(RETRY_NS));
        let wait = retry.map_or(next, |retry| retry.min(next)).since(now);
        if wait.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let ports = self.ports.iter().map(|port| PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN));
        let mut descriptors: Vec<PollFd<'_>> = ports.collect();
        descriptors.extend(observer.end().map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = descriptors.iter().map(PollFd::revents).collect::<Vec<_>>();
        if events.iter().take(2).any(|events| events.intersects(PollFlags::ERR | PollFlags::HUP)) {
            // An interface is down, but may come up again.
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(events.get(2).is_some_and(|events| events.contains(PollFlags::IN)))
    }
}

/// Writes one frame to a capture.
fn write(
    capture: &mut PcapWriter,
    epoch_ns: u64,
    bridge: &Bridge,
    now: Instant,
    from: Side,
    leaving: &Leaving,
) -> Result<(), CaptureError> {
    let comment = leaving.touch.and_then(|touch| touch.text(bridge.plan(from)));
    let time_ns = epoch_ns.saturating_add(now.as_nanos());
    capture.write(from as u32, time_ns, Direction::Unknown, comment.as_deref(), &leaving.bytes)
}

/// Restores a VLAN tag that the kernel removed. Returns `false` if there is no tag.
fn put_tag_in(frame: &WholeFrame<'_>, tagged: &mut Vec<u8>) -> bool {
    let (Some(tag), Some((addresses, rest))) = (frame.vlan, frame.bytes.split_at_checked(12)) else {
        return false;
    };
    tagged.clear();
    tagged.extend_from_slice(addresses);
    tagged.extend_from_slice(&EtherType::VLAN.0.to_be_bytes());
    tagged.extend_from_slice(&tag.to_bits().to_be_bytes());
    tagged.extend_from_slice(rest);
    true
}

const RETRY_NS: u64 = 50_000;
