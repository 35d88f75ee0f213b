//! The blocks that the perftest programs (`ib_write_bw` and so on) exchange over TCP, or with `-R` over a
//! separate rdma_cm connection.
//!
//! All blocks have a fixed size. The client writes and then reads; the server reads and then writes. The set
//! of blocks depends on the test and the release, so every block is logged
//! (`ROCE_LOG=roce_measure::perf::exchange=debug`). Source: the behaviour of releases 6.06 and 6.24 of the
//! programs.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use roce_packet::{Gid, PathMtu, Psn, Qpn};
use tracing::{debug, warn};
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use roce::observe::Text;
use roce::tcp::Tcp;

use crate::harness::{Role, padded};

/// The announced release. Since release 6.28, the programs want to exchange a structure of a C compiler.
const VERSION: &[u8] = b"6.20";
/// The mark behind the NUL of the version. The programs stop reading at the NUL, and pad with zeros.
const OUR_MARK: &[u8] = b"roce 1";
/// The byte behind our mark: this side exchanges its settings next. Earlier releases of ours do not read it.
const SETTINGS_MARK: u8 = b'+';
/// Bytes of the block of settings.
const SETTINGS_LEN: usize = 192;
/// Maximum number of bytes that are read ahead; no block is longer.
const MOST_EARLY: usize = 256;
/// The advice for blocks that do not fit.
const SAME_OPTIONS: &str =
    "the other side runs another test; give both sides the same options (-a, -b, -D, -q, --reversed)";
/// The advice for an original that does nothing.
pub(super) const SAME_OPTIONS_THERE: &str =
    "check that perftest runs there with the same options (-a, -b, -D, -n, -q, --reversed)";
/// Time limit of a server for the whole set-up, in time limits of one block.
pub const SET_UP_PATIENCE: u32 = 2;
/// Without a sign of life of an original for this long, a warning names possible differences.
pub(super) const WARN_AFTER: Duration = Duration::from_secs(1);
/// The text that the originals send at the end.
const DONE: &[u8] = b"done\0";
/// Bytes of the version block.
const VERSION_LEN: usize = 16;
/// The oldest supported release.
const OLDEST: f64 = 5.70;
/// The first release whose number of iterations has 64 bits.
const WIDE_ITERATIONS: f64 = 5.33;
/// Bytes of a block of keys with a GID.
const KEYS_LEN: usize = 108;
/// Fields of such a block: five numbers, an address, the GID, a shared receive queue, and an empty one.
const KEYS_PARTS: usize = 6 + 16 + 2;
/// Bytes of a block of keys without a GID.
const KEYS_LEN_WITHOUT_GID: usize = 59;
/// Bytes of a block of keys over rdma_cm.
const KEYS_LEN_AS_STRUCTURE: usize = 56;

/// The address of one queue pair and its memory, for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// READs and atomics that the queue pair answers at once.
    pub out_reads: u32,
    /// The QP number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
    /// The key of the memory.
    pub rkey: u32,
    /// The first address of the memory.
    pub vaddr: u64,
    /// The GID.
    pub gid: Gid,
}

/// Keys as the programs send them over rdma_cm, every number in network order.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct KeysView {
    lid: U32,
    out_reads: U32,
    qpn: U32,
    psn: U32,
    rkey: U32,
    padding: U32,
    vaddr: U64,
    gid: [u8; 16],
    srq: U32,
    gid_index: U32,
}

const _: () = assert!(size_of::<KeysView>() == KEYS_LEN_AS_STRUCTURE);

impl Keys {
    fn to_wire(self) -> [u8; KEYS_LEN] {
        let gid: Vec<String> = self.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (qpn, psn) = (self.qpn.get(), self.psn.get());
        padded(&format!(
            "{:04x}:{:04x}:{qpn:06x}:{psn:06x}:{:08x}:{:016x}:{}:{:08x}:",
            0,
            self.out_reads,
            self.rkey,
            self.vaddr,
            gid.join(":"),
            0
        ))
    }

