//! The program that the kernel runs for each frame that arrives: RoCE for this host goes to the socket, everything
//! else to the kernel as if there were no program. Put together by hand, so that building needs no
//! compiler for BPF.

use roce_packet::{MacAddr, ROCE_UDP_PORT};

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The register that is written in the lower half, the one that is read in the upper.
    registers: u8,
    offset: i16,
    value: i32,
}

/// The program for an interface with this address. `map` is the descriptor of the map from queues to sockets.
///
/// To the socket go frames to the interface or to a group, with one tag at most, that are RoCE v2 over IPv4 (without
/// options, not fragmented) or IPv6 (without extension headers), RoCE v1, or pause frames. Frames for
/// others, which arrive where the interface listens to all, are not ours.
pub(super) fn roce_program(map: i32, mac: MacAddr) -> Vec<Instruction> {
    let mut it = Assembler::default();
    it.copy(CONTEXT, R1);
    it.load(WORD, START, R1, 0);
    it.load(WORD, END, R1, 4);
    check_destination(&mut it, mac);
    it.load(HALF, TYPE, START, 12);
    it.jump(NOT_EQUAL, TYPE, network(0x8100), Label::Untagged);
    // From here on everything lies four bytes further.
    it.add(START, 4);
    it.need(14);
    it.load(HALF, TYPE, START, 12);
    it.label(Label::Untagged);
    it.jump(EQUAL, TYPE, network(0x8915), Label::Take);
    it.jump(EQUAL, TYPE, network(0x8808), Label::Take);
    it.jump(EQUAL, TYPE, network(0x86dd), Label::Ipv6);
    it.jump(NOT_EQUAL, TYPE, network(0x0800), Label::Pass);
    it.need(14 + 20 + 8);
    it.load(BYTE, VALUE, START, 14);
    it.jump(NOT_EQUAL, VALUE, 0x45, Label::Pass);
    it.load(HALF, VALUE, START, 14 + 6);
    it.jump(ANY_BIT, VALUE, network(0x3fff), Label::Pass);
    it.load(BYTE, VALUE, START, 14 + 9);
    it.jump(NOT_EQUAL, VALUE, UDP, Label::Pass);
    it.load(HALF, VALUE, START, 14 + 20 + 2);
    it.jump(ALWAYS, 0, 0, Label::Port);
    it.label(Label::Ipv6);
    it.need(14 + 40 + 8);
    it.load(BYTE, VALUE, START, 14 + 6);
    it.jump(NOT_EQUAL, VALUE, UDP, Label::Pass);
    it.load(HALF, VALUE, START, 14 + 40 + 2);
    it.label(Label::Port);
    it.jump(NOT_EQUAL, VALUE, network(ROCE_UDP_PORT), Label::Pass);
    it.label(Label::Take);
    it.load_map(R1, map);
    it.load(WORD, R2, CONTEXT, RX_QUEUE_INDEX);
    // What to do where no socket is in the map.
    it.set(R3, XDP_PASS);
    it.put(CALL, 0, 0, REDIRECT_MAP);
    it.put(EXIT, 0, 0, 0);
    it.label(Label::Pass);
    it.set(R0, XDP_PASS);
    it.put(EXIT, 0, 0, 0);
    it.finish()
}

/// Goes on for frames to a group or to this address.
fn check_destination(it: &mut Assembler, mac: MacAddr) {
    it.need(14);
    it.load(BYTE, VALUE, START, 0);
    it.jump(ANY_BIT, VALUE, 1, Label::ForUs);
    for (at, byte) in (0..).zip(mac.0) {
        it.load(BYTE, VALUE, START, at);
        it.jump(NOT_EQUAL, VALUE, byte.into(), Label::Pass);
    }
    it.label(Label::ForUs);
}

/// A number as it looks when it is loaded from a frame without changing the order of its bytes.
const fn network(value: u16) -> i32 {
    value.to_be() as i32
}

/// Where a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    ForUs,
    Untagged,
    Ipv6,
    Port,
    Take,
    Pass,
}

/// Collects instructions and fills in where jumps lead.
#[derive(Default)]
struct Assembler {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn put(&mut self, code: u8, registers: u8, offset: i16, value: i32) {
        self.instructions.push(Instruction { code, registers, offset, value });
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.put(0xbf, from << 4 | to, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.put(0xb7, to, 0, value);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.put(0x07, to, 0, value);
    }

    fn load(&mut self, size: u8, to: u8, from: u8, offset: i16) {
        self.put(0x61 | size, from << 4 | to, offset, 0);
    }

    /// Loads the map with this descriptor; takes two places.
    fn load_map(&mut self, to: u8, map: i32) {
        const IS_MAP: u8 = 1;
        self.put(0x18, IS_MAP << 4 | to, 0, map);
        self.put(0, 0, 0, 0);
    }

    /// Passes on frames that have fewer bytes. Also what lets the verifier allow the loads that follow.
    fn need(&mut self, len: i32) {
        self.copy(VALUE, START);
        self.add(VALUE, len);
        self.jumps.push((self.instructions.len(), Label::Pass));
        self.put(0x2d, END << 4 | VALUE, 0, 0);
    }

    fn jump(&mut self, condition: u8, register: u8, value: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(condition, register, 0, value);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.instructions.len()));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let target = self.labels.iter().find(|(known, _)| known == label);
            let target = target.map_or(self.instructions.len(), |(_, target)| *target);
            self.instructions[*at].offset = (target - at - 1) as i16;
        }
        self.instructions
    }
}

// Registers. `R1` to `R5` do not survive a call, `R6` does.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const START: u8 = 2;
const END: u8 = 3;
const VALUE: u8 = 4;
const TYPE: u8 = 5;
const CONTEXT: u8 = 6;
// Sizes of loads.
const WORD: u8 = 0x00;
const HALF: u8 = 0x08;
const BYTE: u8 = 0x10;
// Jumps.
const ALWAYS: u8 = 0x05;
const EQUAL: u8 = 0x15;
const ANY_BIT: u8 = 0x45;
const NOT_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The function that hands a frame to what a map has for it.
const REDIRECT_MAP: i32 = 51;
/// Where `struct xdp_md` has the number of the queue.
const RX_QUEUE_INDEX: i16 = 16;
const XDP_PASS: i32 = 2;
const UDP: i32 = 17;

#[cfg(test)]
mod tests;
