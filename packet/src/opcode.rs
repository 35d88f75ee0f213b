//! The table with the meaning of each opcode and the headers that follow the BTH (IBTA 9.2).

use core::fmt;

use bitflags::bitflags;

/// The first byte of the BTH: the kind of the packet.
///
/// All values are possible, so that a sniffer can show unknown ones. [`Opcode::info`] returns the row of a
/// known opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Returns the row of the table, in constant time. Returns `None` for unassigned values.
    #[inline]
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "every u8 is an index of an array of 256")]
    pub const fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE[self.0 as usize].as_ref()
    }

    /// Returns the same operation with another transport, which is in the upper three bits of an opcode.
    #[inline]
    #[must_use]
    pub const fn with_transport(self, transport: Transport) -> Self {
        let bits = match transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Rd => 2,
            Transport::Ud => 3,
            Transport::Cnp => 4,
            Transport::Xrc => 5,
        };
        Self(self.0 & 0x1f | bits << 5)
    }

    const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            _ => Transport::Xrc,
        }
    }

    /// Returns whether the specification reserves the opcode for manufacturers.
    #[must_use]
    pub const fn is_vendor_specific(self) -> bool {
        self.0 >= 0xc0
    }

    /// Returns the name in the table, for example `RC_SEND_FIRST`.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self.info() {
            Some(info) => Some(info.name),
            None => None,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "0x{:02x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

/// The properties of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The value.
    pub opcode: Opcode,
    /// The name, for example `RC_SEND_FIRST`.
    pub name: &'static str,
    /// The transport service, bits 7 to 5 of the value.
    pub transport: Transport,
    /// The operation, independent of the transport and of the packet's position in the message.
    pub operation: Operation,
    /// Position of the packet in its message.
    pub position: Position,
    /// The extended headers. On the wire they follow the BTH in the order of the flags.
    pub headers: HeaderSet,
    /// Legal payload lengths.
    pub payload: PayloadRule,
    /// Direction of the packet.
    pub direction: Direction,
    /// Length of the BTH and the extended headers, in bytes.
    pub header_len: usize,
    /// Offset of each header from the start of the BTH, in bytes, by the index of its flag; 0 if absent.
    offsets: [u8; HEADER_COUNT],
}

impl OpcodeInfo {
    /// Returns the offset of `header`, exactly one flag, from the start of the BTH. Returns `None` if this
    /// opcode has no such header.
    #[inline]
    #[must_use]
    pub const fn offset_of(&self, header: HeaderSet) -> Option<usize> {
        let index = header.bits().trailing_zeros() as usize;
        if !self.headers.contains(header) || index >= HEADER_COUNT {
            return None;
        }
        #[allow(clippy::indexing_slicing, reason = "compared with the length of the array above")]
        Some(self.offsets[index] as usize)
    }

    /// Returns whether the packet carries immediate data.
    #[inline]
    #[must_use]
    pub const fn has_immediate(&self) -> bool {
        self.headers.contains(HeaderSet::IMMDT)
    }

    /// Returns whether the packet begins a message: First or Only.
    #[inline]
    #[must_use]
    pub const fn starts_message(&self) -> bool {
        matches!(self.position, Position::First | Position::Only)
    }

    /// Returns whether the packet ends a message: Last or Only.
    #[inline]
    #[must_use]
    pub const fn ends_message(&self) -> bool {
        matches!(self.position, Position::Last | Position::Only)
    }
}

/// The transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// The group of the congestion notification packet.
    Cnp,
    /// Extended reliable connection (Annex A14).
    Xrc,
}

/// The purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND, with its immediate and invalidate forms.
    Send,
    /// RDMA WRITE, with its immediate form.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response, which also answers a flush and an atomic write.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Answer to an atomic operation.
    AtomicAcknowledge,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Resynchronization of a reliable datagram context.
    Resync,
    /// Flush (Annex A19).
    Flush,
    /// Atomic write of eight bytes (Annex A19).
    AtomicWrite,
    /// Congestion notification packet (A17.9).
    Cnp,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last,
    /// The only packet.
    Only,
}

