//! The base transport header, the first header of every datagram (IBTA 9.2).

use core::fmt;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Flag, Hex};
use crate::fields::{Field, Header, bytes, mask};
use crate::number::{Psn, Qpn};
use crate::opcode::{BTH_LEN, Opcode};
use crate::view::view;

/// The base transport header as laid out in a packet.
///
/// ```text
///  0        1                      2       4                   5          8             9     12
/// +--------+----+----+-----+------+-------+-----+-----+-------+----------+-----+-------+-----+
/// | opcode | SE | M  | pad | TVer | P_Key | F   | B   | resv. | dest. QP | A   | resv. | PSN |
/// |        | 1b | 1b | 2b  | 4b   |       | 1b  | 1b  | 6b    |          | 1b  | 7b    |     |
/// +--------+----+----+-----+------+-------+-----+-----+-------+----------+-----+-------+-----+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BthView {
    opcode: u8,
    flags: u8,
    p_key: U16,
    congestion: u8,
    dest_qp: [u8; 3],
    ack_request: u8,
    psn: [u8; 3],
}

view! {
    BthView(self) of Bth in Layer::Bth;

    /// Returns the operation, known or not.
    opcode -> Opcode = Opcode(self.opcode);

    /// Returns SE, the solicited event bit.
    solicited -> bool = self.flags & SOLICITED != 0;

    /// Returns M, the migration request bit.
    mig_req -> bool = self.flags & MIGRATION_REQUEST != 0;

    /// Returns PadCnt: the number of bytes added after the payload, 0 to 3.
    pad_count -> u8 = self.flags >> PAD_SHIFT & 0b11;

    /// Returns TVer, the transport version, 0 to 15.
    version -> u8 = self.flags & 0x0f;

    /// Returns the partition key.
    p_key -> u16 = self.p_key.get();

    /// Returns F, the forward congestion bit.
    fecn -> bool = self.congestion & FECN != 0;

    /// Returns B, the backward congestion bit.
    becn -> bool = self.congestion & BECN != 0;

    /// Returns the six reserved bits beside the congestion bits.
    reserved6 -> u8 = self.congestion & 0x3f;

    /// Returns the whole byte of the congestion bits, which the ICRC does not cover.
    variant_byte -> u8 = self.congestion;

    /// Returns the receiving queue pair.
    dest_qp -> Qpn = Qpn::from_be_bytes(self.dest_qp);

    /// Returns A, the acknowledge request bit.
    ack_req -> bool = self.ack_request & ACK_REQUEST != 0;

    /// Returns the seven reserved bits beside the acknowledge request bit.
    reserved7 -> u8 = self.ack_request & 0x7f;

    /// Returns the packet sequence number.
    psn -> Psn = Psn::from_be_bytes(self.psn);
}

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// The operation, known or not.
    pub opcode: Opcode,
    /// Whether the receiver raises a solicited completion event for the message.
    pub solicited: bool,
    /// Path migration state. Hardware that never migrates sends 1; receivers must accept both values.
    pub mig_req: bool,
    /// Number of bytes added after the payload to reach a multiple of four, 0 to 3. Only the low two bits are
    /// written. A datagram writer sets them itself.
    pub pad_count: u8,
    /// The partition key, 0xffff on most RoCE networks.
    pub p_key: u16,
    /// Forward congestion notification; unused by RoCE v2.
    pub fecn: bool,
    /// Backward congestion notification; set in a congestion notification packet.
    pub becn: bool,
    /// Receiving queue pair.
    pub dest_qp: Qpn,
    /// Whether the requester wants an acknowledgement.
    pub ack_req: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = BTH_LEN;

    /// Creates a header with the defaults of a NIC: default partition, MigReq set, all other flags clear.
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad_count: 0,
            p_key: 0xffff,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Parses the header. Returns it and the remaining bytes. Rejects transport versions other than 0;
    /// accepts any opcode.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = BthView::from_prefix(bytes)?;
        if view.version() != 0 {
            return Err(ParseError {
                layer: Layer::Bth,
                kind: ParseErrorKind::BadVersion,
                offset: 1,
                need: 0,
                have: view.version().into(),
            });
        }
        let bth = Self {
            opcode: view.opcode(),
            solicited: view.solicited(),
            mig_req: view.mig_req(),
            pad_count: view.pad_count(),
            p_key: view.p_key(),
            fecn: view.fecn(),
            becn: view.becn(),
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        };
        Ok((bth, rest))
    }

    /// Writes the header with reserved bits and version set to 0.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        *out = zerocopy::transmute!(BthView {
            opcode: self.opcode.0,
            flags: flag(self.solicited, SOLICITED)
                | flag(self.mig_req, MIGRATION_REQUEST)
                | (self.pad_count & 0b11) << PAD_SHIFT,
            p_key: U16::new(self.p_key),
            congestion: flag(self.fecn, FECN) | flag(self.becn, BECN),
            dest_qp: self.dest_qp.to_be_bytes(),
            ack_request: flag(self.ack_req, ACK_REQUEST),
            psn: self.psn.to_be_bytes(),
        });
    }
}

