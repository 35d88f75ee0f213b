//! Formats the values of fields as text.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use roce_packet::MacAddr;
use roce_packet::fields::{Field, Show, Value};

/// Returns the value, without the note.
#[must_use]
pub fn text(field: &Field, value: &Value<'_>) -> String {
    match (*value, field.show) {
        (Value::Number(number), Show::Hex) => {
            format!("0x{number:0digits$x}", digits = field.width.div_ceil(4))
        }
        (Value::Number(number), Show::Mac) => {
            let [_, _, mac @ ..] = number.to_be_bytes();
            MacAddr(mac).to_string()
        }
        (Value::Number(number), Show::Ipv4) => Ipv4Addr::from_bits(number as u32).to_string(),
        (Value::Number(number), Show::Words) => (number * 4).to_string(),
        (Value::Number(number), _) => number.to_string(),
        (Value::Bytes(&[.., a, b, c, d]), Show::Ipv4) => Ipv4Addr::new(a, b, c, d).to_string(),
        (Value::Bytes(bytes), Show::Ipv6) => match <[u8; 16]>::try_from(bytes) {
            Ok(octets) => Ipv6Addr::from(octets).to_string(),
            Err(_) => hex(bytes),
        },
        (Value::Bytes(bytes), _) => hex(bytes),
    }
}

/// Returns the name or the meaning of the value, if it has one.
#[must_use]
pub fn note(field: &Field, value: &Value<'_>) -> Option<String> {
    let (Some(note), Value::Number(number)) = (field.note, value) else { return None };
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = note(*number, &mut text);
    (!text.is_empty()).then_some(text)
}

/// Returns the bits of a field that shares its byte with other fields, as in `.1.. ....`, or the bit numbers
/// if the field spans several bytes. Returns `None` for whole bytes.
#[must_use]
pub fn bit_pattern(field: &Field, header: &[u8]) -> Option<String> {
    if field.start.is_multiple_of(8) && field.width.is_multiple_of(8) {
        return None;
    }
    let (first, range) = (field.start % 8, field.byte_range());
    let bits = first..first + field.width;
    let &[byte] = header.get(range)? else { return Some(format!("bits {first}-{}", bits.end - 1)) };
    let draw = |bit: usize| match (bits.contains(&bit), byte << bit & 0x80) {
        (false, _) => '.',
        (true, 0) => '0',
        (true, _) => '1',
    };
    Some((0..4).map(draw).chain([' ']).chain((4..8).map(draw)).collect())
}

/// Formats bytes as text, with two digits each.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roce_packet::fields::{self, BTH, VLAN};

    use super::*;

    #[test]
    fn bit_patterns_show_the_position_of_the_bits() {
        let field = |key| BTH.fields.iter().find(|field| field.key == key).unwrap();
        let bth = [0x04, 0x7f, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0];
        assert_eq!(bit_pattern(field("infiniband.bth.m"), &bth).unwrap(), ".1.. ....");
        assert_eq!(bit_pattern(field("infiniband.bth.padcnt"), &bth).unwrap(), "..11 ....");
        assert_eq!(bit_pattern(field("infiniband.bth.psn"), &bth), None);
        assert_eq!(bit_pattern(&VLAN.fields[2], &[0x0f, 0x01]).unwrap(), "bits 4-15");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_shown(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let extended = fields::EXTENDED.iter().map(|(_, header)| *header);
            let messages = (0x10..=0x1a).filter_map(fields::cm_message);
            let others = [&fields::ETHERNET, &VLAN, &fields::PAUSE, &fields::PFC, &fields::IPV4, &fields::IPV6];
            let more = [&fields::GRH, &fields::UDP, &BTH, &fields::CNP, &fields::MAD, &fields::IP_CM, &fields::ICRC, &fields::TELEMETRY];
            let all = extended.chain(messages).chain(others).chain(more);
            for field in all.flat_map(|header| header.fields) {
                let _ = bit_pattern(field, &bytes);
                if let Some(value) = field.value(&bytes) {
                    let _ = (text(field, &value), note(field, &value));
                }
            }
        }
    }
}