    /// Returns the structure that the programs send over rdma_cm.
    fn to_structure(self) -> [u8; KEYS_LEN_AS_STRUCTURE] {
        let zero = U32::ZERO;
        zerocopy::transmute!(KeysView {
            lid: zero,
            out_reads: self.out_reads.into(),
            qpn: self.qpn.get().into(),
            psn: self.psn.get().into(),
            rkey: self.rkey.into(),
            padding: zero,
            vaddr: self.vaddr.into(),
            gid: self.gid.0,
            srq: zero,
            gid_index: zero,
        })
    }

    /// Returns `None` unless QP number and PSN have 24 bits. The other fields can have any value.
    fn from_structure(wire: &[u8; KEYS_LEN_AS_STRUCTURE]) -> Option<Self> {
        let view: KeysView = zerocopy::transmute!(*wire);
        let [qpn, psn] = [view.qpn.get(), view.psn.get()];
        (qpn >> 24 == 0 && psn >> 24 == 0).then_some(Self {
            out_reads: view.out_reads.get(),
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            rkey: view.rkey.get(),
            vaddr: view.vaddr.get(),
            gid: Gid(view.gid),
        })
    }

    fn from_wire(wire: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(wire.split(|byte| *byte == 0).next()?).ok()?;
        if text.split(':').count() != KEYS_PARTS {
            return None;
        }
        let mut parts = text.split(':').map(|part| u64::from_str_radix(part, 16).ok());
        let mut next = |bits: u32| parts.next().flatten().filter(|value| bits == 64 || value >> bits == 0);
        let _lid = next(16)?;
        let out_reads = next(32)? as u32;
        let (qpn, psn) = (next(24)? as u32, next(24)? as u32);
        let rkey = next(32)? as u32;
        let vaddr = next(64)?;
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = next(8)? as u8;
        }
        Some(Self { out_reads, qpn: Qpn::new(qpn), psn: Psn::new(psn), rkey, vaddr, gid: Gid(gid) })
    }
}

/// The figures that one side sends to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes of a message.
    pub size: u64,
    /// Messages, all queue pairs together.
    pub iterations: u64,
    /// Peak bandwidth, in the unit of the table.
    pub peak: f64,
    /// Average bandwidth, in the unit of the table.
    pub average: f64,
    /// Millions of messages per second.
    pub rate: f64,
}

/// The settings that both sides agree on before they create queue pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Bytes that small messages are spread over, one after the other.
    pub cycle: usize,
    /// The alignment of messages, in bytes.
    pub cache_line: usize,
    /// The smaller of the two path MTUs.
    pub mtu: PathMtu,
    /// The release that the other side announced.
    pub version: f64,
    /// Whether the other side is this program, so that contents can be checked.
    pub is_ours: bool,
}

/// The behaviour of an original after the last block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterEnd {
    /// It says that it is done, or closes the connection.
    Ended,
    /// It sends another block.
    GoesOn,
    /// It does neither.
    Silent,
}

/// The stream that carries the blocks.
pub trait Stream: Read + Write {
    /// Returns whether a read would return at once, with bytes or because the connection has ended.
    ///
    /// # Errors
    ///
    /// The connection broke.
    fn has_input(&mut self) -> io::Result<bool>;

    /// Returns the time that time limits are measured with.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Stream for Tcp {
    fn has_input(&mut self) -> io::Result<bool> {
        Self::has_input(self)
    }
}

/// A connection over which blocks are exchanged.
#[derive(Debug)]
pub struct Link<S> {
    stream: S,
    /// Bytes that were read ahead.
    early: VecDeque<u8>,
    role: Role,
    patience: Duration,
    /// The deadline of a server for the set-up of its client.
    set_up_until: Option<Instant>,
    version: f64,
    blocks: u32,
    /// Whether keys are sent as structures.
    structures: bool,
    /// Whether the other side is an original, whose options are unknown.
    is_original: bool,
}

impl<S: Stream> Link<S> {
    /// Takes a connection. Reads of `stream` may time out early and often. A block fails `patience` after the
    /// last sign of life, in however many pieces it arrives. Until [`Self::end_set_up`], a server waits at
    /// most [`SET_UP_PATIENCE`] times `patience` for all blocks, because its client is not authenticated.
    pub fn new(stream: S, role: Role, patience: Duration) -> Self {
        let early = VecDeque::new();
        let (structures, is_original) = (false, false);
        let set_up = patience.checked_mul(SET_UP_PATIENCE).filter(|_| role == Role::Server);
        let set_up_until = set_up.and_then(|limit| stream.now().checked_add(limit));
        let version = OLDEST;
        Self { stream, early, role, patience, set_up_until, version, blocks: 0, structures, is_original }
    }

