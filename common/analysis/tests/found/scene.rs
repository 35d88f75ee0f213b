//! Two engines that exchange messages, and what taps near them show.

use roce_packet::outer::Link;
use roce_packet::{Direction, Ecn, FrameHeaders, MacAddr, Opcode, Operation, Path};
use roce_sim::pair::{Action, Pair, Sent, Side};
use roce_testing::encapsulated::{Tunnel, encapsulate};
use roce_transport::{QpType, RKey, SendOp, SendWr};

use roce_analysis::{Analysis, Collector, Packet};

/// Time that a packet occupies the link.
pub(crate) const PACKET_NS: u64 = 300;
/// One-way delay of the link.
pub(crate) const DELAY_NS: u64 = 1_000;
/// Time of the first packet.
const START_NS: u64 = 1_000_000_000;
/// Pause between two bursts of messages.
const PAUSE_NS: u64 = 100_000;
/// A truncated capture has all headers, and neither payload nor ICRC of longer packets.
const TRUNCATED: usize = 128;

/// A generator of numbers that looks random.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % limit
    }
}

/// The kind of packet that something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Request,
    ReadResponse,
    Acknowledgement,
}

impl Class {
    pub(crate) fn of(opcode: Opcode) -> Option<Self> {
        let info = opcode.info()?;
        match (info.direction, info.operation) {
            (Direction::Request, _) => Some(Self::Request),
            (Direction::Response, Operation::ReadResponse) => Some(Self::ReadResponse),
            (Direction::Response, _) => Some(Self::Acknowledgement),
            (Direction::Cnp, _) => None,
        }
    }
}

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Drop,
    Corrupt,
    Duplicate,
    Delay,
    Mark,
}

impl Fault {
    fn action(self, sent: &Sent) -> Action {
        match self {
            Self::Drop => Action::Drop,
            // A bit of the ICRC.
            Self::Corrupt => Action::FlipBit(8 * sent.bytes.len() - 5),
            Self::Duplicate => Action::Duplicate,
            Self::Delay => Action::Delay(20_000),
            Self::Mark => Action::Mark,
        }
    }
}

/// The last thing that the requester does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The last message is one like the others.
    Good,
    /// A WRITE with a key that the responder does not have.
    WrongKey,
    /// A SEND whose receive is posted after a while.
    NoReceive,
}

/// The packets that faults happen to: the first one of a class with a PSN.
pub(crate) type Faults = [(Class, Fault, u32)];

/// Exchanges the messages of a seed. Returns all packets.
pub(crate) fn run(seed: u64, faults: &Faults, ending: Ending) -> Vec<Sent> {
    exchange(seed, faults, ending).sent
}

/// Exchanges the messages of a seed. Returns both hosts, with all packets.
pub(crate) fn exchange(seed: u64, faults: &Faults, ending: Ending) -> Pair {
    let mut pending = faults.to_vec();
    let script = move |sent: &Sent| {
        let of = (Class::of(sent.opcode), sent.psn.get());
        let Some(at) = pending.iter().position(|(class, _, psn)| (Some(*class), *psn) == of) else {
            return Action::Pass;
        };
        let (_, fault, _) = pending.swap_remove(at);
        fault.action(sent)
    };
    exchange_with(seed, script, faults.len(), ending)
}

