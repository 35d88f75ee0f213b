//! Contents of files in the form that a [`Load`] function returns.
//!
//! A text stays as it is. Other contents are encoded, because a scenario with all of its files is one text.

use super::{Load, Wrong};

/// The first characters of encoded contents.
const ENCODED: &str = "base64:";

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns the contents of a file in the form that a [`Load`] function returns: UTF-8 text without control
/// characters as it is, and other bytes as `base64:` with their encoding.
#[must_use]
pub fn contents(bytes: Vec<u8>) -> String {
    let is_binary = |sign: char| sign.is_control() && !"\n\r\t".contains(sign);
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains(is_binary) && !text.starts_with(ENCODED) => text,
        Ok(text) => encode(text.as_bytes()),
        Err(error) => encode(error.as_bytes()),
    }
}

/// Loads a file that must be text.
pub(super) fn load_text(load: &Load<'_>, name: &str) -> Result<String, Wrong> {
    let contents = load(name)?;
    match contents.strip_prefix(ENCODED) {
        None => Ok(contents),
        Some(digits) => {
            String::from_utf8(decode(name, digits)?).map_err(|_| format!("{name} is not UTF-8 text"))
        }
    }
}

/// Loads the bytes of a file.
pub(super) fn load_bytes(load: &Load<'_>, name: &str) -> Result<Vec<u8>, Wrong> {
    let contents = load(name)?;
    match contents.strip_prefix(ENCODED) {
        None => Ok(contents.into_bytes()),
        Some(digits) => decode(name, digits),
    }
}

fn encode(bytes: &[u8]) -> String {
    let mut text = ENCODED.to_owned();
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (group >> (18 - 6 * digit) & 0x3f) as usize;
            text.push(if digit > three.len() { '=' } else { char::from(DIGITS[value]) });
        }
    }
    text
}

fn decode(name: &str, digits: &str) -> Result<Vec<u8>, Wrong> {
    let wrong = || format!("{name}: the text after {ENCODED} is not base64");
    let digits = digits.trim_end().trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.chunks(4) {
        let mut group = 0;
        for digit in four {
            group = group << 6 | value_of(*digit).ok_or_else(wrong)?;
        }
        let missing = 4 - four.len();
        if missing > 2 {
            return Err(wrong());
        }
        let group = group << (6 * missing);
        bytes.extend_from_slice(&group.to_be_bytes()[1..4 - missing]);
    }
    Ok(bytes)
}

fn value_of(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_kind_survive_as_text() {
        for length in 0..40_usize {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 37 + 128) as u8).collect();
            let text = contents(bytes.clone());
            assert!(!text.contains(|sign: char| sign.is_control()), "{text:?}");
            assert_eq!(load_bytes(&|_| Ok(text.clone()), "x").unwrap(), bytes);
        }
        assert_eq!(contents(b"h\xffllo".to_vec()), "base64:aP9sbG8=");
        assert_eq!(contents("a text\n".into()), "a text\n");
        let odd = "base64:is only the begin of a text".to_owned();
        let kept = contents(odd.clone().into_bytes());
        assert_eq!(load_text(&|_| Ok(kept.clone()), "x").unwrap(), odd);
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let error = |text: &str| load_text(&|_| Ok(text.to_owned()), "x").unwrap_err();
        assert_eq!(error("base64:aP9sbG8="), "x is not UTF-8 text");
        for text in ["base64:a", "base64:a?bc", "base64:aP9s b"] {
            assert_eq!(error(text), "x: the text after base64: is not base64");
        }
    }
}