    /// Removes the time limit of the set-up. Blocks may now take as long as there are signs of life.
    pub fn end_set_up(&mut self) {
        self.set_up_until = None;
    }

    /// Sends keys as structures, as the programs do over rdma_cm.
    #[must_use]
    pub fn with_structures(self) -> Self {
        Self { structures: true, ..self }
    }

    /// Checks, without waiting, whether the other side has sent something, and keeps it for the next block.
    ///
    /// # Errors
    ///
    /// The other side has closed the connection, or the connection broke.
    pub fn look(&mut self) -> io::Result<bool> {
        while self.early.len() < MOST_EARLY && self.stream.has_input()? {
            let mut room = [0; MOST_EARLY];
            let room = &mut room[..MOST_EARLY - self.early.len()];
            match self.stream.read(room) {
                Ok(0) => return Err(closed()),
                Ok(count) => self.early.extend(&room[..count]),
                Err(error) if is_early(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(!self.early.is_empty())
    }

    /// Returns the role of this side.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Exchanges one block. While nothing arrives, `alive` says whether there are other signs of life.
    ///
    /// # Errors
    ///
    /// The connection is closed or broken, or no sign of life arrives for too long.
    pub fn swap<const N: usize>(
        &mut self,
        what: &str,
        ours: &[u8; N],
        alive: &mut dyn FnMut() -> bool,
    ) -> io::Result<[u8; N]> {
        self.swap_checked(what, ours, |_| Ok(()), alive, &mut || ())
    }

    fn swap_checked<const N: usize>(
        &mut self,
        what: &str,
        ours: &[u8; N],
        check: fn(&[u8]) -> io::Result<()>,
        alive: &mut dyn FnMut() -> bool,
        arrived: &mut dyn FnMut(),
    ) -> io::Result<[u8; N]> {
        let mut theirs = [0; N];
        if self.role == Role::Client {
            self.write(ours)?;
            self.read(&mut theirs, check, alive)?;
            arrived();
        } else {
            self.read(&mut theirs, check, alive)?;
            arrived();
            self.write(ours)?;
        }
        self.blocks += 1;
        let block = self.blocks;
        debug!(block, what, sent = %Text::new(ours), received = %Text::new(&theirs));
        Ok(theirs)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // One write for each block, because the programs read only once.
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    fn read_some(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.early.is_empty() {
            return self.stream.read(room);
        }
        // `read` returns only the first of the two slices of a deque.
        self.early.make_contiguous();
        self.early.read(room)
    }

    /// Fills `room`; `check` inspects each piece that arrives.
    fn read(
        &mut self,
        mut room: &mut [u8],
        check: fn(&[u8]) -> io::Result<()>,
        alive: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        // A piece of a block is not a sign of life, because single bytes could hold this side forever.
        let mut last = self.stream.now();
        let mut is_warned = !self.is_original;
        let mut has_begun = false;
        while !room.is_empty() {
            match self.read_some(room) {
                Ok(0) => return Err(closed()),
                // Over rdma_cm, every block is one message.
                Ok(count) if self.structures && count < room.len() => {
                    let text = format!(
                        "received a block of {count} bytes instead of {}: {SAME_OPTIONS}",
                        room.len()
                    );
                    return Err(invalid(text));
                }
                Ok(count) => {
                    if !self.structures {
                        check(&room[..count])?;
                    }
                    room = room.get_mut(count..).unwrap_or_default();
                    (is_warned, has_begun) = (true, true);
                }
                Err(error) if is_early(&error) => {
                    if alive() {
                        last = self.stream.now();
                    } else if !is_warned && self.stream.now() - last > WARN_AFTER {
                        is_warned = true;
                        warn!("the other side has sent nothing for a second; {}", SAME_OPTIONS_THERE);
                    }
                }
                Err(error) => return Err(error),
            }
            if !room.is_empty() {
                self.check_time(last, has_begun)?;
            }
        }
        Ok(())
    }

    /// Fails if the block that has been awaited since `last`, or the whole set-up, takes too long.
    fn check_time(&self, last: Instant, has_begun: bool) -> io::Result<()> {
        let late = |text| Err(io::Error::new(ErrorKind::TimedOut, text));
        let seconds = self.patience.as_secs();
        if self.set_up_until.is_some_and(|until| self.stream.now() > until) {
            return late(format!("the set-up takes longer than {} s", u64::from(SET_UP_PATIENCE) * seconds));
        }
        if self.stream.now() - last > self.patience {
            let what = if has_begun { "only a part of a block" } else { "nothing" };
            return late(format!("received {what} within {seconds} s"));
        }
        Ok(())
    }

    /// Exchanges releases, geometry and path MTU, and between two sides of this program the settings.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::swap`]; or another program, too old a release, or other settings.
    pub fn agree(&mut self, mtu: PathMtu, settings: &[String]) -> io::Result<Agreement> {
        let no_other_signs = &mut || false;
        let mut ours = [0; VERSION_LEN];
        ours[..VERSION.len()].copy_from_slice(VERSION);
        ours[VERSION.len() + 1..][..OUR_MARK.len()].copy_from_slice(OUR_MARK);
        ours[VERSION.len() + 1 + OUR_MARK.len()] = SETTINGS_MARK;
        let theirs = self.swap("version", &ours, no_other_signs)?;
        let (version, rest) = theirs.split_at(theirs.iter().position(|byte| *byte == 0).unwrap_or(0));
        let version = std::str::from_utf8(version).ok().and_then(|text| text.parse::<f64>().ok());
        let Some(version) = version.filter(|version| version.is_finite()) else {
            return Err(invalid(format!("\"{}\" is not a release of perftest", Text::new(&theirs))));
        };
        if version < OLDEST {
            return Err(invalid(format!("release {version} of perftest is too old; install 5.70 or newer")));
        }
        self.version = version;
        let mark = rest.get(1..).and_then(|rest| rest.strip_prefix(OUR_MARK));
        let is_ours = mark.is_some();
        self.is_original = !is_ours;
        if mark.is_some_and(|rest| rest.first() == Some(&SETTINGS_MARK)) {
            self.compare(settings)?;
        }
        let cycle = self.larger("cycle buffer", 4096)?;
        let cache_line = self.larger("cache line", 64)?;
        let code = self.swap("path MTU", &[b'0' + mtu.code(), 0], no_other_signs)?;
        // After an unknown code, this side keeps its own path MTU, as the programs do.
        let theirs = PathMtu::from_code(code[0].wrapping_sub(b'0')).unwrap_or(mtu);
        let mtu = if theirs.bytes() < mtu.bytes() { theirs } else { mtu };
        Ok(Agreement { cycle, cache_line, mtu, version, is_ours })
    }

    /// Exchanges the settings that must agree, and compares them.
    fn compare(&mut self, settings: &[String]) -> io::Result<()> {
        let ours: [u8; SETTINGS_LEN] = padded(&settings.join(";"));
        let theirs = self.swap("settings", &ours, &mut || false)?;
        let text = theirs.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut differing = Vec::new();
        // A later release may append more settings.
        for (ours, theirs) in settings.iter().zip(text.split(|byte| *byte == b';')) {
            if ours.as_bytes() != theirs {
                let theirs = Text::new(theirs.get(..40).unwrap_or(theirs));
                differing.push(format!("this side has {ours}, the other side has {theirs}"));
            }
        }
        if differing.is_empty() { Ok(()) } else { Err(invalid(differing.join("; "))) }
    }

    fn larger(&mut self, what: &str, ours: u32) -> io::Result<usize> {
        let theirs = u32::from_be_bytes(self.swap(what, &ours.to_be_bytes(), &mut || false)?);
        let most = 1 << 20;
        if theirs > most || !theirs.is_power_of_two() {
            return Err(invalid(format!(
                "{theirs} is not a valid {what}: a power of two up to {most} is expected"
            )));
        }
        Ok(theirs.max(ours) as usize)
    }

    /// Exchanges the keys of one queue pair.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::swap`]; or the other side sends something else, or no GID.
    pub fn keys(&mut self, what: &str, ours: Keys, alive: &mut dyn FnMut() -> bool) -> io::Result<Keys> {
        self.keys_with(what, ours, alive, &mut || ())
    }

    /// Exchanges keys. Calls `arrived` when the other side's keys are here, at a server before it answers.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::keys`].
    pub fn keys_with(
        &mut self,
        what: &str,
        ours: Keys,
        alive: &mut dyn FnMut() -> bool,
        arrived: &mut dyn FnMut(),
    ) -> io::Result<Keys> {
        if self.structures {
            let theirs = self.swap_checked(what, &ours.to_structure(), |_| Ok(()), alive, arrived)?;
            return Keys::from_structure(&theirs).ok_or_else(|| no_keys(&theirs));
        }
        let theirs = match self.swap_checked(what, &ours.to_wire(), check_text, alive, arrived) {
            Err(error) if error.kind() == ErrorKind::TimedOut && what == FIRST_KEYS => {
                let text = format!(
                    "{error}; a program without a GID sends only {KEYS_LEN_WITHOUT_GID} bytes: start it with -x INDEX"
                );
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            other => other?,
        };
        Keys::from_wire(&theirs).ok_or_else(|| no_keys(&theirs))
    }

    /// Exchanges the block after which both sides exit.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::keys`].
    pub fn final_keys(&mut self, what: &str, ours: Keys, alive: &mut dyn FnMut() -> bool) -> io::Result<()> {
        match self.keys(what, ours, alive) {
            // The client has sent everything. It exits as soon as it has our block. Over rdma_cm, it may exit
            // before its acknowledgement has arrived here.
            Err(error) if self.role == Role::Server && error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.map(drop),
        }
    }

    /// Sends "done" to an original, and waits until the original sends it or closes the connection. Over
    /// rdma_cm, the originals do not send it.
    pub fn part(&mut self, patience: Duration) -> AfterEnd {
        if self.structures || !self.is_original {
            return AfterEnd::Ended;
        }
        // The original may have closed the connection.
        let _ = self.write(DONE);
        let end = Instant::now() + patience;
        while self.look().is_ok() {
            let begin = self.early.iter().zip(DONE).take_while(|(theirs, done)| theirs == done).count();
            match self.early.len() {
                come if come > begin && begin < DONE.len() => return AfterEnd::GoesOn,
                _ if begin == DONE.len() => return AfterEnd::Ended,
                _ if Instant::now() > end => return AfterEnd::Silent,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        AfterEnd::Ended
    }

    /// Exchanges reports.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::swap`].
    pub fn report(&mut self, ours: &Report) -> io::Result<Report> {
        let no_other_signs = &mut || false;
        let size =
            self.swap_checked("size", &ours.size.to_be_bytes(), check_number, no_other_signs, &mut || ())?;
        let size = u64::from_be_bytes(size);
        let iterations = if self.version >= WIDE_ITERATIONS {
            u64::from_be_bytes(self.swap("iterations", &ours.iterations.to_be_bytes(), no_other_signs)?)
        } else {
            let iterations = u32::try_from(ours.iterations).unwrap_or(u32::MAX);
            u32::from_be_bytes(self.swap("iterations", &iterations.to_be_bytes(), no_other_signs)?).into()
        };
        let mut number =
            |what, ours: f64| self.swap(what, &ours.to_be_bytes(), no_other_signs).map(f64::from_be_bytes);
        let (peak, average) = (number("peak", ours.peak)?, number("average", ours.average)?);
        Ok(Report { size, iterations, peak, average, rate: number("message rate", ours.rate)? })
    }
}

/// The name of the first keys that [`Link::keys`] exchanges.
pub const FIRST_KEYS: &str = "keys";

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")
}

/// Refuses a report. Keys are text, but a report begins with a number whose upper bytes are zero.
fn check_text(piece: &[u8]) -> io::Result<()> {
    match piece.first() {
        Some(0) if piece.len() > 1 => {
            Err(invalid(format!("received a report instead of keys: {SAME_OPTIONS}")))
        }
        _ => Ok(()),
    }
}

fn check_number(piece: &[u8]) -> io::Result<()> {
    if piece.len() > 1 && piece.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b':') {
        return Err(invalid(format!("received keys instead of a report: {SAME_OPTIONS}")));
    }
    Ok(())
}

fn no_keys(block: &[u8]) -> io::Error {
    invalid(format!("\"{}\" does not contain the keys of perftest", Text::new(block)))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A stream that returns recorded bytes and stores written bytes.
    struct Recorded<'a>(&'a [u8], Vec<u8>);

    impl Read for Recorded<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.0.read(room)
        }
    }

    impl Write for Recorded<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Recorded<'_> {
        fn has_input(&mut self) -> io::Result<bool> {
            Ok(!self.0.is_empty())
        }
    }

    fn link(bytes: &[u8]) -> Link<Recorded<'_>> {
        Link::new(Recorded(bytes, Vec::new()), Role::Client, Duration::from_millis(20))
    }