/// Like [`exchange`], with a script that changes this number of packets.
pub(crate) fn exchange_with(
    seed: u64,
    script: impl FnMut(&Sent) -> Action + 'static,
    changes: usize,
    ending: Ending,
) -> Pair {
    let mut numbers = Numbers(seed);
    let mut pair = Pair::new(seed);
    pair.link_delay_ns = DELAY_NS;
    pair.packet_time_ns = PACKET_NS;
    pair.record = true;
    let (a, b) = pair.connect(QpType::Rc);
    pair.set_script(script);
    for round in 0..2 + numbers.below(3) {
        for number in 0..1 + numbers.below(5) {
            let len = 1 + numbers.below(6000) as usize;
            let local = pair.host(Side::A).memory_range(0, len);
            let remote_addr = pair.host(Side::B).memory_range(0, len).addr;
            let rkey = pair.host(Side::B).rkey();
            let op = match numbers.below(3) {
                0 => SendOp::Read { remote_addr, rkey },
                _ => SendOp::Write { remote_addr, rkey },
            };
            pair.post_send(Side::A, a, &SendWr::new(10 * round + number, op, &[local])).unwrap();
        }
        pair.drive();
        pair.now = pair.now.plus_nanos(PAUSE_NS);
    }
    let local = pair.host(Side::A).memory_range(0, 100);
    match ending {
        Ending::Good => {}
        Ending::WrongKey => {
            let remote_addr = pair.host(Side::B).memory_range(0, 100).addr;
            let rkey = RKey(pair.host(Side::B).rkey().0 ^ 0xff);
            let op = SendOp::Write { remote_addr, rkey };
            pair.post_send(Side::A, a, &SendWr::new(99, op, &[local])).unwrap();
        }
        Ending::NoReceive => {
            pair.post_send(Side::A, a, &SendWr::new(99, SendOp::Send, &[local])).unwrap();
            let soon = pair.now.plus_nanos(PAUSE_NS);
            pair.drive_until(soon);
            pair.post_recv(Side::B, b, 1, 0, 4096).unwrap();
        }
    }
    pair.drive();
    drop((pair.completions(Side::A), pair.completions(Side::B)));
    let hits = pair.sent.iter().filter(|sent| sent.action != Action::Pass).count();
    assert_eq!(hits, changes, "seed {seed}");
    pair
}

/// A packet at a tap.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) time: u64,
    /// When its sender sent it.
    pub(crate) sent: u64,
    pub(crate) from: Side,
    pub(crate) path: Path,
    /// From BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
    /// The Ethernet frames at the tap, if they are not one with these bytes.
    pub(crate) frames: Option<Vec<Vec<u8>>>,
}

impl Seen {
    /// Returns a sent packet as a tap shows it.
    pub(crate) fn of(sent: &Sent, time: u64) -> Self {
        let (from, path, bytes) = (sent.from, sent.path, sent.bytes.clone());
        Self { time, sent: time, from, path, bytes, frames: None }
    }

    pub(crate) fn opcode(&self) -> Opcode {
        Opcode(self.bytes[0])
    }

    pub(crate) fn class(&self) -> Option<Class> {
        Class::of(self.opcode())
    }

    pub(crate) fn psn(&self) -> u32 {
        u32::from_be_bytes([0, self.bytes[9], self.bytes[10], self.bytes[11]])
    }

    /// Sets the PSN.
    pub(crate) fn set_psn(&mut self, psn: u32) {
        self.bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }

    /// Computes the ICRC of the changed packet.
    pub(crate) fn seal(&mut self) {
        let end = self.bytes.len() - 4;
        let envelope = roce_packet::Envelope::new(&self.path, 0);
        let icrc = roce_packet::icrc::compute(&envelope, &self.bytes[..end], &[]);
        self.bytes[end..].copy_from_slice(&icrc.to_le_bytes());
    }

    /// Returns the Ethernet frames at the tap.
    fn frames(&self) -> Vec<Vec<u8>> {
        self.frames.clone().unwrap_or_else(|| vec![frame_of(&self.path, &self.bytes)])
    }

    /// Lets the network fragment the packet: DF is clear. Returns the frame before it, and the two frames
    /// behind it.
    pub(crate) fn fragments(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut bytes = self.bytes.clone();
        let end = bytes.len() - 4;
        let mut envelope = roce_packet::Envelope::new(&self.path, 0);
        envelope.dont_fragment = false;
        let icrc = roce_packet::icrc::compute(&envelope, &bytes[..end], &[]);
        bytes[end..].copy_from_slice(&icrc.to_le_bytes());
        let mut whole = frame_of(&self.path, &bytes);
        let (headers, payload) = whole.split_at(ETHERNET + IPV4);
        // Offsets count units of eight bytes.
        let middle = payload.len() / 16 * 8;
        let (head, tail) = payload.split_at(middle);
        let fragment = |part: &[u8], flags_and_offset: u16| {
            let mut frame = [headers, part].concat();
            set_ip(&mut frame, part.len(), flags_and_offset);
            frame
        };
        let both = vec![fragment(head, 0x2000), fragment(tail, (middle / 8) as u16)];
        let len = payload.len();
        set_ip(&mut whole, len, 0);
        (whole, both)
    }
}

/// Lengths of headers.
const ETHERNET: usize = 14;
const IPV4: usize = 20;

