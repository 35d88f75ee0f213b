//! Conditions that a run of a scenario should meet.

use serde::Deserialize;

/// A condition that a run should meet.
#[derive(Clone, Debug, PartialEq)]
pub struct Expect {
    /// The name of a metric, as defined by the program that runs the scenario.
    pub metric: String,
    /// The relation between the metric and the value.
    pub relation: Relation,
    /// The value to compare with.
    pub value: ExpectedValue,
}

/// A value with which a metric is compared.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "a number, or the name of a figure")]
pub enum ExpectedValue {
    /// A number in a base unit.
    Number(f64),
    /// The name of another metric of the same run.
    Metric(String),
}

/// A relation between a metric and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Less than.
    Less,
    /// At most.
    AtMost,
    /// Equal.
    Equal,
    /// At least.
    AtLeast,
    /// More than.
    More,
}

impl Relation {
    /// All relations with their signs in files.
    const SIGNS: [(&'static str, Self); 5] = [
        ("<", Self::Less),
        ("<=", Self::AtMost),
        ("=", Self::Equal),
        (">=", Self::AtLeast),
        (">", Self::More),
    ];

    /// Returns the sign in files.
    #[must_use]
    pub fn sign(self) -> &'static str {
        Self::SIGNS.iter().find(|(_, relation)| *relation == self).map_or("", |(sign, _)| sign)
    }

    pub(super) fn of_sign(sign: &str) -> Option<Self> {
        Self::SIGNS.iter().find(|(known, _)| *known == sign).map(|(_, relation)| *relation)
    }

    /// Returns whether the relation holds between a metric and a value.
    #[must_use]
    pub fn holds(self, figure: f64, value: f64) -> bool {
        match self {
            Self::Less => figure < value,
            Self::AtMost => figure <= value,
            Self::Equal => figure == value,
            Self::AtLeast => figure >= value,
            Self::More => figure > value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_hold_by_their_signs() {
        for (sign, less, equal, more) in [
            ("<", true, false, false),
            ("<=", true, true, false),
            ("=", false, true, false),
            (">=", false, true, true),
            (">", false, false, true),
        ] {
            let relation = Relation::of_sign(sign).unwrap();
            assert_eq!(
                [1.0, 2.0, 3.0].map(|figure| relation.holds(figure, 2.0)),
                [less, equal, more],
                "{sign}"
            );
            assert_eq!(relation.sign(), sign);
            assert!(!relation.holds(f64::NAN, 2.0), "{sign}");
        }
        assert_eq!(Relation::of_sign("=="), None);
    }
}
