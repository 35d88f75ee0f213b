//! Changes of single fields and bits.

use std::net::{IpAddr, Ipv4Addr};

use roce_analysis::walk::{Part, Walk};
use roce_packet::fields::{Field, Show};
use roce_packet::{Gid, MacAddr};

use super::input::{Input, hex};
use super::repair::{self, Repair};

/// Sets the first field with this key. Returns the changed bytes.
pub(super) fn set_field(mut input: Input, key: &str, text: &str, repair: bool) -> Result<Vec<u8>, String> {
    let (range, field, repair) = {
        let walk = input.walk();
        let (part, field) = find(&walk, key)?;
        let repair = repair.then(|| Repair::of(&walk, key));
        (part.start..part.start.saturating_add(part.len), field, repair)
    };
    let value = NewValue::parse(field, text)?;
    let header = input.bytes.get_mut(range).unwrap_or_default();
    let is_set = match value {
        NewValue::Number(number) => field.set(header, number),
        NewValue::Bytes(bytes) => set_end(field, header, &bytes),
    };
    if !is_set {
        return Err(format!("the frame ends before the end of {key}; add the missing bytes"));
    }
    if let Some(repair) = repair {
        repair::apply(&mut input, &repair);
    }
    Ok(input.bytes)
}

/// Sets several fields, one after the other.
pub(super) fn set_fields<'a>(
    mut input: Input,
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Input, String> {
    let start = input.start;
    for (key, text) in fields {
        input = Input { bytes: set_field(input, key, text, false)?, start };
    }
    Ok(input)
}

/// Inverts one bit. Bit 0 is the first one on the wire.
pub(super) fn invert_bit(bytes: &mut [u8], bit: usize) -> Result<String, String> {
    let bits = bytes.len().saturating_mul(8);
    match bytes.get_mut(bit / 8) {
        Some(byte) => *byte ^= 0x80 >> (bit % 8),
        None => {
            return Err(format!(
                "the frame has {bits} bits; choose a bit from 0 to {}",
                bits.saturating_sub(1)
            ));
        }
    }
    Ok(hex(bytes))
}

/// Finds the first field with this key that is present.
fn find<'a>(walk: &'a Walk<'_>, key: &str) -> Result<(&'a Part, &'static Field), String> {
    let mut is_known = None;
    for part in &walk.parts {
        for field in part.header.fields.iter().filter(|field| field.key == key) {
            if field.value(walk.part_bytes(part)).is_some() {
                return Ok((part, field));
            }
            is_known = Some(part.header.name);
        }
    }
    Err(match is_known {
        Some(header) => format!(
            "the {header} of this frame has no {key} now, because other bits decide the meaning of these bits or \
             the header is cut; change those first"
        ),
        None => format!("the frame has no field {key}; choose a key from the list of its headers"),
    })
}

/// Sets the last bytes of a field, which is longer for an IPv4 address in a GID.
fn set_end(field: &Field, header: &mut [u8], bytes: &[u8]) -> bool {
    let Some(place) = header.get_mut(field.byte_range()) else { return false };
    let Some(skipped) = place.len().checked_sub(bytes.len()) else { return false };
    match place.get_mut(skipped..) {
        Some(end) => {
            end.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}

/// The new value of a field.
#[derive(Debug, PartialEq, Eq)]
enum NewValue {
    /// Fits the number of bits.
    Number(u64),
    /// The last bytes of the field, or all.
    Bytes(Vec<u8>),
}

impl NewValue {
    fn parse(field: &Field, text: &str) -> Result<Self, String> {
        let text = text.trim();
        match field.show {
            Show::Flag => flag(field, text).map(Self::Number),
            Show::Words => words(field, text).map(Self::Number),
            Show::Mac => mac(field, text).map(Self::Number),
            Show::Ipv4 => ipv4(field, text),
            Show::Ipv6 => ipv6(field, text),
            Show::Bytes => bytes(field, text),
            Show::Decimal | Show::Hex => number(field, text).map(Self::Number),
        }
    }
}

/// Reads a decimal or hexadecimal number. Underscores between digits are ignored.
pub(super) fn any_number(text: &str) -> Option<u128> {
    let digits = text.replace('_', "");
    // `from_str_radix` alone would accept a sign.
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|digit| digit.is_ascii_hexdigit()) => u128::from_str_radix(hex, 16).ok(),
        None if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse().ok(),
        Some(_) | None => None,
    }
}

