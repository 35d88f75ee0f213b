//! The names of opcodes and header fields in scripts. Positions come from the tables of `roce_packet`.

use roce_packet::fields::{self, Field, Value};
use roce_packet::{HeaderSet, NakCode, Opcode, OpcodeInfo, Transport};

/// A field of a header, by its name in scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The name in scripts.
    pub name: &'static str,
    /// The extended header that contains the field; empty for the BTH.
    header: HeaderSet,
    /// The name in the field tables.
    key: &'static str,
}

const BTH: HeaderSet = HeaderSet::empty();

const fn row(name: &'static str, header: HeaderSet, key: &'static str) -> Slot {
    Slot { name, header, key }
}

/// Every field that scripts can name. A name may occur in several headers, but not in two of one packet.
static SLOTS: &[Slot] = &[
    row("opcode", BTH, "infiniband.bth.opcode"),
    row("se", BTH, "infiniband.bth.se"),
    row("migreq", BTH, "infiniband.bth.m"),
    row("pad", BTH, "infiniband.bth.padcnt"),
    row("tver", BTH, "infiniband.bth.tver"),
    row("pkey", BTH, "infiniband.bth.p_key"),
    row("fecn", BTH, "roce.bth.fecn"),
    row("becn", BTH, "roce.bth.becn"),
    row("reserved6", BTH, "roce.bth.reserved6"),
    row("qp", BTH, "infiniband.bth.destqp"),
    row("ackreq", BTH, "infiniband.bth.a"),
    row("reserved7", BTH, "infiniband.bth.reserved7"),
    row("psn", BTH, "infiniband.bth.psn"),
    row("eec", HeaderSet::RDETH, "infiniband.rdeth.eecnxt"),
    row("qkey", HeaderSet::DETH, "infiniband.deth.q_key"),
    row("srcqp", HeaderSet::DETH, "infiniband.deth.srcqp"),
    row("srq", HeaderSet::XRCETH, "roce.xrceth.srq"),
    row("selectivity", HeaderSet::FETH, "roce.feth.selectivity"),
    row("persistent", HeaderSet::FETH, "roce.feth.persistence"),
    row("visible", HeaderSet::FETH, "roce.feth.global_visibility"),
    row("va", HeaderSet::RETH, "infiniband.reth.va"),
    row("rkey", HeaderSet::RETH, "infiniband.reth.r_key"),
    row("len", HeaderSet::RETH, "infiniband.reth.dmalen"),
    row("va", HeaderSet::ATOMIC_ETH, "infiniband.reth.va"),
    row("rkey", HeaderSet::ATOMIC_ETH, "infiniband.reth.r_key"),
    row("add", HeaderSet::ATOMIC_ETH, "infiniband.atomiceth.swapdt"),
    row("swap", HeaderSet::ATOMIC_ETH, "infiniband.atomiceth.swapdt"),
    row("compare", HeaderSet::ATOMIC_ETH, "infiniband.atomiceth.cmpdt"),
    row("syndrome", HeaderSet::AETH, "infiniband.aeth.syndrome"),
    row("timer", HeaderSet::AETH, "infiniband.aeth.syndrome.timer"),
    row("credits", HeaderSet::AETH, "infiniband.aeth.syndrome.credit_count"),
    row("msn", HeaderSet::AETH, "infiniband.aeth.msn"),
    row("original", HeaderSet::ATOMIC_ACK_ETH, "infiniband.atomicacketh.origremdt"),
    row("imm", HeaderSet::IMMDT, "infiniband.immdt"),
    row("invalidate", HeaderSet::IETH, "infiniband.ieth"),
];

/// Returns the field with this name in packets of an opcode.
#[must_use]
pub fn slot(name: &str, info: &OpcodeInfo) -> Option<Slot> {
    slots_of(info).find(|slot| slot.name == name)
}

/// Returns the fields of packets of an opcode, in wire order.
pub fn slots_of(info: &OpcodeInfo) -> impl Iterator<Item = Slot> {
    let headers = info.headers;
    SLOTS.iter().copied().filter(move |slot| headers.contains(slot.header))
}

impl Slot {
    fn field(&self) -> Option<&'static Field> {
        let table = fields::EXTENDED.iter().find(|(flag, _)| *flag == self.header);
        let table = table.map_or(&fields::BTH, |(_, table)| *table);
        table.fields.iter().find(|field| field.key == self.key)
    }

    fn start(&self, info: &OpcodeInfo) -> Option<usize> {
        if self.header.is_empty() { Some(0) } else { info.offset_of(self.header) }
    }

    /// Returns the number of bits of the field.
    #[must_use]
    pub fn width(&self) -> usize {
        self.field().map_or(64, |field| field.width)
    }

    /// Returns whether values count modulo the size of the field: sequence numbers and addresses.
    #[must_use]
    pub fn is_circular(&self) -> bool {
        matches!(self.name, "psn" | "msn" | "va" | "add" | "swap" | "compare" | "original")
    }

    /// Returns the value in a packet, without the condition that a part of the syndrome depends on.
    #[must_use]
    pub fn read(&self, packet: &[u8], info: &OpcodeInfo) -> Option<u64> {
        let field = Field { when: None, ..*self.field()? };
        match field.value(packet.get(self.start(info)?..)?)? {
            Value::Number(number) => Some(number),
            Value::Bytes(bytes) => Some(bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))),
        }
    }

    /// Sets the value in a packet, as far as the packet has the field.
    pub fn write(&self, packet: &mut [u8], info: &OpcodeInfo, value: u64) {
        let (Some(field), Some(start)) = (self.field(), self.start(info)) else { return };
        if let Some(header) = packet.get_mut(start..) {
            field.set(header, value);
        }
    }
}

