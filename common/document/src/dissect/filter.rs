//! Selects packets by their addresses, their times and their transport headers.

use std::net::IpAddr;

use roce_analysis::walk::Icrc;
use roce_packet::{Ecn, HeaderSet, Opcode, OpcodeInfo, Psn};

use super::flows::Mark;
use super::shown::Shown;

/// A selection of packets. An empty list and `None` select every packet; of a list, one element must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Destination queue pairs, or for datagrams also source queue pairs.
    pub qps: Vec<u32>,
    /// Opcodes.
    pub opcodes: Vec<OpcodePattern>,
    /// PSNs.
    pub psns: Option<PsnRange>,
    /// Results of the ICRC check.
    pub icrcs: Vec<IcrcState>,
    /// Addresses of the sender or the receiver.
    pub addresses: Vec<Prefix>,
    /// Times since the first packet.
    pub times: Option<TimeRange>,
    /// DSCPs, 0 to 63.
    pub dscps: Vec<u8>,
    /// ECN codepoints.
    pub ecns: Vec<Ecn>,
    /// Marks.
    pub marks: Vec<MarkName>,
}

/// The result of the ICRC check of a packet, without the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcState {
    /// It is right.
    Ok,
    /// It is wrong.
    Bad,
    /// It cannot be checked, because the end of the packet is missing or its headers are broken.
    Unchecked,
}

/// A conclusion from the PSN, without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkName {
    /// Packets before it are missing.
    Gap,
    /// It fills an earlier gap.
    Late,
    /// Its PSN was seen before.
    Repeat,
    /// Its PSN is far from all earlier ones.
    Jump,
    /// It has no mark.
    None,
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
    /// Returns the state of a result.
    #[must_use]
    pub const fn of(icrc: Icrc) -> Self {
        match icrc {
            Icrc::Checked(check, _) if check.is_good() => Self::Ok,
            Icrc::Checked(..) => Self::Bad,
            Icrc::Unchecked(_) => Self::Unchecked,
        }
    }
}

/// The properties of a packet that filters compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Addresses of the sender and the receiver.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Time since the first packet in nanoseconds.
    pub since_first: Option<i128>,
    /// DSCP and ECN.
    pub traffic_class: Option<u8>,
    /// Facts from the BTH on; `None` without a BTH.
    pub transport: Option<TransportFacts>,
}

/// The properties of a packet with a BTH that filters compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportFacts {
    /// Destination queue pair.
    pub dest_qp: u32,
    /// Source queue pair, if the packet contains it.
    pub source_qp: Option<u32>,
    /// The operation.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Result of the ICRC check.
    pub icrc: IcrcState,
    /// Conclusion from the PSN.
    pub mark: Option<Mark>,
}

impl Facts {
    /// Returns the facts about a packet.
    #[must_use]
    pub fn of(shown: &Shown<'_>) -> Self {
        let outer = &shown.walk.outer;
        let source_qp = |info: Option<&OpcodeInfo>| {
            info.filter(|info| info.headers.contains(HeaderSet::DETH))?;
            u32::try_from(shown.walk.number("infiniband.deth.srcqp")?).ok()
        };
        let transport = shown.walk.packet().map(|packet| TransportFacts {
            dest_qp: packet.bth.dest_qp().get(),
            source_qp: source_qp(packet.info),
            opcode: packet.bth.opcode(),
            psn: packet.bth.psn(),
            icrc: IcrcState::of(packet.icrc),
            mark: shown.mark,
        });
        Self {
            addresses: outer.addresses(),
            since_first: shown.since_first(),
            traffic_class: outer.traffic_class(),
            transport,
        }
    }
}

impl Filter {
    /// Returns whether it selects every packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a packet matches everything that the filter names.
    #[must_use]
    pub fn matches(&self, facts: &Facts) -> bool {
        self.matches_headers(facts) && self.matches_transport(facts.transport.as_ref())
    }

    /// Checks what packets without a BTH can match, too.
    fn matches_headers(&self, facts: &Facts) -> bool {
        let is_address = || {
            let mut both =
                facts.addresses.into_iter().flat_map(|(source, destination)| [source, destination]);
            both.any(|address| self.addresses.iter().any(|prefix| prefix.contains(address)))
        };
        let class = facts.traffic_class;
        (self.addresses.is_empty() || is_address())
            && self.times.is_none_or(|range| facts.since_first.is_some_and(|time| range.contains(time)))
            && (self.dscps.is_empty() || class.is_some_and(|class| self.dscps.contains(&(class >> 2))))
            && (self.ecns.is_empty() || class.is_some_and(|class| self.ecns.contains(&Ecn::from_bits(class))))
    }

    fn matches_transport(&self, facts: Option<&TransportFacts>) -> bool {
        let Some(facts) = facts else {
            return self.qps.is_empty()
                && self.opcodes.is_empty()
                && self.psns.is_none()
                && self.icrcs.is_empty()
                && self.marks.is_empty();
        };
        let is_qp = |qp: &u32| facts.dest_qp == *qp || facts.source_qp == Some(*qp);
        (self.qps.is_empty() || self.qps.iter().any(is_qp))
            && (self.opcodes.is_empty() || self.opcodes.iter().any(|pattern| pattern.matches(facts.opcode)))
            && self.psns.is_none_or(|range| range.contains(facts.psn))
            && (self.icrcs.is_empty() || self.icrcs.contains(&facts.icrc))
            && (self.marks.is_empty() || self.marks.iter().any(|name| name.matches(facts.mark)))
    }
}

/// An address, or all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u32,
}

impl Prefix {
    /// Parses an address, or an address, a slash and a number of bits.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
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
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
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
pub struct TimeRange {
    first: i128,
    last: i128,
}

impl TimeRange {
    /// Parses two numbers of seconds with `..` between them; either may be missing.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
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

    /// Returns whether a time in nanoseconds is in the range.
    #[must_use]
    pub fn contains(self, time: i128) -> bool {
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
///
/// # Errors
///
/// Returns a sentence that says what was expected.
pub fn parse_number(text: &str) -> Result<u32, String> {
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
pub struct OpcodePattern(Vec<Opcode>);

impl OpcodePattern {
    /// Parses a name, a prefix of names, or a number. The transport and `RDMA_` may be missing in a name.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
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

    /// Returns whether it selects an opcode.
    #[must_use]
    pub fn matches(&self, opcode: Opcode) -> bool {
        self.0.contains(&opcode)
    }
}

/// Returns the name of an opcode without the redundant `RDMA_`.
fn short_name(name: &str) -> String {
    name.replacen("RDMA_", "", 1)
}

/// An inclusive range of PSNs, modulo 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnRange {
    first: Psn,
    last: Psn,
}

impl PsnRange {
    /// Parses a PSN, or two with `..` between them.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let psn = |text: &str| parse_number(text.trim()).map(Psn::new);
        Ok(Self { first: psn(first)?, last: psn(last.trim_start_matches('='))? })
    }

    /// Returns whether a PSN is in the range.
    #[must_use]
    pub fn contains(self, psn: Psn) -> bool {
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
