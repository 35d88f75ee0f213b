//! Sending: datagrams are written into one area, joined into superpackets, and passed to the kernel in runs.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;

use roce_packet::{Encapsulation, Envelope, Path, Telemetry, icrc};
use roce_transport::{Batch, Instant, Transmit, TxSlot};
use socket2::{SockAddr, Socket};

use super::socket::DEFAULT_HOP_LIMIT;
use crate::MAX_DATAGRAM;
use crate::cmsg::{ControlWriter, space};
use crate::counters::counters;
use crate::mmsg;
use crate::sockets::with_scope;

/// The sockets that send datagrams: the main one, and one for each other source port.
pub(super) struct Sockets {
    pub(super) main: Socket,
    pub(super) others: Vec<SourceSocket>,
    pub(super) local: SocketAddr,
    /// The interface of link-local destinations.
    pub(super) index: u32,
    pub(super) peer_port: u16,
}

/// A socket for a source port.
pub(super) struct SourceSocket {
    pub(super) port: u16,
    pub(super) socket: Socket,
    /// Whether no path uses the socket any more.
    pub(super) is_released: bool,
}

impl Sockets {
    /// Returns the position of the socket for a source port; 0 is the main socket.
    pub(super) fn find(&self, source_port: u16) -> Option<usize> {
        if source_port == self.local.port() {
            return Some(0);
        }
        self.others.iter().position(|other| other.port == source_port).map(|place| place + 1)
    }

    /// Returns the socket for a source port other than the main one's.
    pub(super) fn other(&mut self, source_port: u16) -> Option<&mut SourceSocket> {
        self.others.iter_mut().find(|other| other.port == source_port)
    }

    fn get(&self, place: usize) -> &Socket {
        match place.checked_sub(1).and_then(|place| self.others.get(place)) {
            Some(other) => &other.socket,
            None => &self.main,
        }
    }
}

counters! {
    pub(super) struct Counters {
        /// Datagrams sent.
        datagrams => "udp_tx_datagrams",
        /// Bytes of the datagrams sent, BTH to ICRC.
        bytes => "udp_tx_bytes",
        /// Messages given to the kernel; one with segmentation offload carries several datagrams.
        messages => "udp_tx_messages",
        /// System calls that sent.
        calls => "udp_tx_calls",
        /// Attempts to send with a full send buffer of the socket; the datagrams stay and are tried again.
        blocked => "udp_tx_blocked",
        /// Datagrams dropped because they are too long for a link on the path.
        too_long => "udp_tx_too_long",
        /// Datagrams dropped because the kernel refused them.
        refused => "udp_tx_refused",
        /// Datagrams dropped because a UDP socket cannot send on their path.
        bad_path => "udp_tx_bad_path",
        /// Datagrams whose ICRC was adapted to the IP header that the kernel writes.
        resealed => "udp_tx_resealed",
    }
}

/// The datagrams that are waiting to be sent.
pub(super) struct Transmitter {
    /// Used as a ring: superpackets are contiguous and never wrap around the end.
    area: Vec<u8>,
    /// Position of the next datagram.
    write: usize,
    /// Whether `write` has passed the end and the oldest superpacket has not.
    wrapped: bool,
    pending: VecDeque<Superpacket>,
    batch: Batch,
    lent: bool,
    /// Maximum number of datagrams in a superpacket; 1 if the system does not split superpackets.
    pub(super) most_segments: u16,
    /// Time of the next attempt after the kernel had no room.
    pub(super) retry_at: Option<Instant>,
    /// Number of errors that other hosts reported about earlier datagrams.
    pub(super) reported_errors: u64,
    /// The error number of the most recently reported refusal.
    reported_refusal: i32,
    pub(super) counters: Counters,
}

/// Contiguous datagrams of one path; all except the last have the length of the first.
struct Superpacket {
    bytes: Range<usize>,
    segment_len: usize,
    segments: usize,
    /// Position of the socket in [`Sockets`].
    socket: usize,
    to: SockAddr,
    path: Path,
    /// Whether its source port differs from that of its path, so the ICRC is adapted.
    other_port: bool,
    /// Whether its datagrams leave one at a time, because segmentation was refused; ICRCs are adapted.
    apart: bool,
    /// Whether the first datagram, if it can be sent alone, shows that the system refused segmentation.
    suspect: bool,
    /// Number of failed attempts.
    failures: u8,
    /// Number of attempts for which the kernel had no room or no memory for the next datagram.
    blocked: u32,
}

impl Superpacket {
    /// Returns the number of bytes in the next message.
    fn next_len(&self) -> usize {
        if self.apart { self.segment_len.min(self.bytes.len()) } else { self.bytes.len() }
    }

