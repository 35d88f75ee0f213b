//! Selects the packets to print.

use std::net::IpAddr;

use clap::ValueEnum;
use roce_packet::{Ecn, Opcode, Psn};

use super::flows::Mark;
use super::shown::Shown;
use crate::decode::walk::Icrc;

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
    fn matches(self, mark: Option<Mark>) -> bool {
        match (self, mark) {
            (Self::None, mark) => mark.is_none(),
            (Self::Gap, Some(Mark::Gap { .. } | Mark::Unfinished))
            | (Self::Late, Some(Mark::Late))
            | (Self::Repeat, Some(Mark::Repeat))
            | (Self::Jump, Some(Mark::Jump)) => true,
            _ => false,
        }
    }
}

impl IcrcState {
    const fn of(icrc: Icrc) -> Self {
        match icrc {
            Icrc::Checked(check, _) if check.is_good() => Self::Ok,
            Icrc::Checked(..) => Self::Bad,
            Icrc::Unchecked(_) => Self::Unchecked,
        }
    }
}

impl Filter {
    /// Returns whether the packet matches every filter.
    pub(super) fn matches(&self, shown: &Shown<'_>) -> bool {
        self.matches_headers(shown) && self.matches_transport(shown)
    }

    /// Checks the filters that packets without a BTH can match, too.
    fn matches_headers(&self, shown: &Shown<'_>) -> bool {
        let outer = &shown.walk.outer;
        let is_address = || {
            let addresses = outer.addresses();
            let mut both = addresses.into_iter().flat_map(|(source, destination)| [source, destination]);
            both.any(|address| self.address.iter().any(|prefix| prefix.contains(address)))
        };
        let class = outer.traffic_class();
        let is_ecn = |class: u8| self.ecn.iter().any(|codepoint| codepoint.ecn() == Ecn::from_bits(class));
        (self.address.is_empty() || is_address())
            && self.time.is_none_or(|range| shown.since_first().is_some_and(|time| range.contains(time)))
            && (self.dscp.is_empty() || class.is_some_and(|class| self.dscp.contains(&(class >> 2))))
            && (self.ecn.is_empty() || class.is_some_and(is_ecn))
    }

    fn matches_transport(&self, shown: &Shown<'_>) -> bool {
        let walk = shown.walk;
        let Some(packet) = walk.packet() else {
            return self.qp.is_empty()
                && self.opcode.is_empty()
                && self.psn.is_none()
                && !self.bad_icrc
                && self.icrc.is_empty()
                && self.mark.is_empty();
        };
        let is_qp = |qp: &u32| {
            packet.bth.dest_qp().get() == *qp || walk.number("infiniband.deth.srcqp") == Some(u64::from(*qp))
        };
        (self.qp.is_empty() || self.qp.iter().any(is_qp))
            && (self.opcode.is_empty()
                || self.opcode.iter().any(|pattern| pattern.matches(packet.bth.opcode())))
            && self.psn.is_none_or(|range| range.contains(packet.bth.psn()))
            && (!self.bad_icrc || packet.icrc.is_bad())
            && (self.icrc.is_empty() || self.icrc.contains(&IcrcState::of(packet.icrc)))
            && (self.mark.is_empty() || self.mark.iter().any(|name| name.matches(shown.mark)))
    }
}

/// An address, or all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    address: IpAddr,
    len: u32,
}

impl Prefix {
    fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected an address such as 192.0.2.1 or a prefix such as 2001:db8::/32";

        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| EXPECTED.to_owned())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let len = match len {
            Some(len) => len.parse().map_err(|_| EXPECTED.to_owned())?,
            None => longest,
        };
        if len > longest {
            return Err(format!("a prefix of this address has at most {longest} bits"));
        }
        Ok(Self { address, len })
    }

    /// Returns whether the address has this prefix. GIDs of IPv4 addresses count as IPv4 addresses.
    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(prefix), IpAddr::V4(address)) => {
                let differing = prefix.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.len
            }
            (IpAddr::V6(prefix), _) => {
                let address = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                (prefix.to_bits() ^ address.to_bits()).leading_zeros() >= self.len
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => false,
        }
    }
}

/// An inclusive range of times since the first packet, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeRange {
    first: i128,
    last: i128,
}

impl TimeRange {
    fn parse(text: &str) -> Result<Self, String> {
        let Some((first, last)) = text.split_once("..") else {
            return Err("expected a range of seconds such as 1.5..2, 1.5.. or ..2".to_owned());
        };
        let bound = |text: &str, open: i128| if text.is_empty() { Ok(open) } else { nanoseconds(text) };
        let range = Self { first: bound(first, i128::MIN)?, last: bound(last, i128::MAX)? };
        if range.first > range.last {
            return Err("the range ends before it begins".to_owned());
        }
        Ok(range)
    }

    fn contains(self, time: i128) -> bool {
        (self.first..=self.last).contains(&time)
    }
}

/// Parses seconds with at most nine digits behind the point, exactly.
fn nanoseconds(text: &str) -> Result<i128, String> {
    let expected = || format!("{text:?} is no number of seconds with at most nine digits behind the point");
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || whole.len() > 18 || fraction.len() > 9 || !is_digits(whole) || !is_digits(fraction)
    {
        return Err(expected());
    }
    let all: i128 = format!("{whole}{fraction:0<9}").parse().map_err(|_| expected())?;
    Ok(sign * all)
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
    fn prefixes_contain_addresses() {
        let contains = |prefix: &str, address: &str| {
            Prefix::parse(prefix).unwrap().contains(address.parse::<IpAddr>().unwrap())
        };
        assert!(contains("192.0.2.1", "192.0.2.1") && !contains("192.0.2.1", "192.0.2.2"));
        assert!(contains("192.0.2.0/24", "192.0.2.255") && !contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("0.0.0.0/0", "198.18.0.1") && !contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("2001:db8::/32", "2001:db8:9::1") && !contains("2001:db8::/32", "2001:db9::1"));
        assert!(contains("::/0", "2001:db8::1"));
        // The GID of an IPv4 address.
        assert!(contains("192.0.2.1", "::ffff:192.0.2.1") && contains("::ffff:192.0.2.1", "192.0.2.1"));
        for text in ["", "192.0.2", "192.0.2.1/33", "::/129", "::1/", "192.0.2.1/-1", "x/8"] {
            assert!(Prefix::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_exact_and_may_be_open() {
        let range = TimeRange::parse("0.000000001..1.5").unwrap();
        assert_eq!(range, TimeRange { first: 1, last: 1_500_000_000 });
        assert!(range.contains(1) && range.contains(1_500_000_000) && !range.contains(0));
        assert!(TimeRange::parse("..2").unwrap().contains(-1));
        assert!(TimeRange::parse("-1..").unwrap().contains(i128::from(u64::MAX)));
        for text in
            ["", "1", "2..1", "1e3..", "1.0000000001..", "..x", ".5..", "--1..", "9999999999999999999.."]
        {
            assert!(TimeRange::parse(text).is_err(), "{text}");
        }
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
