//! Congestion notification packets: a receiver tells a sender that the network marked its data (Annex A17).
//!
//! ```text
//!  0     12              28     32
//! +-----+---------------+------+
//! | BTH | 16 zero bytes | ICRC |
//! +-----+---------------+------+
//! ```
//!
//! A CNP has no sequence number and is never acknowledged. The destination field of its BTH contains the
//! queue pair that must slow down: that of the data sender.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bth::Bth;
use crate::datagram::Datagram;
use crate::envelope::Envelope;
use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::{Field, Header, Show, bytes};
use crate::icrc;
use crate::number::{Psn, Qpn};
use crate::opcode::Opcode;
use crate::path::{Ecn, Path};

/// Default DSCP of CNPs: class selector 6.
pub const DEFAULT_CNP_DSCP: u8 = 48;

/// Default VLAN priority of CNPs.
pub const DEFAULT_CNP_PCP: u8 = 6;

/// A congestion notification packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cnp {
    /// Queue pair that must slow down: the sender of the marked packet.
    pub dest_qp: Qpn,
    /// Partition key of the flow.
    pub p_key: u16,
}

impl Cnp {
    /// Length from BTH to ICRC, in bytes.
    pub const LEN: usize = Bth::LEN + Self::RESERVED_LEN + size_of::<u32>();

    /// Number of bytes between BTH and ICRC, all zero.
    pub const RESERVED_LEN: usize = 16;

    /// Returns the path of a CNP for data that arrived on `data`: the reverse path with the given DSCP. The
    /// CNP itself may be marked, as in CNPs of ConnectX, and a VLAN tag gets the given priority. The hop
    /// limit is that of `data`: a caller that passes a received path must set its own.
    #[must_use]
    pub const fn path(data: &Path, dscp: u8, pcp: u8) -> Path {
        let mut path = data.reply().with_dscp(dscp).with_ecn(Ecn::Capable0);
        if let Some(mut tag) = path.vlan {
            tag.pcp = pcp;
            path.vlan = Some(tag);
        }
        path
    }

    /// Parses a CNP. Ignores its deviations from the standard form, as a receiver must.
    ///
    /// Returns [`ParseErrorKind::UnknownOpcode`] for another opcode, and [`ParseErrorKind::BadLength`] for
    /// another length.
    pub fn parse(datagram: &Datagram<'_>) -> Result<Self, ParseError> {
        let bth = datagram.bth();
        let fail = |kind, need, have| Err(ParseError { layer: Layer::Cnp, kind, offset: 0, need, have });
        if bth.opcode != Opcode::CNP {
            return fail(ParseErrorKind::UnknownOpcode, Opcode::CNP.0.into(), bth.opcode.0.into());
        }
        if datagram.len() != Self::LEN {
            return fail(ParseErrorKind::BadLength, Self::LEN, datagram.len());
        }
        Ok(Self { dest_qp: bth.dest_qp, p_key: bth.p_key })
    }

    /// Writes BTH to ICRC. `envelope` describes the headers that will precede the CNP.
    pub fn emit(&self, envelope: &Envelope, out: &mut [u8; Self::LEN]) {
        let whole: &mut WholeCnp = zerocopy::transmute_mut!(out);
        let WholeCnp { covered, icrc } = whole;
        self.bth().emit(&mut covered.bth);
        covered.reserved = [0; Self::RESERVED_LEN];
        *icrc = icrc::compute(envelope, covered.as_bytes(), &[]).to_le_bytes();
    }

    /// Returns the BTH of the packet.
    #[must_use]
    pub const fn bth(&self) -> Bth {
        Bth {
            opcode: Opcode::CNP,
            solicited: false,
            mig_req: false,
            pad_count: 0,
            p_key: self.p_key,
            fecn: false,
            becn: true,
            dest_qp: self.dest_qp,
            ack_req: false,
            psn: Psn::new(0),
        }
    }
}

/// Memory layout of a CNP.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WholeCnp {
    covered: CoveredCnp,
    icrc: [u8; 4],
}

/// The part of a CNP that the ICRC covers.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CoveredCnp {
    bth: [u8; Bth::LEN],
    reserved: [u8; Cnp::RESERVED_LEN],
}

bitflags! {
    /// Deviations of a CNP from the form in Annex A17, for tools that examine packets of other
    /// implementations. See [`Self::of`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CnpDeviations: u8 {
        /// BECN is not set.
        const BECN_CLEAR = 1 << 0;
        /// FECN is set.
        const FECN_SET = 1 << 1;
        /// MigReq is set.
        const MIG_REQ_SET = 1 << 2;
        /// The solicited event bit is set.
        const SOLICITED = 1 << 3;
        /// The acknowledge request bit is set.
        const ACK_REQ_SET = 1 << 4;
        /// The packet sequence number is not 0.
        const PSN_NOT_ZERO = 1 << 5;
        /// The reserved bytes are not all 0.
        const RESERVED_NOT_ZERO = 1 << 6;
        /// Some reserved bytes are counted as padding.
        const PADDED = 1 << 7;
    }
}

impl CnpDeviations {
    /// Returns the deviations of a datagram that [`Cnp::parse`] accepted.
    #[must_use]
    pub fn of(datagram: &Datagram<'_>) -> Self {
        let bth = datagram.bth();
        let (head, tail) = datagram.payload();
        let mut found = Self::empty();
        found.set(Self::BECN_CLEAR, !bth.becn);
        found.set(Self::FECN_SET, bth.fecn);
        found.set(Self::MIG_REQ_SET, bth.mig_req);
        found.set(Self::SOLICITED, bth.solicited);
        found.set(Self::ACK_REQ_SET, bth.ack_req);
        found.set(Self::PSN_NOT_ZERO, bth.psn != Psn::new(0));
        found.set(Self::RESERVED_NOT_ZERO, head.iter().chain(tail).any(|byte| *byte != 0));
        found.set(Self::PADDED, bth.pad_count != 0);
        found
    }
}

/// The content of a CNP between BTH and ICRC.
pub static CNP: Header = Header {
    name: "CNP",
    title: "congestion notification",
    purpose: "Fills the packet: the arrival of a CNP alone tells the sender of a flow to slow down.",
    rule: "IBTA A17.9",
    fields: &[Field::new("reserved", "roce.cnp.reserved", bytes(0, 16), Show::Bytes)
        .means("16 bytes, sent as zero.")],
};