    fn keys() -> Keys {
        let gid = Gid::from_ipv4(std::net::Ipv4Addr::new(198, 18, 0, 2));
        let (qpn, psn) = (Qpn::new(0x11), Psn::new(0xabcdef));
        Keys { out_reads: 16, qpn, psn, rkey: 0x1234, vaddr: 0x7f01_2345_6000, gid }
    }

    /// The acknowledgement of the last block may be lost after the client has exited.
    #[test]
    fn a_server_whose_last_block_is_not_acknowledged_has_finished_nevertheless() {
        struct Leaving(VecDeque<u8>);
        impl Read for Leaving {
            fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
                self.0.read(room)
            }
        }
        impl Write for Leaving {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl Stream for Leaving {
            fn has_input(&mut self) -> io::Result<bool> {
                Ok(true)
            }
        }
        let leaving = || Leaving(keys().to_wire().into_iter().collect());
        let patience = Duration::from_millis(20);
        let mut server = Link::new(leaving(), Role::Server, patience);
        assert!(server.final_keys("the end", keys(), &mut || false).is_ok());
        let mut server = Link::new(Leaving(VecDeque::new()), Role::Server, patience);
        assert!(server.final_keys("the end", keys(), &mut || false).is_err());
        let mut client = Link::new(leaving(), Role::Client, patience);
        assert!(client.final_keys("the end", keys(), &mut || false).is_err());
    }

