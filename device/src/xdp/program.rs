//! The program that the kernel runs for each arriving frame. It passes RoCE for this host to the socket, and
//! everything else to the kernel. It is assembled here, so the build does not require a BPF compiler.

use roce_packet::{MacAddr, ROCE_UDP_PORT};

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The written register in the lower half, the read register in the upper half.
    registers: u8,
    offset: i16,
    value: i32,
}

/// Returns the program for an interface with this address; `map` is the descriptor of the queue-to-socket
/// map.
///
/// Frames for the interface or a group go to the socket if they have at most one tag and one of these types:
/// RoCE v2 over IPv4 (without options, unfragmented) or IPv6 (without extension headers), RoCE v1, or pause.
/// Frames for other hosts, which arrive in promiscuous mode, go to the kernel.
pub(super) fn roce_program(map: i32, mac: MacAddr) -> Vec<Instruction> {
    let mut it = Assembler::default();
    it.copy(CONTEXT, R1);
    it.load(WORD, START, R1, 0);
    it.load(WORD, END, R1, 4);
    check_destination(&mut it, mac);
    it.load(HALF, TYPE, START, 12);
    it.jump(NOT_EQUAL, TYPE, network(0x8100), Label::Untagged);
    // From here on, all offsets are four bytes larger.
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
    // The action if the map has no socket.
    it.set(R3, XDP_PASS);
    it.put(CALL, 0, 0, REDIRECT_MAP);
    it.put(EXIT, 0, 0, 0);
    it.label(Label::Pass);
    it.set(R0, XDP_PASS);
    it.put(EXIT, 0, 0, 0);
    it.finish()
}

/// Emits a check that continues for frames to a group or to this address.
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

/// Returns a number as it appears when loaded from a frame without byte swapping.
const fn network(value: u16) -> i32 {
    value.to_be() as i32
}

/// The target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    ForUs,
    Untagged,
    Ipv6,
    Port,
    Take,
    Pass,
}

/// Collects instructions and resolves jump targets.
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

    /// Loads the map with this descriptor; occupies two instructions.
    fn load_map(&mut self, to: u8, map: i32) {
        const IS_MAP: u8 = 1;
        self.put(0x18, IS_MAP << 4 | to, 0, map);
        self.put(0, 0, 0, 0);
    }

    /// Passes shorter frames on to the kernel. The verifier requires this check before the following loads.
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

// Registers. A call clobbers `R1` to `R5`, but not `R6`.
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
/// The helper that redirects a frame to an entry of a map.
const REDIRECT_MAP: i32 = 51;
/// Offset of the queue number in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;
const XDP_PASS: i32 = 2;
const UDP: i32 = 17;

#[cfg(test)]
mod tests;
