//! Numbers with units as people write them: `100Gbps`, `1us`, `400KB`.

use super::time::Time;

/// What was wrong with a number, as the end of a sentence that begins with the text itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no {what}; write for example {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// Units with what one of them is worth.
type Units = &'static [(&'static str, f64)];

const RATES: Units = &[("bps", 1.0), ("kbps", 1e3), ("mbps", 1e6), ("gbps", 1e9), ("tbps", 1e12)];
const TIMES: Units = &[("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("µs", 1e6), ("ms", 1e9), ("s", 1e12)];
const SIZES: Units = &[
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("", 1.0),
];

fn parse(text: &str, units: Units, what: &'static str, example: &'static str) -> Result<u64, UnitError> {
    let wrong = || UnitError { text: text.to_owned(), what, example };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number: f64 = number.replace('_', "").parse().map_err(|_| wrong())?;
    let unit = unit.trim().to_lowercase();
    let (_, scale) = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let value = (number * scale).round();
    // Below 2^63, where every whole number of these sizes is exact enough.
    if value.is_finite() && value < 9.2e18 { Ok(value as u64) } else { Err(wrong()) }
}

/// Bits per second: `100Gbps`, `40 Gbps`, `5Mbps`.
///
/// # Errors
///
/// When it is something else.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    parse(text, RATES, "rate", "\"100Gbps\"")
}

/// A time: `1us`, `2.5 ms`, `800ns`.
///
/// # Errors
///
/// When it is something else.
pub fn parse_time(text: &str) -> Result<Time, UnitError> {
    parse(text, TIMES, "time", "\"1us\"").map(Time::from_ps)
}

/// Bytes: `400KB` (1,000 each), `9MiB` (1,024 each), `64`.
///
/// # Errors
///
/// When it is something else.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    parse(text, SIZES, "size", "\"400KB\" or \"9MiB\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_them() {
        assert_eq!(parse_rate("100Gbps"), Ok(100_000_000_000));
        assert_eq!(parse_rate("2.5 Gbps"), Ok(2_500_000_000));
        assert_eq!(parse_time("1us"), Ok(Time::from_us(1)));
        assert_eq!(parse_time("0.5 µs"), Ok(Time::from_ns(500)));
        assert_eq!(parse_bytes("400KB"), Ok(400_000));
        assert_eq!(parse_bytes("9MiB"), Ok(9 << 20));
        assert_eq!(parse_bytes("1_000"), Ok(1_000));
    }

    #[test]
    fn what_is_wrong_says_so() {
        assert_eq!(
            parse_time("fast").unwrap_err().to_string(),
            "\"fast\" is no time; write for example \"1us\""
        );
        for text in ["", "Gbps", "1", "1 Gb", "-1Gbps", "1e300Gbps", "..Gbps"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
