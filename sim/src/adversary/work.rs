//! The requests and receives of the applications at the two hosts, and their expected results.
//!
//! Every flow (one direction of one pair of queue pairs) has its own memory. The expected value of each byte
//! therefore depends only on the order of the flow's operations:
//!
//! - `source` at the requester, read only: the bytes to send;
//! - `local` at the requester: the results of READs and atomics. Ranges of its upper part are used once, for
//!   READs whose result is sent by a later, fenced request;
//! - `target` at the responder: the bytes that WRITEs, READs and atomics access;
//! - `receive` at the responder: the buffers of receives.
//!
//! A request that changes the bytes of an earlier READ is fenced, because no other rule orders the two.

use roce_packet::{ImmDt, PathMtu};
use roce_transport::{GRH_AREA, QpType};

use roce_fault::random::SplitMix64;

/// The maximum number of inline bytes.
pub(super) const MAX_INLINE: usize = 100;
/// The maximum number of elements of a work request.
pub(super) const MAX_ELEMENTS: usize = 4;
/// The number of words per host to which all flows add.
pub(super) const SHARED_WORDS: usize = 2;

/// A memory zone of a flow at the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// The bytes that the requester sends.
    Source,
    /// The results of the requester's READs and atomics.
    Local,
}

/// A range of a zone, used as a scatter/gather element.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The zone of the requester.
    pub zone: Zone,
    /// The offset of the first byte.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// The operation of a request. Offsets are relative to `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND.
    Send(Option<ImmDt>),
    /// WRITE.
    Write(usize, Option<ImmDt>),
    /// READ.
    Read(usize),
    /// COMPARE SWAP: offset, expected and new value.
    CompareSwap(usize, u64, u64),
    /// FETCH ADD: offset and addend.
    FetchAdd(usize, u64),
    /// FETCH ADD on a word that all flows share: word and addend.
    SharedAdd(usize, u64),
    /// ATOMIC WRITE.
    AtomicWrite(usize),
    /// FLUSH of a range.
    Flush(usize, usize),
}

impl Kind {
    /// Returns whether the operation consumes a receive of the peer.
    #[must_use]
    pub const fn takes_receive(&self) -> bool {
        matches!(self, Self::Send(_) | Self::Write(_, Some(_)))
    }

    /// Returns the immediate data of the operation.
    #[must_use]
    pub const fn imm(&self) -> Option<ImmDt> {
        match self {
            Self::Send(imm) | Self::Write(_, imm) => *imm,
            _ => None,
        }
    }

    /// Returns whether the operation writes to `local`.
    #[must_use]
    pub const fn brings(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap(..) | Self::FetchAdd(..) | Self::SharedAdd(..))
    }
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Op {
    /// The operation.
    pub kind: Kind,
    /// The local buffers, which are empty for inline data.
    pub pieces: Vec<Piece>,
    /// Whether the data is posted inline.
    pub inline: bool,
    /// Whether the request is signaled.
    pub signaled: bool,
    /// Whether the request waits for earlier READs and atomics.
    pub fence: bool,
    /// The sent bytes, or the expected result.
    pub data: Vec<u8>,
    /// The minimum time in nanoseconds after the previous post.
    pub wait_ns: u64,
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Ranges of the receive zone.
    pub pieces: Vec<(usize, usize)>,
    /// The minimum time in nanoseconds after the previous post.
    pub wait_ns: u64,
}

impl Receive {
    /// Returns the size in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pieces.iter().map(|(_, len)| len).sum()
    }
}

/// One direction of one pair of queue pairs.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The transport.
    pub qp_type: QpType,
    /// The requests in order.
    pub ops: Vec<Op>,
    /// The receives at the other end in order.
    pub receives: Vec<Receive>,
    /// The initial contents of the source zone.
    pub source: Vec<u8>,
    /// The initial contents of the local zone.
    pub local: Vec<u8>,
    /// The initial contents of the target zone.
    pub target: Vec<u8>,
    /// The initial contents of the receive zone.
    pub receive: Vec<u8>,
}

/// The amount of work of the flows of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    mtu: usize,
    max_ops: usize,
    max_len: usize,
    /// The percentage of late requests and of late receives, each with the maximum delay in nanoseconds.
    late: (usize, u64),
    late_receives: (usize, u64),
}

