//! A device that records every datagram as an Ethernet frame.
//!
//! Frames are complete, and every analyser can verify their ICRCs, although devices do not move whole frames.
//! Ethernet addresses are derived from IP addresses, the UDP port is 4791, and the ICRC determines the IPv4
//! Identification that a socket does not report.
//!
//! Every packet has its own time, increasing per interface, from this process's clock, not from the network:
//! sent packets when the engine passed them to the device, received packets when the engine read them, which
//! may be after their arrival. Packets that `--fault` drops are recorded with a comment: outgoing ones as if
//! they had been sent, incoming ones as they arrived.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use roce_packet::{Envelope, FrameHeaders, MacAddr, NetworkHeader, Path, Telemetry, icrc};
use roce_transport::{Identification, Instant, MOST_SEGMENTS, Received, Transmit, TxSlot, with_causes};

use super::{Capabilities, Device, OpenError, forward_to_inner};
use crate::Clock;
use crate::counters::counters;
use crate::fork::{Mutex, Process};
use roce_capture::{CaptureError, Direction, PcapWriter, WriterOptions};

/// Receives the frames of a capture.
pub trait FrameSink: Send {
    /// Stores one frame, from its Ethernet header to its ICRC, with a time in nanoseconds since 1970 UTC.
    /// `comment` is an optional remark on the packet.
    fn frame(&mut self, time_ns: u64, direction: Direction, comment: Option<&str>, frame: &[u8]);

    /// Returns the number of frames that could not be stored.
    fn errors(&self) -> u64 {
        0
    }

    /// Returns whether the configured number of frames is reached, so that no more are accepted.
    fn is_full(&self) -> bool {
        false
    }
}

/// File and limits of a capture, parsed from text such as `trace.pcapng,snaplen=128,count=1000`.
///
/// ```text
/// FILE *( "," option )
/// option = "snaplen=" BYTES    keeps the first bytes of each packet, its Ethernet header included; all if not given
///        | "count=" PACKETS    records this many packets; without end if not given
/// ```
///
/// A comma without `=` behind it belongs to the file name.
///
/// ```
/// use roce_device::pcap::CaptureSpec;
///
/// let spec: CaptureSpec = "trace.pcapng,snaplen=128,count=1000".parse()?;
/// assert_eq!((spec.file.to_str(), spec.snap_len, spec.max_packets), (Some("trace.pcapng"), Some(128), Some(1000)));
/// # Ok::<(), roce_device::OpenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSpec {
    /// The file.
    pub file: PathBuf,
    /// Bytes of each packet to store, at least 1; `None` stores all.
    pub snap_len: Option<u32>,
    /// Packets to record, at least 1; `None` records all.
    pub max_packets: Option<u64>,
}

impl CaptureSpec {
    /// Creates a specification that records every packet completely.
    #[must_use]
    pub const fn new(file: PathBuf) -> Self {
        Self { file, snap_len: None, max_packets: None }
    }

    /// Creates the file and returns a handle for each of its interfaces.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be created.
    pub fn create(&self, interfaces: &[&str]) -> Result<Vec<CaptureFile>, CaptureError> {
        let mut options = WriterOptions::new().snap_len(self.snap_len.unwrap_or(0));
        if let Some(count) = self.max_packets {
            options = options.max_packets(count);
        }
        let writer = PcapWriter::create_with(&self.file, interfaces, options)?;
        Ok(CaptureFile::of_writer(writer, interfaces.len()))
    }
}

impl FromStr for CaptureSpec {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let bad = |item: &str, expected| OpenError::BadSpec {
            spec: text.to_owned(),
            item: item.to_owned(),
            expected,
        };
        let (mut file, mut snap_len, mut max_packets) = (text, None, None);
        while let Some((before, item)) = file.rsplit_once(',')
            && let Some((name, value)) = item.split_once('=')
        {
            match name.trim() {
                "snaplen" => {
                    let bytes = value.parse().ok().filter(|bytes| *bytes > 0);
                    snap_len = Some(bytes.ok_or_else(|| bad(item, "snaplen=BYTES, at least 1"))?);
                }
                "count" => {
                    let count = value.parse().ok().filter(|count| *count > 0);
                    max_packets = Some(count.ok_or_else(|| bad(item, "count=PACKETS, at least 1"))?);
                }
                _ => return Err(bad(item, "snaplen=BYTES or count=PACKETS")),
            }
            file = before;
        }
        if file.is_empty() {
            return Err(bad(text, "the name of a file such as trace.pcapng"));
        }
        Ok(Self { file: file.into(), snap_len, max_packets })
    }
}

