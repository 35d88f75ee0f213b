//! Numbers with units inside scenario files.

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, de};

use crate::net::Time;
use crate::net::units::{UnitError, parse_bytes, parse_rate, parse_time};

macro_rules! with_unit {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $parse:path, $expecting:literal) => {
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
    Rate, u64, parse_rate, "a rate such as \"100Gbps\""
);
with_unit!(
    /// A point in time or a span.
    Span, Time, parse_time, "a time such as \"1us\""
);
with_unit!(
    /// Bytes; a number without unit will do.
    Bytes, u64, parse_bytes, "a size such as \"400KB\" or 400000"
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