fn number(field: &Field, text: &str) -> Result<u64, String> {
    let Some(number) = any_number(text) else {
        return Err(format!(
            "`{text}` is not a number; write {} as decimal digits or as 0x and digits",
            field.key
        ));
    };
    let most = u64::MAX >> 64_usize.saturating_sub(field.width).min(63);
    match u64::try_from(number) {
        Ok(number) if number <= most => Ok(number),
        _ => Err(format!(
            "{text} does not fit into {}, which has {} bits; write 0 to {most} (0x{most:x})",
            field.key, field.width
        )),
    }
}

fn flag(field: &Field, text: &str) -> Result<u64, String> {
    match text {
        "true" | "1" | "0x1" => Ok(1),
        "false" | "0" | "0x0" => Ok(0),
        _ => Err(format!("`{text}` is not a flag; write {} as true or false, or as 1 or 0", field.key)),
    }
}

/// Reads a number of bytes that the field counts in words of four.
fn words(field: &Field, text: &str) -> Result<u64, String> {
    let most = (1_u64 << field.width.min(32)).saturating_sub(1).saturating_mul(4);
    match any_number(text).and_then(|number| u64::try_from(number).ok()) {
        Some(number) if number.is_multiple_of(4) && number <= most => Ok(number / 4),
        _ => Err(format!("{} counts words of 4 bytes; write a multiple of 4 from 0 to {most}", field.key)),
    }
}

fn mac(field: &Field, text: &str) -> Result<u64, String> {
    match text.parse::<MacAddr>() {
        Ok(MacAddr([a, b, c, d, e, f])) => Ok(u64::from_be_bytes([0, 0, a, b, c, d, e, f])),
        Err(_) if any_number(text).is_some() => number(field, text),
        Err(error) => Err(format!("`{text}` is {error}")),
    }
}

fn ipv4(field: &Field, text: &str) -> Result<NewValue, String> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Ok(NewValue::Bytes(address.octets().to_vec()));
    }
    match any_number(text).and_then(|number| u32::try_from(number).ok()) {
        Some(number) => Ok(NewValue::Bytes(number.to_be_bytes().to_vec())),
        None => Err(format!(
            "`{text}` is not an IPv4 address; write {} as four numbers, such as 198.18.0.1",
            field.key
        )),
    }
}

/// Reads an IPv6 address, or an IPv4 address for a GID in its mapped form.
fn ipv6(field: &Field, text: &str) -> Result<NewValue, String> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(NewValue::Bytes(Gid::from_ip(address).0.to_vec())),
        Err(_) => match any_number(text) {
            Some(number) => Ok(NewValue::Bytes(number.to_be_bytes().to_vec())),
            None => Err(format!(
                "`{text}` is not an IPv6 address; write {} such as 2001:db8::1 or ::ffff:198.18.0.1",
                field.key
            )),
        },
    }
}

