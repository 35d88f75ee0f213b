//! Numbers with units in scenario files.

use std::str::FromStr;

use roce_transport::units::{self, UnitError};
use roce_transport::with_causes;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, de};

use super::Wrong;
use roce_sim::net::Time;

macro_rules! with_unit {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $parse:expr, $expecting:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) struct $name(pub(super) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Text($expecting, $parse)).map(Self)
            }
        }
    };
}

with_unit!(
    /// Bits per second.
    Rate, u64, units::rate, "a rate such as \"100Gbps\""
);
with_unit!(
    /// A point in time or a duration.
    Span, Time, |text| units::duration_ps(text).map(Time::from_ps), "a time such as \"1us\""
);
with_unit!(
    /// Bytes. A number without a unit is accepted.
    Bytes, u64, units::size, "a size such as \"400KB\" or 400000"
);

struct Text<T>(&'static str, fn(&str) -> Result<T, UnitError>);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        (self.1)(&number.to_string()).map_err(|_| E::invalid_type(de::Unexpected::Signed(number), &self.0))
    }
}

/// Replaces an error by its text, which includes its causes.
pub(super) fn explained<T, E: std::error::Error>(result: Result<T, E>) -> Result<T, Wrong> {
    result.map_err(|error| with_causes(&error).to_string())
}

/// Reads a value from its text.
pub(super) fn parsed<T: FromStr<Err: std::error::Error>>(text: &str) -> Result<T, Wrong> {
    explained(text.parse())
}

/// Replaces a default if a value is given.
pub(super) fn set<T>(own: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *own = given;
    }
}