    #[test]
    fn keys_are_written_as_the_programs_do() {
        let wire = keys().to_wire();
        assert_eq!(
            &wire[..107],
            b"0000:0010:000011:abcdef:00001234:00007f0123456000:\
              00:00:00:00:00:00:00:00:00:00:ff:ff:c6:12:00:02:00000000:"
        );
        assert_eq!(wire[107], 0);
        assert_eq!(Keys::from_wire(&wire), Some(keys()));
    }

    #[test]
    fn keys_over_rdma_cm_are_the_structure_of_the_programs() {
        let wire = keys().to_structure();
        let parts: [&[u8]; 7] = [
            &[0, 0, 0, 0],
            &[0, 0, 0, 0x10],
            &[0, 0, 0, 0x11, 0, 0xab, 0xcd, 0xef],
            &[0, 0, 0x12, 0x34, 0, 0, 0, 0],
            &[0, 0, 0x7f, 0x01, 0x23, 0x45, 0x60, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 2],
            &[0; 8],
        ];
        assert_eq!(wire[..], parts.concat());
        assert_eq!(Keys::from_structure(&wire), Some(keys()));
        for at in [8, 12] {
            let mut bad = wire;
            bad[at] = 1;
            assert_eq!(Keys::from_structure(&bad), None);
        }
    }