    const fn next_segments(&self) -> usize {
        if self.apart { 1 } else { self.segments }
    }

    const fn offload(&self) -> bool {
        self.segments > 1 && !self.apart
    }

    /// Removes the datagrams of one message and returns whether none is left.
    fn advance(&mut self) -> bool {
        let (len, segments) = (self.next_len(), self.next_segments());
        self.bytes.start += len;
        self.segments -= segments;
        self.failures = 0;
        self.blocked = 0;
        self.segments == 0
    }
}

impl Transmitter {
    pub(super) fn new(most_segments: u16) -> Self {
        Self {
            area: vec![0; AREA_LEN],
            write: 0,
            wrapped: false,
            pending: VecDeque::with_capacity(MAX_PENDING),
            batch: Batch::NONE,
            lent: false,
            most_segments,
            retry_at: None,
            reported_errors: 0,
            reported_refusal: 0,
            counters: Counters::default(),
        }
    }

    /// Lends room for the longest datagram, if possible right behind the last one.
    pub(super) fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.lent = false;
        let Some(oldest) = self.pending.front().map(|superpacket| superpacket.bytes.start) else {
            (self.write, self.wrapped, self.batch) = (0, false, self.no_batch());
            return self.lend();
        };
        if self.pending.len() == MAX_PENDING {
            return None;
        }
        if !self.wrapped && self.write + MAX_DATAGRAM > AREA_LEN {
            (self.write, self.wrapped, self.batch) = (0, true, self.no_batch());
        }
        if self.wrapped && self.write + MAX_DATAGRAM > oldest {
            return None;
        }
        self.lend()
    }

    /// Returns the state without an open superpacket: whether one may begin.
    const fn no_batch(&self) -> Batch {
        if self.most_segments > 1 { Batch::EMPTY } else { Batch::NONE }
    }

    fn lend(&mut self) -> Option<TxSlot<'_>> {
        let buffer = self.area.get_mut(self.write..self.write + MAX_DATAGRAM)?;
        self.lent = true;
        Some(TxSlot { buffer, batch: &self.batch })
    }

    /// Takes the datagram that was written into the slot.
    pub(super) fn commit(&mut self, transmit: &Transmit, sockets: &Sockets) {
        if !mem::take(&mut self.lent) || transmit.len > MAX_DATAGRAM || transmit.len <= icrc::LEN {
            self.counters.bad_path += 1;
            return;
        }
        let bytes = self.write..self.write + transmit.len;
        if self.batch.accepts(transmit)
            && let Some(last) = self.pending.back_mut()
        {
            if last.other_port {
                let changed = Envelope { source_port: sockets.local.port(), ..envelope(transmit) };
                reseal(&mut self.area[bytes.clone()], &envelope(transmit), &changed);
                self.counters.resealed += 1;
            }
            last.bytes.end = bytes.end;
            last.segments += 1;
            self.batch.push(transmit);
            self.write = bytes.end;
            return;
        }
        let Some(superpacket) = self.begin(transmit, bytes.clone(), sockets) else {
            self.counters.bad_path += 1;
            return;
        };
        self.pending.push_back(superpacket);
        self.write = bytes.end;
        self.batch = match self.most_segments {
            1 => Batch::NONE,
            most => Batch::start(transmit, most, MAX_SUPERPACKET_LEN),
        };
    }

    /// Returns the superpacket that begins with this datagram, or `None` if a UDP socket cannot send it.
    fn begin(&mut self, transmit: &Transmit, bytes: Range<usize>, sockets: &Sockets) -> Option<Superpacket> {
        let path = &transmit.path;
        let local = sockets.local.ip();
        if path.encapsulation != Encapsulation::RoceV2
            || path.source != local
            || path.destination.is_ipv4() != local.is_ipv4()
        {
            return None;
        }
        let socket = sockets.find(path.source_port);
        let other_port = socket.is_none();
        let mut made_for = envelope(transmit);
        // The first segment of every send has Identification 0.
        let mut will_be = made_for.with_identification(0);
        if other_port {
            will_be.source_port = sockets.local.port();
        }
        if !local.is_ipv4() {
            made_for.identification = 0;
        }
        if made_for != will_be {
            reseal(&mut self.area[bytes.clone()], &made_for, &will_be);
            self.counters.resealed += 1;
        }
        Some(Superpacket {
            segment_len: bytes.len(),
            bytes,
            segments: 1,
            socket: socket.unwrap_or(0),
            to: with_scope(path.destination, sockets.peer_port, sockets.index).into(),
            path: *path,
            other_port,
            apart: false,
            suspect: false,
            failures: 0,
            blocked: 0,
        })
    }

    /// Returns whether no datagram waits for the kernel, so that no position of a socket is in use.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Sends as much as the kernel accepts.
    ///
    /// # Errors
    ///
    /// Fails if the socket itself is broken.
    pub(super) fn flush(&mut self, now: Instant, sockets: &Sockets) -> io::Result<()> {
        self.retry_at = None;
        self.batch = Batch::NONE;
        while !self.pending.is_empty() {
            self.counters.calls += 1;
            match self.send_run(sockets) {
                Ok(sent) => self.sent(sent),
                Err(error) => match error.raw_os_error().unwrap_or(0) {
                    libc::EINTR => {}
                    // ENOBUFS: the interface's queue is full, or a filter drops the datagram. ENOMEM: there
                    // is no memory, or the interface cannot split the superpacket.
                    number @ (libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        if self.may_retry(number) {
                            self.counters.blocked += 1;
                            self.retry_at = Some(now.plus_nanos(RETRY_AFTER_NS));
                            return Ok(());
                        }
                    }
                    libc::EBADF | libc::ENOTSOCK | libc::EFAULT => return Err(error),
                    number => self.failed(number),
                },
            }
        }
        Ok(())
    }

    /// Passes the oldest superpackets of one socket to the kernel and returns how many it accepted.
    fn send_run(&self, sockets: &Sockets) -> io::Result<usize> {
        let Some(first) = self.pending.front() else { return Ok(0) };
        let mut is_over = false;
        let run = self.pending.iter().take_while(|superpacket| {
            // The rest of a superpacket that was taken apart must leave before the next superpacket.
            let was_apart = mem::replace(&mut is_over, superpacket.apart);
            superpacket.socket == first.socket && !was_apart
        });
        let socket = sockets.get(first.socket).as_fd();
        mmsg::send_run::<_, RUN, CONTROL_LEN>(socket, run, |superpacket, control| {
            let start = superpacket.bytes.start;
            let mut writer = ControlWriter::new(control.bytes_mut());
            write_control(&mut writer, superpacket);
            (&self.area[start..start + superpacket.next_len()], Some(&superpacket.to), writer.len())
        })
    }

    /// Accounts for messages that the kernel accepted.
    fn sent(&mut self, messages: usize) {
        self.counters.messages += messages as u64;
        for _ in 0..messages {
            let Some(superpacket) = self.pending.front_mut() else { return };
            self.counters.datagrams += superpacket.next_segments() as u64;
            self.counters.bytes += superpacket.next_len() as u64;
            if mem::take(&mut superpacket.suspect) && mem::replace(&mut self.most_segments, 1) > 1 {
                tracing::warn!("the system refuses segmentation offload; continuing without it");
            }
            if superpacket.advance() {
                self.forget_oldest();
            }
        }
    }

    /// Returns whether the oldest superpacket stays queued after the kernel had no room or no memory for it.
    /// Otherwise takes it apart or drops it, because one that is never accepted must not block the others.
    pub(super) fn may_retry(&mut self, number: i32) -> bool {
        let Some(superpacket) = self.pending.front_mut() else { return false };
        // EAGAIN concerns the socket, and ends as soon as the kernel has sent a datagram.
        superpacket.blocked += u32::from(number != libc::EAGAIN);
        let is_last = superpacket.blocked > MAX_BLOCKED;
        if number == libc::ENOMEM && superpacket.offload() {
            // Memory may also have been short, so later superpackets are tried whole.
            self.take_apart(false);
            return false;
        }
        if is_last {
            self.refused(number);
            if self.pending.front_mut().is_some_and(Superpacket::advance) {
                self.forget_oldest();
            }
        }
        !is_last
    }

    /// Counts and reports datagrams that the system refused.
    fn refused(&mut self, number: i32) {
        let Some(superpacket) = self.pending.front() else { return };
        self.counters.refused += superpacket.next_segments() as u64;
        if mem::replace(&mut self.reported_refusal, number) != number {
            let error = io::Error::from_raw_os_error(number);
            tracing::warn!(to = %superpacket.path.destination, %error, "the system refuses datagrams");
        }
    }

    /// Handles an error of the kernel for the oldest superpacket.
    fn failed(&mut self, number: i32) {
        let Some(superpacket) = self.pending.front_mut() else { return };
        superpacket.failures += 1;
        superpacket.suspect = false;
        let first_failure = superpacket.failures == 1;
        match number {
            // Another host reported the error about an earlier datagram; reading the error has cleared it.
            libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO if first_failure => {
                self.reported_errors += 1;
                return;
            }
            // The kernel cannot split, or each segment is too long for the link. Sending the datagrams one at
            // a time shows which.
            libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP if superpacket.offload() => {
                self.take_apart(number != libc::EMSGSIZE);
                return;
            }
            libc::EMSGSIZE => self.counters.too_long += superpacket.next_segments() as u64,
            _ => self.refused(number),
        }
        if self.pending.front_mut().is_some_and(Superpacket::advance) {
            self.forget_oldest();
        }
    }

    /// Sends the datagrams of the oldest superpacket one at a time. Their Identifications become 0 instead of
    /// 0, 1, 2 …; the resulting difference of an ICRC depends on nothing else.
    fn take_apart(&mut self, segmentation_failed: bool) {
        let Some(superpacket) = self.pending.front_mut() else { return };
        superpacket.apart = true;
        superpacket.failures = 0;
        superpacket.suspect = segmentation_failed;
        let path = superpacket.path;
        if path.source.is_ipv4() {
            let segments = self.area[superpacket.bytes.clone()].chunks_mut(superpacket.segment_len);
            for (identification, segment) in (0..).zip(segments).skip(1) {
                reseal(segment, &Envelope::new(&path, identification), &Envelope::new(&path, 0));
                self.counters.resealed += 1;
            }
        }
    }

    /// Sends `messages` messages and returns how many superpackets still wait.
    #[cfg(test)]
    pub(super) fn flush_some(&mut self, sockets: &Sockets, messages: usize) -> usize {
        self.batch = Batch::NONE;
        for _ in 0..messages {
            let mut rest = self.pending.split_off(self.pending.len().min(1));
            let sent = self.send_run(sockets).expect("send");
            self.pending.append(&mut rest);
            self.sent(sent);
        }
        self.pending.len()
    }

    fn forget_oldest(&mut self) {
        let Some(gone) = self.pending.pop_front() else { return };
        // The ring no longer wraps when the oldest superpacket lies at its beginning again.
        if self.pending.front().is_none_or(|oldest| oldest.bytes.start < gone.bytes.start) {
            self.wrapped = false;
        }
    }
}