const SOLICITED: u8 = 0x80;
const MIGRATION_REQUEST: u8 = 0x40;
pub(crate) const PAD_SHIFT: u32 = 4;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;

/// The fields of a [`BthView`].
pub static BTH: Header = Header {
    name: "BTH",
    title: "base transport header",
    purpose: "Begins every packet: names the operation, the receiving queue pair and the sequence number.",
    rule: "IBTA 9.2",
    fields: &[
        Field::new("OpCode", "infiniband.bth.opcode", bytes(0, 1), Hex)
            .note(opcode_note)
            .means("Transport service (upper 3 bits) and operation (lower 5); decides which headers follow."),
        Field::new("SE", "infiniband.bth.se", mask(1, 0x80), Flag)
            .means("Solicited event: the receiver's completion wakes the application up."),
        Field::new("M", "infiniband.bth.m", mask(1, 0x40), Flag)
            .means("MigReq, the state of path migration: RNICs send 1, Linux rxe 0; receivers accept both."),
        Field::new("PadCnt", "infiniband.bth.padcnt", mask(1, 0x30), Decimal)
            .means("Padding behind the payload, 0 to 3 bytes, up to a multiple of 4."),
        Field::new("TVer", "infiniband.bth.tver", mask(1, 0x0f), Decimal)
            .means("Version of the transport; receivers drop packets with another value than 0."),
        Field::new("P_Key", "infiniband.bth.p_key", bytes(2, 2), Hex)
            .note(partition_note)
            .means("Partition of both ends; RoCE networks almost always use the default one, 0xffff."),
        Field::new("F", "roce.bth.fecn", mask(4, 0x80), Flag)
            .variant()
            .means("FECN, forward congestion notification; RoCE v2 uses the ECN bits of IP instead."),
        Field::new("B", "roce.bth.becn", mask(4, 0x40), Flag)
            .variant()
            .means("BECN, set in a CNP: the receiver of this packet must slow down."),
        Field::reserved("roce.bth.reserved6", mask(4, 0x3f)).variant(),
        Field::new("DestQP", "infiniband.bth.destqp", bytes(5, 3), Hex)
            .note(queue_pair_note)
            .means("Number of the receiving queue pair, 24 bits."),
        Field::new("A", "infiniband.bth.a", mask(8, 0x80), Flag)
            .means("AckReq: the requester asks for an acknowledgement of this packet."),
        Field::reserved("infiniband.bth.reserved7", mask(8, 0x7f)),
        Field::new("PSN", "infiniband.bth.psn", bytes(9, 3), Decimal).means(
            "Packet sequence number, 24 bits; it wraps around. A response carries that of its request.",
        ),
    ],
};

fn opcode_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    let opcode = Opcode(value as u8);
    out.write_str(opcode.name().unwrap_or(if opcode.is_vendor_specific() {
        "vendor-specific"
    } else {
        "not assigned"
    }))
}

fn partition_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value {
        0xffff => "default partition, full member",
        0x7fff => "default partition, limited member",
        value if value & 0x8000 != 0 => "full member",
        _ => "limited member",
    })
}

fn queue_pair_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value as u32 {
        0 => "subnet management, unused in RoCE",
        1 => "connection management (GSI)",
        0xff_ffff => "multicast",
        _ => "",
    })
}