    #[test]
    fn what_holds_no_keys_is_refused_and_never_panics() {
        let good = keys().to_wire();
        for place in 0..98 {
            for byte in [0, b':', b'g', b'-', b'+', 0xff] {
                let mut bad = good;
                bad[place] = byte;
                assert!(Keys::from_wire(&bad).is_none() || bad == good || byte == b'+', "{place} {byte}");
            }
        }
    }

    const GREETING: &[u8] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\x10\x00\x00\x00\x00\x804\0";

    #[test]
    fn the_larger_geometry_and_the_smaller_mtu_win() {
        let mut original = link(GREETING);
        let agreement = original.agree(PathMtu::Mtu4096, &[]).unwrap();
        let expected = (4096, 128, PathMtu::Mtu2048, false);
        assert_eq!((agreement.cycle, agreement.cache_line, agreement.mtu, agreement.is_ours), expected);
        assert_eq!(original.stream.1, b"6.20\0roce 1+\0\0\0\0\x00\x00\x10\x00\x00\x00\x00\x405\0");
        // These bytes are those of an earlier release of ours, which does not exchange settings.
        let ours: Vec<u8> =
            original.stream.1.iter().map(|byte| if *byte == b'+' { 0 } else { *byte }).collect();
        let agreement = link(&ours).agree(PathMtu::Mtu1024, &[]).unwrap();
        assert!(agreement.is_ours && agreement.mtu == PathMtu::Mtu1024, "{agreement:?}");
    }

