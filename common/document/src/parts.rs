//! The parts of a packet as JSON, for `roce dissect --json` and `roce explain --json`.

use roce_analysis::walk::Icrc;
use roce_packet::ParseError;
use roce_packet::fields::{Field, Show, Value};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::fields::{self, hex};

/// Adds the result of the ICRC check to an object.
///
/// # Errors
///
/// Returns an error if the serializer does.
pub fn icrc_entries<M: SerializeMap>(icrc: Icrc, map: &mut M) -> Result<(), M::Error> {
    match icrc {
        Icrc::Checked(check, _) => {
            map.serialize_entry("roce.icrc", if check.is_good() { "ok" } else { "bad" })?;
            // The byte order is that of the wire, like in infiniband.invariant.crc.
            map.serialize_entry("roce.icrc_computed", &check.computed.swap_bytes())
        }
        Icrc::Unchecked(reason) => {
            map.serialize_entry("roce.icrc", "unchecked")?;
            map.serialize_entry("roce.icrc_unchecked", reason)
        }
    }
}

/// The value of a field as JSON: a boolean for a flag, a number if every reader of JSON keeps its digits, and
/// otherwise a string.
#[derive(Clone, Copy, Debug)]
pub struct JsonValue<'a> {
    /// The field.
    pub field: &'a Field,
    /// Its value.
    pub value: Value<'a>,
}

impl Serialize for JsonValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Number of bits of a number that JavaScript and jq keep.
        const EXACT_BITS: usize = 53;

        let Self { field, value } = self;
        match (value, field.show) {
            (Value::Number(number), Show::Flag) => serializer.serialize_bool(*number != 0),
            (Value::Number(number), Show::Words) => serializer.serialize_u64(number * 4),
            (Value::Number(number), Show::Decimal | Show::Hex) if field.width <= EXACT_BITS => {
                serializer.serialize_u64(*number)
            }
            (Value::Bytes(bytes), Show::Bytes) => serializer.serialize_str(&hex(bytes)),
            _ => serializer.serialize_str(&fields::text(field, value)),
        }
    }
}

/// A parse error as a JSON object: the layer, the kind, the position and a sentence.
#[derive(Clone, Copy, Debug)]
pub struct JsonError(pub ParseError);

impl Serialize for JsonError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let error = self.0;
        let mut map = serializer.serialize_map(Some(6))?;
        map.serialize_entry("layer", error.layer.name())?;
        map.serialize_entry("kind", error.kind.description())?;
        map.serialize_entry("offset", &error.offset)?;
        map.serialize_entry("need", &error.need)?;
        map.serialize_entry("have", &error.have)?;
        map.serialize_entry("text", &error.to_string())?;
        map.end()
    }
}