/// One interface of a capture file. Several devices, for example both ends of a pair, may write to the same
/// file. Whenever one of them is closed, the file contains everything recorded before.
#[derive(Clone)]
pub struct CaptureFile {
    shared: Arc<Shared>,
    interface: u32,
}

struct Shared {
    writer: Mutex<PcapWriter>,
    errors: AtomicU64,
    is_full: AtomicBool,
    process: Process,
}

impl CaptureFile {
    /// Creates a pcapng file and returns a handle for each of its interfaces.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be created.
    pub fn create(path: &FilePath, interfaces: &[&str]) -> Result<Vec<Self>, CaptureError> {
        Ok(Self::of_writer(PcapWriter::create(path, interfaces)?, interfaces.len()))
    }

    /// Returns handles for the first `interfaces` interfaces of an existing file.
    #[must_use]
    pub fn of_writer(writer: PcapWriter, interfaces: usize) -> Vec<Self> {
        let is_full = AtomicBool::new(writer.is_full());
        let shared = Arc::new(Shared {
            writer: Mutex::new(writer),
            errors: AtomicU64::new(0),
            is_full,
            process: Process::current(),
        });
        (0..).take(interfaces).map(|interface| Self { shared: shared.clone(), interface }).collect()
    }

    /// Adds an interface to the same file, for a device that is opened later.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn add_interface(&self, name: &str) -> Result<Self, CaptureError> {
        let mut writer = self.shared.writer.lock();
        let interface = writer.add_interface(name)?;
        Ok(Self { shared: self.shared.clone(), interface })
    }

    /// Passes everything written so far to the operating system.
    pub fn flush(&self) {
        self.shared.flush();
    }
}

/// Flushes the file when a device is closed, so that it can be read while others still write.
impl Drop for CaptureFile {
    fn drop(&mut self) {
        if self.shared.process.is_current() {
            self.flush();
        } else {
            // The child of a fork: the parent writes the contents of the buffer.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureFile").field("interface", &self.interface).finish_non_exhaustive()
    }
}

impl FrameSink for CaptureFile {
    fn frame(&mut self, time_ns: u64, direction: Direction, comment: Option<&str>, frame: &[u8]) {
        let mut writer = self.shared.writer.lock();
        if let Err(error) = writer.write(self.interface, time_ns, direction, comment, frame) {
            self.shared.failed(&error);
        }
        if writer.is_full() {
            self.shared.is_full.store(true, Ordering::Relaxed);
        }
    }

    fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Reports only the first error, because a full disk stays full.
    fn failed(&self, error: &CaptureError) {
        if self.errors.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(error = %with_causes(error), "the capture is incomplete");
        }
    }

    fn flush(&self) {
        let mut writer = self.writer.lock();
        if let Err(error) = writer.flush() {
            self.failed(&error);
        }
    }
}

/// A device that passes every datagram of another device to a [`FrameSink`].
pub struct PcapDevice {
    inner: Box<dyn Device>,
    recorder: Arc<Mutex<Recorder>>,
    /// The slot for the engine: that of the inner device is inaccessible once it is lent.
    scratch: Vec<u8>,
}

/// Builds frames and passes them to the sink.
struct Recorder {
    sink: Box<dyn FrameSink>,
    frame: Vec<u8>,
    time: Time,
    /// Whether the packet that is being received is dropped.
    is_dropped: bool,
    counters: Counters,
}

/// The source of packet times.
enum Time {
    /// The calls. The number is the origin of the engine's time in nanoseconds since 1970.
    OfCalls(u64),
    /// A clock that is read for each packet, started at the first one.
    OfPackets(Option<Started>),
}

/// A clock that was started at a time of day, and the last time read from it.
struct Started {
    clock: Clock,
    epoch_ns: u64,
    last_ns: u64,
}

impl Time {
    /// Returns the time of a packet, in nanoseconds since 1970.
    fn next(&mut self, now: Instant) -> u64 {
        match self {
            Self::OfCalls(epoch_ns) => epoch_ns.saturating_add(now.as_nanos()),
            Self::OfPackets(started) => started.get_or_insert_with(Started::now).next(),
        }
    }
}

impl Started {
    fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let epoch_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        Self { clock: Clock::start(), epoch_ns, last_ns: 0 }
    }

    /// Returns the current time, but never the same time twice, even if the clock is coarse.
    fn next(&mut self) -> u64 {
        let time_ns = self.epoch_ns.saturating_add(self.clock.now().as_nanos());
        self.last_ns = time_ns.max(self.last_ns.saturating_add(1));
        self.last_ns
    }
}

