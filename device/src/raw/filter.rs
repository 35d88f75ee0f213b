//! The filter of a packet socket: the kernel delivers only RoCE and flow control.

use socket2::SockFilter;

/// Returns the filter. It accepts frames to this host or a group, with at most one tag, of these types: RoCE
/// v2 over IPv4 or IPv6 (UDP port 4791, no fragments, no IPv6 extension headers), RoCE v1, and MAC control.
/// In classic BPF, `A` and `X` are registers, and jumps count instructions.
pub(super) fn roce_filter() -> Vec<SockFilter> {
    const ACCEPT: Jump = Jump::Accept;
    const DROP: Jump = Jump::Drop;
    const NEXT: Jump = Jump::Next;
    let mut filter = Assembler::default();
    // Frames to other hosts, or from this host.
    filter.load_ancillary(PACKET_TYPE);
    filter.jump(JUMP_GREATER, PACKET_MULTICAST, DROP, NEXT);
    // The kernel has removed the outer tag. A remaining tag was the inner one, or none was removed.
    filter.put(LOAD_X_IMMEDIATE, 0);
    filter.load_half(12);
    filter.jump(JUMP_EQUAL, 0x8100, NEXT, Jump::Over(4));
    filter.load_ancillary(VLAN_TAG_PRESENT);
    filter.jump(JUMP_EQUAL, 0, NEXT, DROP);
    filter.put(LOAD_X_IMMEDIATE, 4);
    filter.load_half(12);
    filter.jump(JUMP_EQUAL, 0x8808, ACCEPT, NEXT);
    filter.jump(JUMP_EQUAL, 0x8915, ACCEPT, NEXT);
    filter.jump(JUMP_EQUAL, 0x86dd, Jump::Over(12), NEXT);
    filter.jump(JUMP_EQUAL, 0x0800, NEXT, DROP);
    // IPv4: UDP, unfragmented, with the header length from the header.
    filter.load_byte(14 + 9);
    filter.jump(JUMP_EQUAL, UDP, NEXT, DROP);
    filter.load_half(14 + 6);
    filter.jump(JUMP_ANY_BIT, 0x3fff, DROP, NEXT);
    filter.load_byte(14);
    filter.put(AND, 0x0f);
    filter.put(SHIFT_LEFT, 2);
    filter.put(ADD_X, 0);
    filter.put(MOVE_A_TO_X, 0);
    filter.load_half(14 + 2);
    filter.jump(JUMP_EQUAL, PORT, ACCEPT, DROP);
    // IPv6.
    filter.load_byte(14 + 6);
    filter.jump(JUMP_EQUAL, UDP, NEXT, DROP);
    filter.load_half(14 + 40 + 2);
    filter.jump(JUMP_EQUAL, PORT, ACCEPT, DROP);
    filter.finish()
}

/// The target of a jump.
#[derive(Clone, Copy)]
enum Jump {
    Next,
    /// Skips this number of instructions.
    Over(u8),
    Accept,
    Drop,
}

/// Collects instructions, and appends "accept" and "drop".
#[derive(Default)]
struct Assembler {
    instructions: Vec<(u16, Jump, Jump, u32)>,
}

impl Assembler {
    fn put(&mut self, code: u32, value: u32) {
        self.instructions.push((code as u16, Jump::Next, Jump::Next, value));
    }

    fn jump(&mut self, code: u32, value: u32, then: Jump, otherwise: Jump) {
        self.instructions.push((code as u16, then, otherwise, value));
    }

    /// Loads two bytes; `offset` counts from the start of the frame plus `X`.
    fn load_half(&mut self, offset: u32) {
        self.put(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, offset);
    }

    fn load_byte(&mut self, offset: u32) {
        self.put(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, offset);
    }

    fn load_ancillary(&mut self, what: i32) {
        let offset = libc::SKF_AD_OFF + what;
        self.put(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset.cast_unsigned());
    }

    fn finish(mut self) -> Vec<SockFilter> {
        let accept = self.instructions.len();
        self.put(libc::BPF_RET | libc::BPF_K, u32::MAX);
        self.put(libc::BPF_RET | libc::BPF_K, 0);
        let offset = |from: usize, jump: Jump| match jump {
            Jump::Next => 0,
            Jump::Over(count) => count,
            Jump::Accept => (accept - from - 1) as u8,
            Jump::Drop => (accept - from) as u8,
        };
        let instructions = self.instructions.iter().enumerate();
        instructions
            .map(|(at, &(code, then, otherwise, value))| {
                SockFilter::new(code, offset(at, then), offset(at, otherwise), value)
            })
            .collect()
    }
}

const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_GREATER: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const JUMP_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const LOAD_X_IMMEDIATE: u32 = libc::BPF_LDX | libc::BPF_IMM;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const SHIFT_LEFT: u32 = libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K;
const ADD_X: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X;
const MOVE_A_TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
/// Offsets of a frame's ancillary data.
const PACKET_TYPE: i32 = libc::SKF_AD_PKTTYPE;
const VLAN_TAG_PRESENT: i32 = libc::SKF_AD_VLAN_TAG_PRESENT;
/// Lower types are: to this host, to all, to a group.
const PACKET_MULTICAST: u32 = 2;
const UDP: u32 = 17;
const PORT: u32 = roce_packet::ROCE_UDP_PORT as u32;