impl Shape {
    pub(super) fn new(random: &mut SplitMix64, mtu: PathMtu, heavy: bool) -> Self {
        let mtu = mtu.bytes();
        // Repeated retransmissions of a long message would dominate the run.
        let packets = if heavy { random.pick(&[2, 4, 10]) } else { random.pick(&[2, 5, 20, 70]) };
        let budget = random.pick(&[600, 3_000, 10_000, 65_536]);
        let waits = [1_000, 50_000, 1_000_000];
        Self {
            mtu,
            max_ops: random.pick(&[3, 10, 25]),
            max_len: (packets * mtu).min(budget),
            late: (random.pick(&[0, 5, 30]), random.pick(&waits)),
            late_receives: (random.pick(&[0, 0, 10, 40]), random.pick(&waits)),
        }
    }

    /// Returns a length, often close to a multiple of the path MTU.
    fn len(&self, random: &mut SplitMix64, limit: usize) -> usize {
        let most = self.max_len.min(limit);
        let len = match random.below(10) {
            0 | 1 => random.below(9),
            2..=5 => {
                let multiple = random.below(most / self.mtu + 1) * self.mtu;
                (multiple + random.below(5)).saturating_sub(2)
            }
            _ => random.below(most + 1),
        };
        len.min(most)
    }
}

fn wait(random: &mut SplitMix64, (percent, most): (usize, u64)) -> u64 {
    if random.percent(percent) { random.below(most as usize + 1) as u64 } else { 0 }
}

/// Divides `len` bytes into up to four pieces, some of which can be empty.
fn cut(random: &mut SplitMix64, len: usize) -> Vec<usize> {
    let count = random.pick(&[1, 1, 1, 2, 3, 4]);
    if len == 0 && random.percent(50) {
        return Vec::new();
    }
    let mut cuts: Vec<usize> = (1..count).map(|_| random.below(len + 1)).collect();
    cuts.sort_unstable();
    cuts.push(len);
    let mut before = 0;
    cuts.into_iter().map(|cut| cut - core::mem::replace(&mut before, cut)).collect()
}

/// Returns whether two ranges (offset, length) share a byte.
pub(super) fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

/// A flow under construction.
struct Drawing<'a> {
    random: &'a mut SplitMix64,
    shape: &'a Shape,
    flow: Flow,
    /// The contents of `target` and `local` after the requests so far.
    target: Vec<u8>,
    local: Vec<u8>,
    /// The ranges that were read by READs since the last fence.
    open_reads: Vec<(usize, usize)>,
    /// The number of allocated bytes of the upper half of `local`, of `target` (UC) and of `receive`.
    local_used: usize,
    target_used: usize,
    receive_used: usize,
}

impl Flow {
    /// Moves each result of a READ or atomic that shares bytes with another one to a place of its own.
    pub(super) fn separate_results(&mut self) {
        let overlap = |a: &Piece, b: &Piece| a.offset < b.offset + b.len && b.offset < a.offset + a.len;
        let places: Vec<Vec<Piece>> =
            self.ops.iter().map(|op| if op.kind.brings() { op.pieces.clone() } else { Vec::new() }).collect();
        let is_shared = |number: usize| {
            let others = places.iter().enumerate().filter(|(other, _)| *other != number);
            others
                .flat_map(|(_, pieces)| pieces)
                .any(|other| places[number].iter().any(|piece| overlap(piece, other)))
        };
        for (number, op) in self.ops.iter_mut().enumerate().filter(|(number, _)| is_shared(*number)) {
            for piece in &mut op.pieces {
                piece.offset = self.local.len();
                self.local.extend((0..piece.len).map(|at| (at * 31 + number) as u8));
            }
        }
    }

    pub(super) fn new(random: &mut SplitMix64, shape: &Shape, qp_type: QpType) -> Self {
        let count = if random.percent(15) { 0 } else { random.range(1, shape.max_ops) };
        let room = shape.max_len + 64;
        let empty = Self {
            qp_type,
            ops: Vec::new(),
            receives: Vec::new(),
            source: random.bytes(room),
            local: Vec::new(),
            target: Vec::new(),
            receive: Vec::new(),
        };
        let (target, local) = (random.bytes(2 * room), random.bytes(3 * room));
        let mut drawing = Drawing {
            random,
            shape,
            flow: Self { target: target.clone(), local: local.clone(), ..empty },
            target,
            local,
            open_reads: Vec::new(),
            local_used: room,
            target_used: 0,
            receive_used: 0,
        };
        for _ in 0..count {
            match qp_type {
                QpType::Rc | QpType::XrcSend | QpType::XrcRecv => drawing.reliable(),
                QpType::Uc => drawing.unreliable(),
                QpType::Ud => drawing.datagram(),
            }
        }
        drawing.finish()
    }

