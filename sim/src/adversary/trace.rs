//! The record of packets, and the pauses that packets request.

use std::collections::VecDeque;

use roce_fault::random::mix;
use roce_packet::{Psn, Qpn};
use roce_transport::{Instant, Wc};

use crate::pair::Side;

/// The number of entries in a ladder.
const LADDER: usize = 60;

/// A hash of all events, and the last events as text.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) hash: u64,
    /// The number of packets, posts and completions so far.
    pub(super) events: u64,
    ladder: VecDeque<Entry>,
}

#[derive(Debug)]
enum Entry {
    Packet { at: Instant, from: Side, qpn: Qpn, header: [u8; 20], len: usize, fate: &'static str },
    Completion { at: Instant, side: Side, wc: Wc },
    Note { at: Instant, text: &'static str },
}

impl Trace {
    pub(super) fn new(seed: u64) -> Self {
        Self { hash: seed, events: 0, ladder: VecDeque::with_capacity(LADDER + 1) }
    }

    fn mix(&mut self, number: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ number);
    }

    fn push(&mut self, entry: Entry) {
        self.events += 1;
        if self.ladder.len() >= LADDER {
            self.ladder.pop_front();
        }
        self.ladder.push_back(entry);
    }

    /// Adds a packet to the trace. The hash uses the ICRC instead of the whole packet.
    pub(super) fn packet(&mut self, at: Instant, from: Side, qpn: Qpn, bytes: &[u8], fate: &'static str) {
        self.mix(at.as_nanos() ^ (from as u64) << 63);
        let icrc = bytes.last_chunk::<4>().map_or(0, |icrc| u32::from_le_bytes(*icrc));
        self.mix(u64::from(icrc) << 32 | bytes.len() as u64);
        let mut header = [0; 20];
        let len = header.len().min(bytes.len());
        header[..len].copy_from_slice(&bytes[..len]);
        self.push(Entry::Packet { at, from, qpn, header, len: bytes.len(), fate });
    }

    pub(super) fn completion(&mut self, at: Instant, side: Side, wc: &Wc) {
        self.mix(at.as_nanos() ^ (side as u64) << 63);
        self.mix(wc.wr_id ^ (wc.status as u64) << 56 ^ u64::from(wc.byte_len) << 20);
        self.push(Entry::Completion { at, side, wc: *wc });
    }

    pub(super) fn note(&mut self, at: Instant, text: &'static str) {
        self.push(Entry::Note { at, text });
    }

    pub(super) fn posted(&mut self) {
        self.events += 1;
    }

    /// Returns the last events as lines. Arrows go from the sender to the receiver, with A on the left.
    pub(super) fn ladder(&self) -> Vec<String> {
        self.ladder.iter().map(Entry::line).collect()
    }
}

impl Entry {
    fn line(&self) -> String {
        match self {
            Self::Packet { at, from, qpn, header, len, fate } => {
                let arrow = if *from == Side::A { "A --->  " } else { "  <--- B" };
                let [opcode, _, _, _, _, _, _, _, flags, a, b, c, aeth @ ..] = header;
                let psn = u32::from_be_bytes([0, *a, *b, *c]);
                let name = roce_packet::Opcode(*opcode).name().unwrap_or("?");
                let syndrome =
                    if name.contains("ACK") { format!(" aeth {aeth:02x?}") } else { String::new() };
                let ack_req = if flags & 0x80 != 0 { " ack?" } else { "" };
                let qpn = qpn.get();
                format!("{at} {arrow} qp {qpn:#x} psn {psn:#08x} {name}{ack_req}{syndrome} {len} B {fate}")
            }
            Self::Completion { at, side, wc } => format!(
                "{at} {side:?} completes {} {} of qp {:#x}: {} {:?} {:?}",
                if wc.wr_id >> 63 == 1 { "receive" } else { "request" },
                wc.wr_id & 0xffff_ffff,
                wc.qpn.get(),
                wc.status.name(),
                wc.opcode,
                wc.cause
            ),
            Self::Note { at, text } => format!("{at} -- {text} --"),
        }
    }
}

/// A pause that an RNR NAK requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    /// The PSN of the request that requires a receive.
    pub(super) refused: Psn,
    pub(super) until: Instant,
    /// The number of RNR NAKs since the arrival of any other answer.
    pub(super) count: u32,
    /// Whether the requester may have had a reason to drop the NAK.
    pub(super) is_doubtful: bool,
}