counters! {
    struct Counters {
        /// Sent datagrams that were recorded.
        sent => "pcap_sent",
        /// Received datagrams that were recorded.
        received => "pcap_received",
        /// Datagrams among these that faults dropped deliberately; they are recorded with a comment.
        dropped => "pcap_dropped",
        /// Datagrams not recorded because they cannot be represented as frames.
        unframed => "pcap_unframed",
        /// Received datagrams whose ICRC matches no Identification; they are recorded with a comment.
        damaged => "pcap_damaged",
        /// Datagrams not recorded because the capture has reached its maximum number of packets.
        skipped => "pcap_skipped",
    }
}

impl PcapDevice {
    /// Records the datagrams of `inner`, each with the time at which it passes.
    #[must_use]
    pub fn new(inner: Box<dyn Device>, sink: Box<dyn FrameSink>) -> Self {
        let scratch = vec![0; inner.capabilities().max_datagram];
        let frame = Vec::with_capacity(FrameHeaders::MAX_LEN + scratch.len());
        let time = Time::OfPackets(None);
        let recorder = Recorder { sink, frame, time, is_dropped: false, counters: Counters::default() };
        Self { inner, recorder: Arc::new(Mutex::new(recorder)), scratch }
    }

    /// Uses the times of the calls, for simulated time; all packets of one call then have the same time.
    /// `nanos` is the origin of the engine's time in nanoseconds since 1970 UTC.
    #[must_use]
    pub fn with_epoch(self, nanos: u64) -> Self {
        lock(&self.recorder).time = Time::OfCalls(nanos);
        self
    }

    /// Records the datagrams that a [`FaultDevice`](crate::fault::FaultDevice) around this device drops.
    #[cfg(feature = "fault")]
    #[must_use]
    pub fn drop_recorder(&self) -> Box<dyn crate::fault::DropRecorder> {
        Box::new(Drops(Arc::clone(&self.recorder)))
    }
}

/// Marks packets that are dropped outside the device.
#[cfg(feature = "fault")]
struct Drops(Arc<Mutex<Recorder>>);

#[cfg(feature = "fault")]
impl crate::fault::DropRecorder for Drops {
    fn dropped_sent(&mut self, now: Instant, transmit: &Transmit, datagram: &[u8]) {
        lock(&self.0).sent(now, transmit, datagram, Some(DROPPED_SENT));
    }

    fn dropped_received(&mut self) {
        lock(&self.0).is_dropped = true;
    }
}

/// Locks the recorder. Only the thread that calls the device does so, so this never waits.
fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock()
}

impl Device for PcapDevice {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        let TxSlot { batch, .. } = self.inner.slot()?;
        Some(TxSlot { buffer: &mut self.scratch, batch })
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        let Some(bytes) = self.scratch.get(..transmit.len) else { return };
        lock(&self.recorder).sent(now, transmit, bytes, None);
        let Some(slot) = self.inner.slot() else { return };
        let Some(room) = slot.buffer.get_mut(..bytes.len()) else { return };
        room.copy_from_slice(bytes);
        self.inner.commit(now, transmit);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let recorder = &self.recorder;
        self.inner.receive(now, &mut |received| {
            // The time is taken before the sink runs, which may report a drop.
            let time_ns = lock(recorder).begin(now);
            sink(received);
            lock(recorder).received(time_ns, received);
        })
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let recorder = lock(&self.recorder);
        recorder.counters.visit(visit);
        visit("pcap_write_errors", recorder.sink.errors());
        self.inner.counters(visit);
    }
}