    fn settings(values: &[&str]) -> Vec<String> {
        values.iter().map(|value| (*value).to_owned()).collect()
    }

    /// Returns the bytes that one of our sides sends to another: release, settings, geometry, path MTU.
    fn opening(values: &[&str]) -> Vec<u8> {
        let mut bytes = b"6.20\0roce 1+\0\0\0\0".to_vec();
        bytes.extend(settings(values).join(";").bytes());
        bytes.resize(VERSION_LEN + SETTINGS_LEN, 0);
        bytes.extend(b"\x00\x00\x10\x00\x00\x00\x00\x405\0");
        bytes
    }

    #[test]
    fn settings_that_differ_are_named_and_show_no_control_characters() {
        let ours = settings(&["ib_send_bw", "-s 100", "no -b"]);
        let agree = |theirs: &[&str]| link(&opening(theirs)).agree(PathMtu::Mtu1024, &ours);
        assert!(agree(&["ib_send_bw", "-s 100", "no -b"]).unwrap().is_ours);
        assert!(agree(&["ib_send_bw", "-s 100", "no -b", "of a later release"]).is_ok());
        let error = agree(&["ib_send_bw", "-s 90", "-b"]).unwrap_err().to_string();
        assert!(error.contains("this side has -s 100, the other side has -s 90"), "{error}");
        assert!(error.contains("this side has no -b, the other side has -b"), "{error}");
        let error = agree(&["ib_send_bw", "\x1b[31mred", "no -b"]).unwrap_err().to_string();
        assert!(error.contains(r"\u{1b}[31mred") && !error.contains('\x1b'), "{error}");
        let error = agree(&["ib_send_bw", "a\u{202e}b\u{9b}", "no -b"]).unwrap_err().to_string();
        assert!(error.contains(r"a\u{202e}b\u{9b}"), "as every text of a peer: {error}");
    }

    /// Regression: refusing a report instead of keys took 30 s, and keys were read as a report of 2^61 bytes.
    #[test]
    fn blocks_of_another_test_are_named_at_once() {
        let mut report = 65_536_u64.to_be_bytes().to_vec();
        report.extend([0; 32]);
        let error = link(&report).keys("a barrier", keys(), &mut || true).unwrap_err().to_string();
        assert!(error.contains("received a report instead of keys") && error.contains("-b"), "{error}");
        let error = link(&keys().to_wire()).report(&Report::default()).unwrap_err().to_string();
        assert!(error.contains("received keys instead of a report"), "{error}");
        let error = link(&report[..8]).with_structures().keys("a barrier", keys(), &mut || true).unwrap_err();
        assert!(error.to_string().contains("received a block of 8 bytes instead of 56"), "{error}");
    }

    /// An original with `-a` continues after the only size of a side without `-a`.
    #[test]
    fn an_original_that_goes_on_after_the_end_is_noticed() {
        let after = |bytes: &[u8]| {
            let mut link = link(bytes);
            link.is_original = true;
            let after = link.part(Duration::from_millis(10));
            (after, link.stream.1)
        };
        assert_eq!(after(b"done\0"), (AfterEnd::Ended, b"done\0".to_vec()));
        assert_eq!(after(&keys().to_wire()).0, AfterEnd::GoesOn);
        assert_eq!(after(b"").0, AfterEnd::Silent);
        assert_eq!(after(b"do").0, AfterEnd::Silent, "not all of it");
        let wire = keys().to_wire();
        let mut over_rdma_cm = link(&wire).with_structures();
        assert_eq!(over_rdma_cm.part(Duration::from_millis(10)), AfterEnd::Ended);
        assert_eq!(over_rdma_cm.stream.1, b"", "nothing may be said there");
    }