    /// Returns the payload of each packet of a message, as offset and length.
    pub(super) fn packets(len: usize, mtu: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..len.div_ceil(mtu).max(1)).map(move |index| (index * mtu, (len - index * mtu).min(mtu)))
    }
}

impl Drawing<'_> {
    fn reliable(&mut self) {
        match self.random.below(100) {
            0..25 => self.send(),
            25..50 => self.write(),
            50..65 => self.read(),
            65..72 => self.compare_swap(),
            72..79 => self.fetch_add(),
            79..84 => self.shared_add(),
            84..90 => self.atomic_write(),
            90..94 => self.flush(),
            _ => self.forward(),
        }
    }

    fn push(&mut self, kind: Kind, pieces: Vec<Piece>, data: Vec<u8>) -> &mut Op {
        let op = Op {
            kind,
            pieces,
            inline: false,
            signaled: self.random.percent(70),
            fence: self.random.percent(8),
            data,
            wait_ns: wait(self.random, self.shape.late),
        };
        if op.fence {
            self.open_reads.clear();
        }
        self.flow.ops.push(op);
        self.flow.ops.last_mut().expect("just pushed")
    }

    /// Returns bytes to send: from the source zone in pieces, or inline.
    fn outgoing(&mut self, len: usize) -> (Vec<Piece>, bool, Vec<u8>) {
        if len <= MAX_INLINE && self.random.percent(25) {
            return (Vec::new(), true, self.random.bytes(len));
        }
        let mut data = Vec::with_capacity(len);
        let mut pieces = Vec::new();
        for len in cut(self.random, len) {
            let offset = self.random.below(self.flow.source.len() - len + 1);
            data.extend_from_slice(&self.flow.source[offset..offset + len]);
            pieces.push(Piece { zone: Zone::Source, offset, len });
        }
        (pieces, false, data)
    }

    fn imm(&mut self, percent: usize) -> Option<ImmDt> {
        self.random.percent(percent).then(|| ImmDt((self.random.draw() as u32).to_be_bytes()))
    }

    /// Applies the last pushed request to `target`, and fences that request if it overlaps an open READ.
    fn change(&mut self, offset: usize, data: &[u8]) {
        self.target[offset..offset + data.len()].copy_from_slice(data);
        let range = (offset, data.len());
        if self.open_reads.iter().any(|read| overlap(*read, range)) {
            self.fence();
        }
    }

    fn fence(&mut self) {
        self.open_reads.clear();
        self.flow.ops.last_mut().expect("called after a push").fence = true;
    }

    fn send(&mut self) {
        let len = self.shape.len(self.random, usize::MAX);
        let imm = self.imm(40);
        let (pieces, inline, data) = self.outgoing(len);
        self.push(Kind::Send(imm), pieces, data).inline = inline;
        self.receive_for(len);
    }

    fn write(&mut self) {
        let len = self.shape.len(self.random, usize::MAX);
        let imm = self.imm(30);
        let offset = self.random.below(self.target.len() - len + 1);
        let (pieces, inline, data) = self.outgoing(len);
        self.push(Kind::Write(offset, imm), pieces, data.clone()).inline = inline;
        self.change(offset, &data);
        if imm.is_some() {
            self.receive_for(len);
        }
    }

    /// Returns consecutive pieces of the lower part of `local`, starting at a random offset.
    fn landing(&mut self, len: usize) -> Vec<Piece> {
        let mut offset = self.random.below(self.shape.max_len + 64 - len + 1);
        let mut pieces = Vec::new();
        for len in cut(self.random, len) {
            pieces.push(Piece { zone: Zone::Local, offset, len });
            offset += len;
        }
        pieces
    }

    fn read(&mut self) {
        let len = self.shape.len(self.random, usize::MAX);
        let offset = self.random.below(self.target.len() - len + 1);
        let pieces = self.landing(len);
        let data = self.target[offset..offset + len].to_vec();
        self.push(Kind::Read(offset), pieces, data);
        self.open_reads.push((offset, len));
    }

    fn word(&mut self) -> (usize, u64) {
        // A small number of words, so that atomics find the results of others.
        let offset = 8 * self.random.below((self.target.len() / 8).min(6));
        let bytes = self.target[offset..offset + 8].try_into().expect("8 bytes");
        (offset, u64::from_ne_bytes(bytes))
    }

    fn compare_swap(&mut self) {
        let (offset, now) = self.word();
        let expected = if self.random.percent(60) { now } else { self.random.draw() };
        let new = self.random.draw();
        let pieces = self.landing(8);
        self.push(Kind::CompareSwap(offset, expected, new), pieces, now.to_ne_bytes().to_vec());
        let after = if expected == now { new } else { now };
        self.change(offset, &after.to_ne_bytes());
    }

    fn fetch_add(&mut self) {
        let (offset, now) = self.word();
        let add = self.random.draw();
        let pieces = self.landing(8);
        self.push(Kind::FetchAdd(offset, add), pieces, now.to_ne_bytes().to_vec());
        self.change(offset, &now.wrapping_add(add).to_ne_bytes());
    }

    /// Adds a FETCH ADD on a shared word. The value that it finds depends on other flows, so its result has a
    /// separate range.
    fn shared_add(&mut self) {
        let Some(offset) = self.own_place(8) else { return };
        let kind = Kind::SharedAdd(self.random.below(SHARED_WORDS), self.random.range(1, 1000) as u64);
        self.push(kind, vec![Piece { zone: Zone::Local, offset, len: 8 }], vec![0; 8]);
    }

    fn atomic_write(&mut self) {
        let (offset, _) = self.word();
        let (pieces, inline, data) = self.outgoing(8);
        self.push(Kind::AtomicWrite(offset), pieces, data.clone()).inline = inline;
        self.change(offset, &data);
    }

    fn flush(&mut self) {
        let len = self.random.below(self.target.len());
        let offset = self.random.below(self.target.len() - len);
        self.push(Kind::Flush(offset, len), Vec::new(), Vec::new());
    }

    /// Reserves a range in the upper part of `local` that no other request uses.
    fn own_place(&mut self, len: usize) -> Option<usize> {
        let offset = self.local_used;
        self.local_used += len;
        if self.local_used > self.local.len() {
            self.local_used = offset;
            return None;
        }
        Some(offset)
    }

    /// Adds a READ, and a fenced request that sends its result.
    fn forward(&mut self) {
        let len = self.shape.len(self.random, usize::MAX).max(1);
        let Some(place) = self.own_place(len) else { return };
        let offset = self.random.below(self.target.len() - len + 1);
        let data = self.target[offset..offset + len].to_vec();
        let piece = Piece { zone: Zone::Local, offset: place, len };
        self.push(Kind::Read(offset), vec![piece], data.clone());
        if self.random.percent(50) {
            let imm = self.imm(50);
            self.push(Kind::Send(imm), vec![piece], data);
            self.fence();
            self.receive_for(len);
        } else {
            let offset = self.random.below(self.target.len() - len + 1);
            self.push(Kind::Write(offset, None), vec![piece], data.clone());
            self.fence();
            self.change(offset, &data);
        }
    }

    /// Adds a receive for a message of `len` bytes, with guard bytes around each piece.
    fn receive_for(&mut self, len: usize) {
        let capacity = len + if self.random.percent(50) { 0 } else { self.random.below(50) };
        let mut pieces = Vec::new();
        for len in cut(self.random, capacity) {
            self.receive_used += self.random.range(1, 9);
            pieces.push((self.receive_used, len));
            self.receive_used += len;
        }
        let wait_ns = wait(self.random, self.shape.late_receives);
        self.flow.receives.push(Receive { pieces, wait_ns });
    }

    /// Adds a UC request. Messages can be lost, so every receive fits every message, and every WRITE has a
    /// separate range.
    fn unreliable(&mut self) {
        let limit = self.target.len() - self.target_used;
        let len = self.shape.len(self.random, limit.min(self.shape.max_len));
        let (pieces, inline, data) = self.outgoing(len);
        if self.random.percent(50) {
            let imm = self.imm(50);
            self.push(Kind::Send(imm), pieces, data).inline = inline;
            self.receive_for(self.shape.max_len);
        } else {
            let imm = self.imm(40);
            let offset = self.target_used;
            self.target_used += len;
            self.push(Kind::Write(offset, imm), pieces, data).inline = inline;
            if imm.is_some() {
                self.receive_for(self.shape.max_len);
            }
        }
    }

    fn datagram(&mut self) {
        let len = self.shape.len(self.random, 1024);
        let imm = self.imm(40);
        let (pieces, inline, data) = self.outgoing(len);
        self.push(Kind::Send(imm), pieces, data).inline = inline;
        if self.random.percent(90) {
            self.receive_for(GRH_AREA + self.shape.max_len.min(1024));
        }
    }

    fn finish(mut self) -> Flow {
        self.flow.receive = self.random.bytes(self.receive_used + 16);
        self.flow
    }
}