/// Reads all bytes of the field as digits, or a number with 0x, which becomes the last bytes.
fn bytes(field: &Field, text: &str) -> Result<NewValue, String> {
    let len = field.byte_range().len();
    let wrong = || {
        Err(format!(
            "{} has {len} bytes; write {} hexadecimal digits, or a number with 0x in front",
            field.key,
            2 * len
        ))
    };
    if text.starts_with("0x") || text.starts_with("0X") {
        let Some(number) = any_number(text) else { return wrong() };
        let all = number.to_be_bytes();
        let mut bytes = vec![0; len.saturating_sub(all.len())];
        let (high, low) = all.split_at(all.len().saturating_sub(len));
        if high.iter().any(|byte| *byte != 0) {
            return wrong();
        }
        bytes.extend_from_slice(low);
        return Ok(NewValue::Bytes(bytes));
    }
    let digits: String = text.chars().filter(|sign| !matches!(sign, ' ' | ':' | '-')).collect();
    match roce_document::bytes::parse(&digits) {
        Ok(bytes) if bytes.len() == len => Ok(NewValue::Bytes(bytes)),
        _ => wrong(),
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::fields::{self, BTH, ETHERNET, IMMDT, IPV4, IPV6};

    use super::*;

    fn field(header: &'static fields::Header, key: &str) -> &'static Field {
        header.fields.iter().find(|field| field.key == key).unwrap()
    }

    #[test]
    fn values_are_read_in_every_form() {
        let parse = |header, key, text: &str| NewValue::parse(field(header, key), text);
        let number = |number| Ok(NewValue::Number(number));
        let bytes = |bytes: &[u8]| Ok(NewValue::Bytes(bytes.to_vec()));
        assert_eq!(parse(&BTH, "infiniband.bth.psn", " 0xffffff "), number(0xff_ffff));
        assert_eq!(parse(&BTH, "infiniband.bth.psn", "16_777_215"), number(0xff_ffff));
        assert_eq!(parse(&BTH, "infiniband.bth.a", "true"), number(1));
        assert_eq!(parse(&IPV4, "ip.hdr_len", "24"), number(6));
        assert_eq!(parse(&ETHERNET, "eth.src", "02:00:00:00:00:ff"), number(0x0200_0000_00ff));
        assert_eq!(parse(&IPV4, "ip.src", "198.18.0.1"), bytes(&[198, 18, 0, 1]));
        assert_eq!(parse(&IPV4, "ip.src", "0xc6120001"), bytes(&[198, 18, 0, 1]));
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 1];
        assert_eq!(parse(&IPV6, "ipv6.src", "198.18.0.1"), bytes(&mapped));
        assert_eq!(parse(&IMMDT, "infiniband.immdt", "0x2a"), bytes(&[0, 0, 0, 42]));
        assert_eq!(parse(&IMMDT, "infiniband.immdt", "00 00:00-2a"), bytes(&[0, 0, 0, 42]));
    }

    #[test]
    fn wrong_values_are_refused_with_the_right_form() {
        let error = |header, key, text: &str| NewValue::parse(field(header, key), text).unwrap_err();
        for text in
            ["", "-1", "+1", "x", "0x", "0xg", "1.5", "16777216", "99999999999999999999999999999999999999999"]
        {
            let said = error(&BTH, "infiniband.bth.psn", text);
            assert!(said.contains("infiniband.bth.psn"), "{text}: {said}");
        }
        assert!(error(&BTH, "infiniband.bth.psn", "16777216").contains("0 to 16777215 (0xffffff)"));
        assert!(error(&BTH, "infiniband.bth.a", "2").contains("true or false"));
        assert!(error(&IPV4, "ip.hdr_len", "21").contains("multiple of 4 from 0 to 60"));
        assert!(error(&ETHERNET, "eth.src", "02:00").contains("02:00:00:00:00:01"));
        assert!(error(&IPV4, "ip.src", "198.18.0").contains("198.18.0.1"));
        assert!(error(&IPV4, "ip.src", "::1").contains("198.18.0.1"));
        assert!(error(&IPV6, "ipv6.src", "fe80").contains("2001:db8::1"));
        for text in ["42", "0x100000000", "00000000ff", "0xzz", ""] {
            assert!(error(&IMMDT, "infiniband.immdt", text).contains("8 hexadecimal digits"), "{text}");
        }
    }
}