impl fmt::Debug for PcapDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapDevice").field("inner", self.inner.capabilities()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Returns whether the capture is full, and counts the skipped datagram if so.
    fn skips(&mut self) -> bool {
        let is_full = self.sink.is_full();
        self.counters.skipped += u64::from(is_full);
        is_full
    }

    fn sent(&mut self, now: Instant, transmit: &Transmit, bytes: &[u8], comment: Option<&str>) {
        if self.skips() {
            return;
        }
        self.counters.sent += 1;
        self.counters.dropped += u64::from(comment.is_some());
        let Transmit { path, identification, .. } = transmit;
        let time_ns = self.time.next(now);
        self.record(time_ns, Direction::Outbound, path, (*identification, true), [bytes, &[]], comment);
    }

    /// Returns the time of a packet whose reception begins.
    fn begin(&mut self, now: Instant) -> u64 {
        self.is_dropped = false;
        self.time.next(now)
    }

    fn received(&mut self, time_ns: u64, received: &Received<'_>) {
        let is_dropped = std::mem::take(&mut self.is_dropped);
        if self.skips() {
            return;
        }
        self.counters.dropped += u64::from(is_dropped);
        self.counters.received += 1;
        let path = &received.path;
        let [head, tail] = received.body.pieces();
        let (header, comment) = match received.identification {
            Identification::Known { identification, dont_fragment } => {
                ((identification, dont_fragment), None)
            }
            Identification::Unsealed => ((0, true), None),
            Identification::Unknown { hint } => match find_identification(path, head, tail, hint) {
                Some(identification) => ((identification, true), None),
                None => {
                    self.counters.damaged += 1;
                    ((0, true), Some(WRONG_ICRC))
                }
            },
        };
        let comment = if is_dropped { Some(DROPPED_RECEIVED) } else { comment };
        self.record(time_ns, Direction::Inbound, path, header, [head, tail], comment);
    }

    fn record(
        &mut self,
        time_ns: u64,
        direction: Direction,
        path: &Path,
        (identification, dont_fragment): (u16, bool),
        parts: [&[u8]; 2],
        comment: Option<&str>,
    ) {
        let len = parts.iter().map(|part| part.len()).sum();
        let (to, from) = (ethernet_address(path.destination), ethernet_address(path.source));
        let Ok(mut headers) = FrameHeaders::new(path, identification, to, from, len) else {
            self.counters.unframed += 1;
            return;
        };
        if let NetworkHeader::Ipv4 { ip, .. } = &mut headers.network {
            ip.dont_fragment = dont_fragment;
        }
        self.frame.clear();
        self.frame.resize(headers.len_bytes(), 0);
        if headers.emit(&mut self.frame).is_err() {
            self.counters.unframed += 1;
            return;
        }
        parts.iter().for_each(|part| self.frame.extend_from_slice(part));
        self.sink.frame(time_ns, direction, comment, &self.frame);
    }
}

/// Returns the Identification for which the ICRC is valid, at the end or before in-band telemetry. Only peers
/// of this project send telemetry, with Identifications below [`MOST_SEGMENTS`].
fn find_identification(path: &Path, head: &[u8], tail: &[u8], hint: u16) -> Option<u16> {
    let before_trailer = Telemetry::split_off(head, tail)
        .and_then(|(head, tail, _)| identification_of_datagram(path, head, tail, hint));
    before_trailer
        .filter(|identification| *identification < MOST_SEGMENTS)
        .or_else(|| identification_of_datagram(path, head, tail, hint))
}

/// Returns the Identification for which the last four bytes are the ICRC: 0, `hint`, or one computed from it.
fn identification_of_datagram(path: &Path, head: &[u8], tail: &[u8], hint: u16) -> Option<u16> {
    let (head, tail, found) = split_icrc(head, tail)?;
    let envelope = Envelope::new(path, 0);
    let computed = icrc::compute(&envelope, head, tail);
    if computed == found {
        return Some(0);
    }
    if hint != 0 && icrc::compute(&envelope.with_identification(hint), head, tail) == found {
        return Some(hint);
    }
    icrc::identification_from_difference(computed ^ found, head.len() + tail.len())
}

/// Splits off the ICRC, which may lie in both parts.
fn split_icrc<'a>(head: &'a [u8], tail: &'a [u8]) -> Option<(&'a [u8], &'a [u8], u32)> {
    let covered = (head.len() + tail.len()).checked_sub(icrc::LEN)?;
    let mut found = [0; icrc::LEN];
    let bytes = head.iter().chain(tail).skip(covered);
    found.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    let (head, tail) = (head.get(..covered).unwrap_or(head), tail.get(..covered.saturating_sub(head.len()))?);
    Some((head, tail, u32::from_le_bytes(found)))
}

/// Returns a locally administered address with the last four bytes of an IP address.
fn ethernet_address(address: IpAddr) -> MacAddr {
    if let Some(group) = MacAddr::for_multicast(address) {
        return group;
    }
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    MacAddr([0x02, 0x00, a, b, c, d])
}

/// Comments on recorded packets.
#[cfg(feature = "fault")]
const DROPPED_SENT: &str = "dropped by --fault before it was sent";
const DROPPED_RECEIVED: &str = "dropped by --fault after it was received";
const WRONG_ICRC: &str = "the ICRC is wrong for every Identification; the one shown is made up";

#[cfg(test)]
mod tests;
