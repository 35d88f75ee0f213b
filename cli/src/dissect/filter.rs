//! The options that select the packets to print.

use clap::ValueEnum;
use roce_document::dissect::filter::{self, OpcodePattern, Prefix, PsnRange, TimeRange, parse_number};
use roce_packet::Ecn;

/// The options that select packets.
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Show only packets to this queue pair and datagrams from it; may be repeated
    #[arg(long, value_name = "NUMBER", value_parser = parse_number)]
    qp: Vec<u32>,

    /// Show only this opcode: a name, a prefix of names, or a number; may be repeated
    ///
    /// The transport and RDMA_ may be omitted: RC_RDMA_WRITE_ONLY, RC_SEND, READ_RESPONSE, 0x11.
    #[arg(long, value_name = "OPCODE", value_parser = OpcodePattern::parse)]
    opcode: Vec<OpcodePattern>,

    /// Show only PSNs from A to B, inclusive; the range may wrap around after 16777215
    #[arg(long, value_name = "A..B", value_parser = PsnRange::parse)]
    psn: Option<PsnRange>,

    /// Show only packets with a wrong ICRC, as --icrc bad does
    #[arg(long)]
    bad_icrc: bool,

    /// Show only packets whose ICRC has this state; may be repeated
    #[arg(long, value_name = "STATE", value_enum)]
    icrc: Vec<IcrcState>,

    /// Show only packets from or to this address or prefix, such as 192.0.2.0/24; may be repeated
    #[arg(long, value_name = "ADDRESS", value_parser = Prefix::parse)]
    address: Vec<Prefix>,

    /// Show only packets from A to B seconds after the first packet, inclusive; either may be omitted
    #[arg(long, value_name = "A..B", value_parser = TimeRange::parse)]
    time: Option<TimeRange>,

    /// Show only packets with this DSCP, from 0 to 63; may be repeated
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(..64))]
    dscp: Vec<u8>,

    /// Show only packets with this ECN codepoint; may be repeated
    #[arg(long, value_name = "CODEPOINT", value_enum)]
    ecn: Vec<Codepoint>,

    /// Show only packets with this mark; may be repeated
    #[arg(long, value_name = "MARK", value_enum)]
    mark: Vec<MarkName>,
}

/// The result of the ICRC check of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IcrcState {
    /// It is right
    Ok,
    /// It is wrong
    Bad,
    /// It cannot be checked, because the end of the packet is missing or its headers are broken
    Unchecked,
}

/// An ECN codepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Codepoint {
    /// The sender does not support ECN
    NotEct,
    /// ECT(0): a switch may mark the packet
    Ect0,
    /// ECT(1): a switch may mark the packet
    Ect1,
    /// Congestion experienced: a switch marked the packet
    Ce,
}

/// A conclusion from the PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MarkName {
    /// Packets before it are missing
    Gap,
    /// It fills an earlier gap
    Late,
    /// Its PSN was seen before
    Repeat,
    /// Its PSN is far from all earlier ones
    Jump,
    /// It has no mark
    None,
}

impl Codepoint {
    const fn ecn(self) -> Ecn {
        match self {
            Self::NotEct => Ecn::NotCapable,
            Self::Ect0 => Ecn::Capable0,
            Self::Ect1 => Ecn::Capable1,
            Self::Ce => Ecn::CongestionExperienced,
        }
    }
}

impl MarkName {
    const fn mark(self) -> filter::MarkName {
        match self {
            Self::Gap => filter::MarkName::Gap,
            Self::Late => filter::MarkName::Late,
            Self::Repeat => filter::MarkName::Repeat,
            Self::Jump => filter::MarkName::Jump,
            Self::None => filter::MarkName::None,
        }
    }
}

impl IcrcState {
    const fn icrc(self) -> filter::IcrcState {
        match self {
            Self::Ok => filter::IcrcState::Ok,
            Self::Bad => filter::IcrcState::Bad,
            Self::Unchecked => filter::IcrcState::Unchecked,
        }
    }
}

impl Filter {
    /// Returns the filters of the options. A packet is printed if it matches all of them.
    pub(super) fn all(&self) -> Vec<filter::Filter> {
        let icrcs = self.icrc.iter().map(|state| state.icrc()).collect();
        let options = filter::Filter {
            qps: self.qp.clone(),
            opcodes: self.opcode.clone(),
            psns: self.psn,
            icrcs,
            addresses: self.address.clone(),
            times: self.time,
            dscps: self.dscp.clone(),
            ecns: self.ecn.iter().map(|codepoint| codepoint.ecn()).collect(),
            marks: self.mark.iter().map(|name| name.mark()).collect(),
        };
        // A filter of its own: --bad-icrc and --icrc must both match.
        let bad = filter::Filter { icrcs: vec![filter::IcrcState::Bad], ..filter::Filter::default() };
        [Some(options), self.bad_icrc.then_some(bad)]
            .into_iter()
            .flatten()
            .filter(|filter| !filter.is_empty())
            .collect()
    }
}