    #[test]
    fn what_is_read_ahead_belongs_to_the_next_block() {
        let wire = keys().to_wire();
        let mut link = link(&wire);
        assert!(link.look().unwrap());
        assert_eq!(link.keys("a barrier", keys(), &mut || false).unwrap(), keys());
        assert!(!link.look().unwrap(), "nothing more has come");
    }

    /// A stream that returns one byte for each read, after a delay by its own clock.
    struct Dripping<'a> {
        bytes: &'a [u8],
        time_of_a_byte: Duration,
        now: Instant,
    }

    impl<'a> Dripping<'a> {
        fn new(bytes: &'a [u8]) -> Self {
            Self { bytes, time_of_a_byte: Duration::from_millis(10), now: Instant::now() }
        }
    }

    impl Read for Dripping<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.now += self.time_of_a_byte;
            let count = room.len().min(1);
            self.bytes.read(&mut room[..count])
        }
    }

    impl Write for Dripping<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Dripping<'_> {
        fn has_input(&mut self) -> io::Result<bool> {
            Ok(true)
        }

        fn now(&self) -> Instant {
            self.now
        }
    }

    /// Regression: each byte restarted the time limit.
    #[test]
    fn a_block_that_comes_byte_by_byte_is_given_up_in_time() {
        for role in [Role::Client, Role::Server] {
            let dripping = Dripping::new(&[0; 1000]);
            let begun = dripping.now;
            let mut link = Link::new(dripping, role, Duration::from_millis(100));
            let error = link.swap("a block", &[0; 900], &mut || false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(error.to_string().contains("received only a part of a block"), "{error}");
            assert_eq!(link.stream.now - begun, Duration::from_millis(110));
        }
    }

    /// Regression: blocks that each arrived in time, and packets of a living client, held a server forever.
    #[test]
    fn the_blocks_of_the_set_up_have_a_limit_together() {
        let dripping = |role| Link::new(Dripping::new(&[0; 1000]), role, Duration::from_millis(100));
        let blocks = |link: &mut Link<Dripping<'static>>| {
            (0..100).find_map(|_| link.swap("a block", &[0; 4], &mut || true).err())
        };
        let mut limited = dripping(Role::Server);
        let begun = limited.stream.now;
        let error = blocks(&mut limited).expect("a limit");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("the set-up takes longer than"), "{error}");
        assert_eq!(limited.stream.now - begun, Duration::from_millis(u64::from(100 * SET_UP_PATIENCE + 10)));
        // A client has chosen its server, and a measurement has no time limit.
        assert!(blocks(&mut dripping(Role::Client)).is_none());
        let mut measuring = dripping(Role::Server);
        measuring.end_set_up();
        assert!(blocks(&mut measuring).is_none());
        // The longest patience does not overflow.
        let _ = Link::new(Dripping::new(&[]), Role::Server, Duration::MAX);
    }

    #[test]
    fn strangers_and_old_releases_are_refused_with_a_reason() {
        for (bytes, part) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "not a release of perftest"),
            (b"5.10\0\0\0\0\0\0\0\0\0\0\0\0", "too old"),
            (b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\x00\x00", "not a valid cycle buffer"),
            (b"6.06", "closed the connection"),
            (b"nan\0\0\0\0\0\0\0\0\0\0\0\0\0", "not a release"),
        ] {
            let error = link(bytes).agree(PathMtu::Mtu1024, &[]).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn reports_go_field_by_field_in_network_byte_order() {
        let report = Report { size: 65_536, iterations: 5000, peak: 1.5, average: 1.25, rate: 0.5 };
        let mut first = link(&[0; 40]);
        first.report(&report).unwrap();
        let written = first.stream.1;
        assert_eq!(written.len(), 40);
        assert_eq!(written[16..24], 1.5_f64.to_be_bytes());
    }
}