/// Sets the length, the flags and the offset in the IPv4 header of a frame, and its checksum.
fn set_ip(frame: &mut [u8], payload: usize, flags_and_offset: u16) {
    let header = &mut frame[ETHERNET..ETHERNET + IPV4];
    header[2..4].copy_from_slice(&((IPV4 + payload) as u16).to_be_bytes());
    header[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
    header[10..12].fill(0);
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the Ethernet frame of a datagram.
pub(crate) fn frame_of(path: &Path, datagram: &[u8]) -> Vec<u8> {
    let [to, from] = [2, 1].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let headers = FrameHeaders::new(path, 0, to, from, datagram.len()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(datagram);
    frame
}

/// The packets at the tap near A, and at the tap near B.
pub(crate) type Tapped = [Vec<Seen>; 2];

/// Returns what each tap shows.
pub(crate) fn tapped(sent: &[Sent]) -> Tapped {
    let mut taps = [Vec::new(), Vec::new()];
    let mut free = [0_u64; 2];
    for packet in sent {
        let [near, far] = if packet.from == Side::A { [0, 1] } else { [1, 0] };
        let start = (START_NS + packet.at.as_nanos()).max(free[near]);
        let path = packet.path;
        let mut seen = Seen { time: start + PACKET_NS, ..Seen::of(packet, start) };
        taps[near].push(seen.clone());
        let (copies, extra) = match packet.action {
            Action::Drop => (0, 0),
            Action::Duplicate => (2, 0),
            Action::Delay(ns) => (1, ns),
            Action::FlipBit(bit) => {
                seen.bytes[bit / 8] ^= 0x80 >> (bit % 8);
                (1, 0)
            }
            Action::Mark => {
                seen.path = path.with_ecn(Ecn::CongestionExperienced);
                (1, 0)
            }
            Action::Pass | Action::Trim => (1, 0),
        };
        for copy in 1..=copies {
            free[near] = start + copy * PACKET_NS;
            taps[far].push(Seen { time: free[near] + DELAY_NS + extra, ..seen.clone() });
        }
    }
    for tap in &mut taps {
        tap.sort_by_key(|seen| seen.time);
    }
    taps
}

/// The places where packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Taps {
    Both,
    A,
    B,
    /// One place at the fault, with an interface for each direction.
    Bridge,
}

impl Taps {
    pub(crate) const ALL: [Self; 3] = [Self::Both, Self::A, Self::B];

    /// Returns whether one of the taps is the one near A (0) or near B (1).
    pub(crate) fn has(self, tap: usize) -> bool {
        match self {
            Self::Both | Self::Bridge => true,
            Self::A => tap == 0,
            Self::B => tap == 1,
        }
    }
}

/// How the capture files differ from what the taps show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) taps: Taps,
    pub(crate) tunnel: Tunnel,
    pub(crate) is_truncated: bool,
}

pub(crate) fn analyze(taps: &Tapped, style: Style) -> Analysis {
    let mut collector = Collector::new(4791);
    if style.taps == Taps::Bridge {
        // Both directions are in the order of time.
        let from_each = |tap: usize| taps[tap].iter().map(move |seen| (tap as u16, seen));
        let mut all: Vec<(u16, &Seen)> = from_each(0).chain(from_each(1)).collect();
        all.sort_by_key(|(_, seen)| seen.time);
        add(&mut collector, 0, all.into_iter(), style);
        return collector.analyze();
    }
    let wanted = [0, 1].into_iter().filter(|tap| style.taps.has(*tap));
    for (capture, tap) in wanted.enumerate() {
        add(&mut collector, capture as u16, taps[tap].iter().map(|seen| (0, seen)), style);
    }
    collector.analyze()
}

/// Adds the packets of a capture, each with its interface.
fn add<'a>(
    collector: &mut Collector,
    capture: u16,
    packets: impl Iterator<Item = (u16, &'a Seen)>,
    style: Style,
) {
    let mut number = 0;
    for (interface, seen) in packets {
        for frame in seen.frames() {
            number += 1;
            // A mirror does not carry frames that only concern one link.
            let is_of_link = frame[12..14] == [0x88, 0x08];
            let whole = if is_of_link { frame } else { encapsulate(style.tunnel, &frame) };
            let len = if style.is_truncated { TRUNCATED.min(whole.len()) } else { whole.len() };
            collector.add(&Packet {
                capture,
                interface,
                number,
                time_ns: Some(seen.time),
                link: Link::Ethernet,
                wire_len: whole.len(),
                is_dropped: false,
                bytes: &whole[..len],
            });
        }
    }
}