/// The kind of an ACKNOWLEDGE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// An acknowledgement.
    Ack,
    /// A refusal with this code, or with any code.
    Nak(Option<NakCode>),
    /// Receiver not ready.
    Rnr,
}

/// The name of a packet in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketName {
    /// The opcode, of RC unless `is_fixed`.
    pub opcode: Opcode,
    /// Whether the name contains the transport, or only one transport has such packets.
    pub is_fixed: bool,
    /// The kind of an ACKNOWLEDGE packet.
    pub answer: Option<AnswerKind>,
}

impl PacketName {
    /// Returns the packet with this name: `write_only`, `uc_write_only`, `ack`, `nak`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let answer = match name {
            "ack" => Some(AnswerKind::Ack),
            "nak" => Some(AnswerKind::Nak(None)),
            "rnr_nak" => Some(AnswerKind::Rnr),
            _ => None,
        };
        if answer.is_some() {
            return Some(Self { opcode: Opcode::RC_ACKNOWLEDGE, is_fixed: false, answer });
        }
        let infos = || (0..=u8::MAX).filter_map(|code| Opcode(code).info());
        let unprefixed =
            infos().find(|info| short(info) == name).map(|info| (info, info.transport != Transport::Rc));
        let (info, is_fixed) =
            unprefixed.or_else(|| infos().find(|info| full(info) == name).map(|info| (info, true)))?;
        Some(Self { opcode: info.opcode, is_fixed, answer: None })
    }

    /// Returns the opcode on a connection of this transport.
    #[must_use]
    pub const fn opcode_for(&self, transport: Transport) -> Opcode {
        if self.is_fixed { self.opcode } else { self.opcode.with_transport(transport) }
    }
}

/// Returns every name without a transport, for suggestions.
pub fn packet_names() -> impl Iterator<Item = String> {
    let infos = (0..=u8::MAX).filter_map(|code| Opcode(code).info());
    let of_rc = infos.filter(|info| matches!(info.transport, Transport::Rc | Transport::Cnp)).map(short);
    of_rc.chain(["nak", "rnr_nak"].map(str::to_owned))
}

/// Returns the name of an opcode in scripts, with the transport unless it is RC.
#[must_use]
pub fn short_name(info: &OpcodeInfo) -> String {
    if matches!(info.transport, Transport::Rc | Transport::Cnp) { short(info) } else { full(info) }
}

/// Returns the name without the transport: `write_only` for `RC_RDMA_WRITE_ONLY`.
fn short(info: &OpcodeInfo) -> String {
    let name = info.name.split_once('_').map_or(info.name, |(_, name)| name);
    simplified(name)
}

/// Returns the name with the transport: `rc_write_only` for `RC_RDMA_WRITE_ONLY`.
fn full(info: &OpcodeInfo) -> String {
    simplified(info.name)
}

fn simplified(name: &str) -> String {
    name.to_lowercase().replace("rdma_", "").replace("with_", "").replace("acknowledge", "ack")
}

/// The names of the NAK codes.
const NAK_CODES: [(&str, NakCode); 5] = [
    ("sequence", NakCode::PsnSequence),
    ("invalid", NakCode::InvalidRequest),
    ("access", NakCode::RemoteAccess),
    ("operational", NakCode::RemoteOperational),
    ("invalid_rd", NakCode::InvalidRdRequest),
];

/// Returns the NAK code with this name.
#[must_use]
pub fn nak_code(name: &str) -> Option<NakCode> {
    NAK_CODES.iter().find(|(known, _)| *known == name).map(|(_, code)| *code)
}

/// Returns the name of a NAK code.
#[must_use]
pub fn nak_name(code: NakCode) -> Option<&'static str> {
    NAK_CODES.iter().find(|(_, known)| *known == code).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name of the table is one field of the header tables, so that no position is wrong.
    #[test]
    fn every_slot_has_a_field() {
        for slot in SLOTS {
            assert!(slot.field().is_some(), "{slot:?}");
        }
    }

    #[test]
    fn names_of_packets() {
        let parsed = |name: &str| PacketName::parse(name).map(|name| (name.opcode, name.is_fixed));
        for (name, opcode, is_fixed) in [
            ("write_only", Opcode::RC_RDMA_WRITE_ONLY, false),
            ("send_last_imm", Opcode::RC_SEND_LAST_WITH_IMM, false),
            ("read_request", Opcode::RC_RDMA_READ_REQUEST, false),
            ("read_response_only", Opcode::RC_RDMA_READ_RESPONSE_ONLY, false),
            ("atomic_ack", Opcode::RC_ATOMIC_ACKNOWLEDGE, false),
            ("ack", Opcode::RC_ACKNOWLEDGE, false),
            ("uc_send_only", Opcode::UC_SEND_ONLY, true),
            ("ud_send_only_imm", Opcode::UD_SEND_ONLY_WITH_IMM, true),
            ("cnp", Opcode::CNP, true),
        ] {
            assert_eq!(parsed(name), Some((opcode, is_fixed)), "{name}");
        }
        assert_eq!(parsed("write_once"), None);
    }

    #[test]
    fn one_name_of_a_packet_is_one_field() {
        for info in (0..=u8::MAX).filter_map(|code| Opcode(code).info()) {
            let mut names: Vec<&str> = slots_of(info).map(|slot| slot.name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{}", info.name);
        }
    }
}