/// Writes the control messages of one message.
fn write_control(writer: &mut ControlWriter<'_>, superpacket: &Superpacket) {
    let path = &superpacket.path;
    let class = i32::from(path.traffic_class).to_ne_bytes();
    let hops = i32::from(if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit });
    // Multicast has its own default: 1.
    let set_hops = hops != i32::from(DEFAULT_HOP_LIMIT) || path.destination.is_multicast();
    let (level, class_type, hops_type) = match path.destination {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    if path.traffic_class != 0 {
        writer.push(level, class_type, class);
    }
    if set_hops {
        writer.push(level, hops_type, hops.to_ne_bytes());
    }
    if superpacket.offload() {
        // At most the length of a slot.
        let segment_len = superpacket.segment_len as u16;
        writer.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment_len.to_ne_bytes());
    }
}

fn envelope(transmit: &Transmit) -> Envelope {
    Envelope::new(&transmit.path, transmit.identification)
}

/// Adapts an ICRC to other headers. An already wrong ICRC stays wrong. Telemetry may follow the ICRC.
fn reseal(datagram: &mut [u8], made_for: &Envelope, will_be: &Envelope) {
    let is_made_for = |rest: &&[u8]| {
        let split = rest.split_last_chunk();
        split.is_some_and(|(body, found)| icrc::compute(made_for, body, &[]).to_le_bytes() == *found)
    };
    let rest = Telemetry::split_off(datagram, &[]).map(|(rest, ..)| rest);
    let len = rest.filter(is_made_for).map_or(datagram.len(), <[u8]>::len);
    let datagram = datagram.get_mut(..len).unwrap_or_default();
    let Some((body, found)) = datagram.split_last_chunk_mut::<{ icrc::LEN }>() else { return };
    let difference = icrc::compute(made_for, body, &[]) ^ icrc::compute(will_be, body, &[]);
    *found = (u32::from_le_bytes(*found) ^ difference).to_le_bytes();
}

/// Maximum UDP payload on IPv4.
const MAX_SUPERPACKET_LEN: usize = 65_507;
/// Room for sixteen superpackets.
const AREA_LEN: usize = 1 << 20;
const MAX_PENDING: usize = 128;
/// Maximum number of superpackets in one system call.
const RUN: usize = 16;
/// Room for traffic class, hop limit and segment length.
const CONTROL_LEN: usize = 2 * space(4) + space(2);
/// Maximum attempts to send a datagram for which the system has no room or no memory: at least 50 ms. At 10
/// Mb/s, a queue of 1,000 packets moves by one packet each 1.2 ms.
const MAX_BLOCKED: u32 = 1000;
/// Time in which the kernel should have room again: a few superpackets at 25 Gb/s.
const RETRY_AFTER_NS: u64 = 50_000;