/// Legal numbers of payload bytes, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// No payload.
    None,
    /// Exactly the path MTU.
    FullMtu,
    /// 1 to the path MTU.
    OneToMtu,
    /// 0 to the path MTU.
    ZeroToMtu,
    /// Exactly this number of bytes.
    Exactly(usize),
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From a requester to a responder.
    Request,
    /// From a responder to a requester.
    Response,
    /// From the receiver of marked packets to their sender.
    Cnp,
}

bitflags! {
    /// The extended headers of a packet. The flags are in wire order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct HeaderSet: u16 {
        /// Reliable datagram header, 4 bytes.
        const RDETH = 1 << 0;
        /// Datagram header, 8 bytes.
        const DETH = 1 << 1;
        /// Extended reliable connection header, 4 bytes.
        const XRCETH = 1 << 2;
        /// Flush header, 4 bytes. A RETH follows it.
        const FETH = 1 << 3;
        /// RDMA header, 16 bytes.
        const RETH = 1 << 4;
        /// Atomic header, 28 bytes.
        const ATOMIC_ETH = 1 << 5;
        /// Acknowledge header, 4 bytes.
        const AETH = 1 << 6;
        /// Atomic acknowledge header, 8 bytes.
        const ATOMIC_ACK_ETH = 1 << 7;
        /// Immediate data, 4 bytes.
        const IMMDT = 1 << 8;
        /// Invalidate header, 4 bytes.
        const IETH = 1 << 9;
    }
}

/// Length of the BTH, in bytes.
pub(crate) const BTH_LEN: usize = 12;

/// Length of each header in bytes, by the index of its flag.
const HEADER_LENS: [u8; HEADER_COUNT] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4];
const HEADER_COUNT: usize = 10;

/// The rows of all opcodes, by opcode.
static TABLE: [Option<OpcodeInfo>; 256] = build();

/// Defines the row and the constant of each opcode.
macro_rules! opcodes {
    ($($name:ident = $value:literal: $operation:ident $position:ident [$($header:ident)*] $payload:expr;)*) => {
        #[allow(missing_docs, reason = "the names say it, and the table below has the rest")]
        impl Opcode {
            $(pub const $name: Self = Self($value);)*
        }

        #[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
        const fn build() -> [Option<OpcodeInfo>; 256] {
            use PayloadRule::{Exactly, FullMtu, None as Empty, OneToMtu, ZeroToMtu};
            let mut table = [None; 256];
            $(table[$value] = Some(row(
                Opcode::$name,
                stringify!($name),
                Operation::$operation,
                Position::$position,
                HeaderSet::empty()$(.union(HeaderSet::$header))*,
                $payload,
            ));)*
            table
        }
    };
}

/// Creates a row and computes the columns that follow from the others.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn row(
    opcode: Opcode,
    name: &'static str,
    operation: Operation,
    position: Position,
    headers: HeaderSet,
    payload: PayloadRule,
) -> OpcodeInfo {
    let transport = opcode.transport();
    let direction = match operation {
        Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge => {
            Direction::Response
        }
        Operation::Cnp => Direction::Cnp,
        Operation::Send
        | Operation::Write
        | Operation::ReadRequest
        | Operation::CompareSwap
        | Operation::FetchAdd
        | Operation::Resync
        | Operation::Flush
        | Operation::AtomicWrite => Direction::Request,
    };
    let mut offsets = [0; HEADER_COUNT];
    let mut end = BTH_LEN as u8;
    let mut index = 0;
    while index < HEADER_COUNT {
        if headers.bits() & 1 << index != 0 {
            offsets[index] = end;
            end += HEADER_LENS[index];
        }
        index += 1;
    }
    let header_len = end as usize;
    OpcodeInfo {
        opcode,
        name,
        transport,
        operation,
        position,
        headers,
        payload,
        direction,
        header_len,
        offsets,
    }
}

