//! Selects the packets to print.

use roce_packet::{Opcode, Psn};

use crate::decode::walk::Walk;

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

    /// Show only packets with a wrong ICRC
    #[arg(long)]
    bad_icrc: bool,
}

impl Filter {
    /// Returns whether the packet matches every filter.
    pub(super) fn matches(&self, walk: &Walk<'_>) -> bool {
        let unfiltered = self.qp.is_empty() && self.opcode.is_empty() && self.psn.is_none() && !self.bad_icrc;
        let Some(packet) = walk.packet() else { return unfiltered };
        let source_qp = walk.number("infiniband.deth.srcqp");
        let is_qp = |qp: &u32| packet.bth.dest_qp().get() == *qp || source_qp == Some(u64::from(*qp));
        (self.qp.is_empty() || self.qp.iter().any(is_qp))
            && (self.opcode.is_empty()
                || self.opcode.iter().any(|pattern| pattern.matches(packet.bth.opcode())))
            && self.psn.is_none_or(|range| range.contains(packet.bth.psn()))
            && (!self.bad_icrc || packet.icrc.is_bad())
    }
}

/// Parses a number of up to 24 bits, decimal or hexadecimal with `0x`.
fn parse_number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) if number <= Psn::MASK => Ok(number),
        Ok(_) => Err(format!("the number is greater than {}, the largest 24-bit number", Psn::MASK)),
        Err(_) => Err("expected a number such as 17 or 0x11".to_owned()),
    }
}

/// The opcodes that a name, a prefix or a number selects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OpcodePattern(Vec<Opcode>);

impl OpcodePattern {
    fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return match parse_number(text).map(u8::try_from) {
                Ok(Ok(value)) => Ok(Self(vec![Opcode(value)])),
                _ => Err("an opcode is a number from 0 to 255".to_owned()),
            };
        }
        let wanted = text.to_ascii_uppercase().replace(['-', ' '], "_");
        let named = (0..=u8::MAX).map(Opcode).filter_map(|opcode| Some((opcode, opcode.name()?)));
        let exact = named.clone().find(|(_, name)| *name == wanted || short_name(name) == wanted);
        if let Some((opcode, _)) = exact {
            return Ok(Self(vec![opcode]));
        }
        let begins = |name: &str| {
            let operation = name.split_once('_').map_or(name, |(_, operation)| operation);
            [name, operation]
                .iter()
                .any(|name| name.starts_with(&wanted) || short_name(name).starts_with(&wanted))
        };
        let opcodes: Vec<_> = named.filter(|(_, name)| begins(name)).map(|(opcode, _)| opcode).collect();
        if wanted.is_empty() || opcodes.is_empty() {
            return Err(
                "no opcode has a name with this prefix; try RC_SEND, WRITE, READ_RESPONSE, ACKNOWLEDGE, CNP \
                        or a number"
                    .to_owned(),
            );
        }
        Ok(Self(opcodes))
    }

    fn matches(&self, opcode: Opcode) -> bool {
        self.0.contains(&opcode)
    }
}

/// Returns the name of an opcode without the redundant `RDMA_`.
fn short_name(name: &str) -> String {
    name.replacen("RDMA_", "", 1)
}

/// An inclusive range of PSNs, modulo 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PsnRange {
    first: Psn,
    last: Psn,
}

impl PsnRange {
    fn parse(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let psn = |text: &str| parse_number(text.trim()).map(Psn::new);
        Ok(Self { first: psn(first)?, last: psn(last.trim_start_matches('='))? })
    }

    fn contains(self, psn: Psn) -> bool {
        self.first.distance_to(psn) <= self.first.distance_to(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_found_by_name_prefix_and_number() {
        let count = |text: &str| OpcodePattern::parse(text).map(|pattern| pattern.0.len());
        assert_eq!(OpcodePattern::parse("0x11"), Ok(OpcodePattern(vec![Opcode::RC_ACKNOWLEDGE])));
        assert_eq!(OpcodePattern::parse("4"), Ok(OpcodePattern(vec![Opcode::RC_SEND_ONLY])));
        // A complete name selects only that opcode, even if it is a prefix of other names.
        assert_eq!(count("RC_SEND_ONLY"), Ok(1));
        assert_eq!(count("rc-write-only"), Ok(1));
        assert_eq!(count("RC_SEND"), Ok(8));
        assert_eq!(count("RC_WRITE"), Ok(6));
        assert_eq!(count("rc_rdma_write"), Ok(6));
        assert_eq!(count("ACK"), Ok(3));
        assert_eq!(count("UD"), Ok(2));
        assert!(count("SENT").is_err());
        assert!(count("256").is_err());
        assert!(count("").is_err());
    }

    #[test]
    fn psn_ranges_wrap_around() {
        let range = PsnRange::parse("16777214..2").unwrap();
        let inside: Vec<_> =
            [0, 1, 2, 3, 0xff_fffd, 0xff_fffe, 0xff_ffff].map(|psn| range.contains(Psn::new(psn))).into();
        assert_eq!(inside, [true, true, true, false, false, true, true]);
        assert!(PsnRange::parse("7").unwrap().contains(Psn::new(7)));
        assert!(!PsnRange::parse("7").unwrap().contains(Psn::new(8)));
        assert_eq!(PsnRange::parse("0x10..=0x20"), PsnRange::parse("16..32"));
        for text in ["", "..", "5..", "a..b", "0..16777216", "-1"] {
            assert!(PsnRange::parse(text).is_err(), "{text}");
        }
    }
}
