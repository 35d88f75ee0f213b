//! The conditions of a filter, as words.

use roce_document::dissect::ecn_name;
use roce_document::dissect::filter::{
    Facts, Filter, IcrcState, MarkName, OpcodePattern, Prefix, PsnRange, TimeRange, parse_number,
};
use roce_packet::Ecn;

/// Conditions that must all hold.
#[derive(Debug, Default)]
pub(super) struct Query {
    filters: Vec<Filter>,
    /// Numbers of connections, from 1.
    pub(super) connections: Vec<usize>,
}

/// The names of conditions, for errors.
const NAMES: &str = "qp, opcode, psn, icrc, address, time, dscp, ecn, mark and connection";

const ICRCS: [(&str, IcrcState); 3] =
    [("ok", IcrcState::Ok), ("bad", IcrcState::Bad), ("unchecked", IcrcState::Unchecked)];

const MARKS: [(&str, MarkName); 5] = [
    ("gap", MarkName::Gap),
    ("late", MarkName::Late),
    ("repeat", MarkName::Repeat),
    ("jump", MarkName::Jump),
    ("none", MarkName::None),
];

const ECNS: [(&str, Ecn); 4] = [
    (ecn_name(Ecn::NotCapable), Ecn::NotCapable),
    (ecn_name(Ecn::Capable0), Ecn::Capable0),
    (ecn_name(Ecn::Capable1), Ecn::Capable1),
    (ecn_name(Ecn::CongestionExperienced), Ecn::CongestionExperienced),
];

impl Query {
    /// Parses conditions with spaces between them: `qp=0x11 mark=gap`. No condition selects every packet.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self::default();
        for word in text.split_whitespace() {
            let Some((name, value)) = word.split_once('=') else {
                return Err(format!(
                    "`{word}` is not a condition; write a name, = and a value, such as qp=0x11. The names are {NAMES}"
                ));
            };
            query.add(name, value).map_err(|reason| format!("{word}: {reason}"))?;
        }
        Ok(query)
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        let mut filter = Filter::default();
        match name {
            "qp" => filter.qps.push(parse_number(value)?),
            "opcode" => filter.opcodes.push(OpcodePattern::parse(value)?),
            "psn" => filter.psns = Some(PsnRange::parse(value)?),
            "icrc" => filter.icrcs.push(one_of(value, &ICRCS)?),
            "address" => filter.addresses.push(Prefix::parse(value)?),
            "time" => filter.times = Some(TimeRange::parse(value)?),
            "dscp" => {
                let dscp = value.parse::<u8>().ok().filter(|dscp| *dscp < 64);
                filter.dscps.push(dscp.ok_or("expected a number from 0 to 63")?);
            }
            "ecn" => filter.ecns.push(one_of(value, &ECNS)?),
            "mark" => filter.marks.push(one_of(value, &MARKS)?),
            "connection" => {
                let number = value.parse::<usize>();
                let expected = "expected the number of a connection, such as 1";
                self.connections.push(number.map_err(|_| expected)?);
                return Ok(());
            }
            _ => return Err(format!("no condition has this name; the names are {NAMES}")),
        }
        self.filters.push(filter);
        Ok(())
    }

    /// Returns whether a packet matches, without its connection.
    pub(super) fn matches(&self, facts: &Facts) -> bool {
        self.filters.iter().all(|filter| filter.matches(facts))
    }
}

/// Returns the value with this name.
fn one_of<T: Copy>(name: &str, values: &[(&str, T)]) -> Result<T, String> {
    let found = values.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_conditions_say_what_was_expected() {
        for (text, expected) in [
            ("gap", "`gap` is not a condition"),
            ("=1", "no condition has this name"),
            ("QP=1", "the names are qp"),
            ("qp=1 psn", "`psn` is not a condition"),
            ("qp=x", "qp=x: expected a number"),
            ("qp=", "qp=: expected a number"),
            ("opcode=SENT", "opcode=SENT: no opcode has a name"),
            ("psn=5..", "psn=5..: expected a number"),
            ("icrc=wrong", "expected one of ok, bad, unchecked"),
            ("ecn=1", "expected one of not-ect, ect0, ect1, ce"),
            ("mark=lost", "expected one of gap, late, repeat, jump, none"),
            ("dscp=64", "from 0 to 63"),
            ("address=1.2.3", "address=1.2.3: expected an address"),
            ("time=3..2", "the range ends before it begins"),
            ("connection=-1", "expected the number of a connection"),
        ] {
            let error = Query::parse(text).map(drop).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn conditions_may_have_spaces_around_them() {
        let query = Query::parse("  qp=0x11\tmark=none \n connection=2 ").unwrap();
        assert_eq!((query.filters.len(), query.connections), (2, vec![2]));
        assert!(Query::parse(" ").unwrap().filters.is_empty());
    }
}