opcodes! {
    RC_SEND_FIRST = 0x00: Send First [] FullMtu;
    RC_SEND_MIDDLE = 0x01: Send Middle [] FullMtu;
    RC_SEND_LAST = 0x02: Send Last [] OneToMtu;
    RC_SEND_LAST_WITH_IMM = 0x03: Send Last [IMMDT] OneToMtu;
    RC_SEND_ONLY = 0x04: Send Only [] ZeroToMtu;
    RC_SEND_ONLY_WITH_IMM = 0x05: Send Only [IMMDT] ZeroToMtu;
    RC_RDMA_WRITE_FIRST = 0x06: Write First [RETH] FullMtu;
    RC_RDMA_WRITE_MIDDLE = 0x07: Write Middle [] FullMtu;
    RC_RDMA_WRITE_LAST = 0x08: Write Last [] OneToMtu;
    RC_RDMA_WRITE_LAST_WITH_IMM = 0x09: Write Last [IMMDT] OneToMtu;
    RC_RDMA_WRITE_ONLY = 0x0a: Write Only [RETH] ZeroToMtu;
    RC_RDMA_WRITE_ONLY_WITH_IMM = 0x0b: Write Only [RETH IMMDT] ZeroToMtu;
    RC_RDMA_READ_REQUEST = 0x0c: ReadRequest Only [RETH] Empty;
    RC_RDMA_READ_RESPONSE_FIRST = 0x0d: ReadResponse First [AETH] FullMtu;
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e: ReadResponse Middle [] FullMtu;
    RC_RDMA_READ_RESPONSE_LAST = 0x0f: ReadResponse Last [AETH] OneToMtu;
    RC_RDMA_READ_RESPONSE_ONLY = 0x10: ReadResponse Only [AETH] ZeroToMtu;
    RC_ACKNOWLEDGE = 0x11: Acknowledge Only [AETH] Empty;
    RC_ATOMIC_ACKNOWLEDGE = 0x12: AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH] Empty;
    RC_COMPARE_SWAP = 0x13: CompareSwap Only [ATOMIC_ETH] Empty;
    RC_FETCH_ADD = 0x14: FetchAdd Only [ATOMIC_ETH] Empty;
    RC_SEND_LAST_WITH_INVALIDATE = 0x16: Send Last [IETH] OneToMtu;
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17: Send Only [IETH] ZeroToMtu;
    RC_FLUSH = 0x1c: Flush Only [FETH RETH] Empty;
    RC_ATOMIC_WRITE = 0x1d: AtomicWrite Only [RETH] Exactly(8);

    UC_SEND_FIRST = 0x20: Send First [] FullMtu;
    UC_SEND_MIDDLE = 0x21: Send Middle [] FullMtu;
    UC_SEND_LAST = 0x22: Send Last [] OneToMtu;
    UC_SEND_LAST_WITH_IMM = 0x23: Send Last [IMMDT] OneToMtu;
    UC_SEND_ONLY = 0x24: Send Only [] ZeroToMtu;
    UC_SEND_ONLY_WITH_IMM = 0x25: Send Only [IMMDT] ZeroToMtu;
    UC_RDMA_WRITE_FIRST = 0x26: Write First [RETH] FullMtu;
    UC_RDMA_WRITE_MIDDLE = 0x27: Write Middle [] FullMtu;
    UC_RDMA_WRITE_LAST = 0x28: Write Last [] OneToMtu;
    UC_RDMA_WRITE_LAST_WITH_IMM = 0x29: Write Last [IMMDT] OneToMtu;
    UC_RDMA_WRITE_ONLY = 0x2a: Write Only [RETH] ZeroToMtu;
    UC_RDMA_WRITE_ONLY_WITH_IMM = 0x2b: Write Only [RETH IMMDT] ZeroToMtu;

    RD_SEND_FIRST = 0x40: Send First [RDETH DETH] FullMtu;
    RD_SEND_MIDDLE = 0x41: Send Middle [RDETH DETH] FullMtu;
    RD_SEND_LAST = 0x42: Send Last [RDETH DETH] OneToMtu;
    RD_SEND_LAST_WITH_IMM = 0x43: Send Last [RDETH DETH IMMDT] OneToMtu;
    RD_SEND_ONLY = 0x44: Send Only [RDETH DETH] ZeroToMtu;
    RD_SEND_ONLY_WITH_IMM = 0x45: Send Only [RDETH DETH IMMDT] ZeroToMtu;
    RD_RDMA_WRITE_FIRST = 0x46: Write First [RDETH DETH RETH] FullMtu;
    RD_RDMA_WRITE_MIDDLE = 0x47: Write Middle [RDETH DETH] FullMtu;
    RD_RDMA_WRITE_LAST = 0x48: Write Last [RDETH DETH] OneToMtu;
    RD_RDMA_WRITE_LAST_WITH_IMM = 0x49: Write Last [RDETH DETH IMMDT] OneToMtu;
    RD_RDMA_WRITE_ONLY = 0x4a: Write Only [RDETH DETH RETH] ZeroToMtu;
    RD_RDMA_WRITE_ONLY_WITH_IMM = 0x4b: Write Only [RDETH DETH RETH IMMDT] ZeroToMtu;
    RD_RDMA_READ_REQUEST = 0x4c: ReadRequest Only [RDETH DETH RETH] Empty;
    RD_RDMA_READ_RESPONSE_FIRST = 0x4d: ReadResponse First [RDETH AETH] FullMtu;
    RD_RDMA_READ_RESPONSE_MIDDLE = 0x4e: ReadResponse Middle [RDETH] FullMtu;
    RD_RDMA_READ_RESPONSE_LAST = 0x4f: ReadResponse Last [RDETH AETH] OneToMtu;
    RD_RDMA_READ_RESPONSE_ONLY = 0x50: ReadResponse Only [RDETH AETH] ZeroToMtu;
    RD_ACKNOWLEDGE = 0x51: Acknowledge Only [RDETH AETH] Empty;
    RD_ATOMIC_ACKNOWLEDGE = 0x52: AtomicAcknowledge Only [RDETH AETH ATOMIC_ACK_ETH] Empty;
    RD_COMPARE_SWAP = 0x53: CompareSwap Only [RDETH DETH ATOMIC_ETH] Empty;
    RD_FETCH_ADD = 0x54: FetchAdd Only [RDETH DETH ATOMIC_ETH] Empty;
    RD_RESYNC = 0x55: Resync Only [RDETH DETH] Empty;
    RD_FLUSH = 0x5c: Flush Only [RDETH DETH FETH RETH] Empty;

    UD_SEND_ONLY = 0x64: Send Only [DETH] ZeroToMtu;
    UD_SEND_ONLY_WITH_IMM = 0x65: Send Only [DETH IMMDT] ZeroToMtu;

    CNP = 0x81: Cnp Only [] Exactly(16);

    XRC_SEND_FIRST = 0xa0: Send First [XRCETH] FullMtu;
    XRC_SEND_MIDDLE = 0xa1: Send Middle [XRCETH] FullMtu;
    XRC_SEND_LAST = 0xa2: Send Last [XRCETH] OneToMtu;
    XRC_SEND_LAST_WITH_IMM = 0xa3: Send Last [XRCETH IMMDT] OneToMtu;
    XRC_SEND_ONLY = 0xa4: Send Only [XRCETH] ZeroToMtu;
    XRC_SEND_ONLY_WITH_IMM = 0xa5: Send Only [XRCETH IMMDT] ZeroToMtu;
    XRC_RDMA_WRITE_FIRST = 0xa6: Write First [XRCETH RETH] FullMtu;
    XRC_RDMA_WRITE_MIDDLE = 0xa7: Write Middle [XRCETH] FullMtu;
    XRC_RDMA_WRITE_LAST = 0xa8: Write Last [XRCETH] OneToMtu;
    XRC_RDMA_WRITE_LAST_WITH_IMM = 0xa9: Write Last [XRCETH IMMDT] OneToMtu;
    XRC_RDMA_WRITE_ONLY = 0xaa: Write Only [XRCETH RETH] ZeroToMtu;
    XRC_RDMA_WRITE_ONLY_WITH_IMM = 0xab: Write Only [XRCETH RETH IMMDT] ZeroToMtu;
    XRC_RDMA_READ_REQUEST = 0xac: ReadRequest Only [XRCETH RETH] Empty;
    XRC_RDMA_READ_RESPONSE_FIRST = 0xad: ReadResponse First [AETH] FullMtu;
    XRC_RDMA_READ_RESPONSE_MIDDLE = 0xae: ReadResponse Middle [] FullMtu;
    XRC_RDMA_READ_RESPONSE_LAST = 0xaf: ReadResponse Last [AETH] OneToMtu;
    XRC_RDMA_READ_RESPONSE_ONLY = 0xb0: ReadResponse Only [AETH] ZeroToMtu;
    XRC_ACKNOWLEDGE = 0xb1: Acknowledge Only [AETH] Empty;
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2: AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH] Empty;
    XRC_COMPARE_SWAP = 0xb3: CompareSwap Only [XRCETH ATOMIC_ETH] Empty;
    XRC_FETCH_ADD = 0xb4: FetchAdd Only [XRCETH ATOMIC_ETH] Empty;
    XRC_SEND_LAST_WITH_INVALIDATE = 0xb6: Send Last [XRCETH IETH] OneToMtu;
    XRC_SEND_ONLY_WITH_INVALIDATE = 0xb7: Send Only [XRCETH IETH] ZeroToMtu;
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn they_print() {
        assert_eq!(format!("{}", Opcode::RC_RDMA_READ_REQUEST), "RC_RDMA_READ_REQUEST");
        assert_eq!(format!("{:?}", Opcode(0xff)), "Opcode(0xff)");
    }

    #[test]
    fn names_agree_with_the_other_columns() {
        for info in TABLE.iter().flatten() {
            let name = info.name;
            assert_eq!(info.opcode.with_transport(Transport::Rc).with_transport(info.transport), info.opcode);
            let prefix = match info.transport {
                Transport::Rc => "RC_",
                Transport::Uc => "UC_",
                Transport::Rd => "RD_",
                Transport::Ud => "UD_",
                Transport::Cnp => "CNP",
                Transport::Xrc => "XRC_",
            };
            let operation = match info.operation {
                Operation::Send => "SEND_",
                Operation::Write => "RDMA_WRITE_",
                Operation::ReadRequest => "RDMA_READ_REQUEST",
                Operation::ReadResponse => "RDMA_READ_RESPONSE_",
                Operation::Acknowledge => "ACKNOWLEDGE",
                Operation::AtomicAcknowledge => "ATOMIC_ACKNOWLEDGE",
                Operation::CompareSwap => "COMPARE_SWAP",
                Operation::FetchAdd => "FETCH_ADD",
                Operation::Resync => "RESYNC",
                Operation::Flush => "FLUSH",
                Operation::AtomicWrite => "ATOMIC_WRITE",
                Operation::Cnp => "",
            };
            let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(operation));
            let rest = rest.unwrap_or_else(|| panic!("{name} is in the wrong row"));
            let position = match info.position {
                Position::First => "FIRST",
                Position::Middle => "MIDDLE",
                Position::Last => "LAST",
                Position::Only if operation.ends_with('_') => "ONLY",
                Position::Only => "",
            };
            assert!(rest.starts_with(position), "{name}");
            assert_eq!(info.has_immediate(), name.ends_with("_WITH_IMM"), "{name}");
            assert_eq!(info.starts_message(), !name.contains("MIDDLE") && !name.contains("LAST"), "{name}");
            assert_eq!(info.ends_message(), !name.contains("MIDDLE") && !name.contains("FIRST"), "{name}");
        }
    }

    #[test]
    fn offset_of_takes_one_header() {
        let info = Opcode::RD_RDMA_WRITE_ONLY_WITH_IMM.info().unwrap();
        assert_eq!(info.offset_of(HeaderSet::RETH), Some(24));
        assert_eq!(info.offset_of(HeaderSet::AETH), None);
        assert_eq!(info.offset_of(HeaderSet::empty()), None);
    }
}
