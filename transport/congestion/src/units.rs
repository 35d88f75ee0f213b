//! Readers for rates, sizes and durations with units, as used in command-line options, scenario files and
//! device texts.
//!
//! Each reader accepts a decimal number (`2.5`, `1_000`, `1e3`), optional blanks, and a unit in upper or
//! lower case. The result is a whole number, rounded to the nearest.
//!
//! ```
//! use roce_congestion::units;
//!
//! assert_eq!(units::rate("2.5Gbps"), Ok(2_500_000_000));
//! assert_eq!(units::size("64K"), Ok(65_536));
//! assert_eq!(units::duration_ns("1.5us"), Ok(1_500));
//! // A rate needs a unit, because nobody means 10 bits per second.
//! assert!(units::rate("10").unwrap_err().to_string().starts_with("\"10\" is not a rate; write for example 10Gbps"));
//! ```

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use core::num::{IntErrorKind, ParseIntError};

/// The error for text that is not a number with one of the expected units, or for a number that is too large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is {} a {quantity}; write for example {example}", if *.is_too_large { "too large for" } else { "not" })]
pub struct UnitError {
    text: String,
    quantity: &'static str,
    example: &'static str,
    is_too_large: bool,
}

/// An example of a rate, and the units of rates.
const RATE_EXAMPLE: &str = "10Gbps; the units are bps, Kbps, Mbps, Gbps and Tbps";

/// The reason why a text is not a valid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    NotANumber,
    TooLarge,
}

impl UnitError {
    /// Returns the error for a rate that is out of range.
    pub(crate) fn rate(text: &str) -> Self {
        Self::new(Problem::NotANumber, text, "rate", RATE_EXAMPLE)
    }

    fn new(problem: Problem, text: &str, quantity: &'static str, example: &'static str) -> Self {
        Self { text: text.to_owned(), quantity, example, is_too_large: problem == Problem::TooLarge }
    }
}

/// Reads a rate in bits per second. The units are `bps`, `Kbps`, `Mbps`, `Gbps` and `Tbps`, or `K`, `M`, `G`
/// and `T`; each is 1,000 times the previous one.
///
/// # Errors
///
/// Returns an error if the text is not a rate or lacks a unit: a number alone more often means Gb/s than bits
/// per second.
pub fn rate(text: &str) -> Result<u64, UnitError> {
    to_u64(read(text, RATES)).map_err(|problem| UnitError::new(problem, text, "rate", RATE_EXAMPLE))
}

/// Reads a size in bytes. `KB`, `MB` and `GB` are powers of 1,000; `KiB`, `MiB` and `GiB`, or `K`, `M` and
/// `G`, are powers of 1,024. A number without a unit is in bytes.
///
/// # Errors
///
/// Returns an error if the text is not a size.
pub fn size(text: &str) -> Result<u64, UnitError> {
    let error = |problem| UnitError::new(problem, text, "size", "64K, 400KB or 9MiB");
    to_u64(read(text, SIZES)).map_err(error)
}

/// Reads a duration in picoseconds. The units are `ps`, `ns`, `us`, `µs`, `ms` and `s`.
///
/// # Errors
///
/// Returns an error if the text is not a duration, or if it is 213 days or more.
pub fn duration_ps(text: &str) -> Result<u64, UnitError> {
    duration(text, read(text, TIMES))
}

/// Reads a duration in nanoseconds, with the units of [`duration_ps`].
///
/// # Errors
///
/// Returns an error if the text is not a duration, or if it is 584 years or more.
pub fn duration_ns(text: &str) -> Result<u64, UnitError> {
    duration(text, read(text, TIMES).map(|ps| ps.saturating_add(500) / 1_000))
}

fn duration(text: &str, value: Result<u128, Problem>) -> Result<u64, UnitError> {
    to_u64(value).map_err(|problem| UnitError::new(problem, text, "time", "50us"))
}

fn to_u64(value: Result<u128, Problem>) -> Result<u64, Problem> {
    value?.try_into().map_err(|_| Problem::TooLarge)
}

/// Names of units in lower case, with the value of each.
type Units = &'static [(&'static [&'static str], u64)];

const RATES: Units = &[
    (&["bps"], 1),
    (&["k", "kbps"], 1_000),
    (&["m", "mbps"], 1_000_000),
    (&["g", "gbps"], 1_000_000_000),
    (&["t", "tbps"], 1_000_000_000_000),
];
const SIZES: Units = &[
    (&["", "b"], 1),
    (&["kb"], 1_000),
    (&["mb"], 1_000_000),
    (&["gb"], 1_000_000_000),
    (&["k", "kib"], 1 << 10),
    (&["m", "mib"], 1 << 20),
    (&["g", "gib"], 1 << 30),
];
/// Values in picoseconds.
const TIMES: Units = &[
    (&["ps"], 1),
    (&["ns"], 1_000),
    (&["us", "µs", "μs"], 1_000_000),
    (&["ms"], 1_000_000_000),
    (&["s"], 1_000_000_000_000),
];
/// Maximum number of decimal places. Further ones are below one picosecond, byte or bit per second.
const PLACES: usize = 18;

/// Reads a number with integer arithmetic: floating-point numbers would round large values before their last
/// digit.
fn read(text: &str, units: Units) -> Result<u128, Problem> {
    let text = text.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|byte: char| !(byte.is_ascii_digit() || matches!(byte, '.' | '_')));
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    let (exponent, unit) = split_exponent(rest).ok_or(Problem::NotANumber)?;
    let unit = unit.trim().to_lowercase();
    let (_, scale) =
        units.iter().find(|(names, _)| names.contains(&unit.as_str())).ok_or(Problem::NotANumber)?;
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if fraction.contains('.') {
        return Err(Problem::NotANumber);
    }
    let fraction = fraction.get(..PLACES).unwrap_or(fraction);
    let digits: u128 =
        [whole, fraction].concat().parse().map_err(|error: ParseIntError| match error.kind() {
            IntErrorKind::PosOverflow => Problem::TooLarge,
            _ => Problem::NotANumber,
        })?;
    let scaled = digits.checked_mul(u128::from(*scale)).ok_or(Problem::TooLarge)?;
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let power = exponent.checked_sub(places).ok_or(Problem::NotANumber)?;
    let is_whole = power >= 0;
    let too_far = if is_whole { Problem::TooLarge } else { Problem::NotANumber };
    let factor = 10_u128.checked_pow(power.unsigned_abs()).ok_or(too_far)?;
    let value = if is_whole {
        scaled.checked_mul(factor)
    } else {
        scaled.checked_add(factor / 2).map(|scaled| scaled / factor)
    };
    value.ok_or(Problem::TooLarge)
}

/// Returns the exponent of `e3Gbps` and the text after it.
fn split_exponent(text: &str) -> Option<(i32, &str)> {
    let Some(rest) = text.strip_prefix(['e', 'E']) else { return Some((0, text)) };
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let sign = rest.len() - digits.len();
    let end = digits.find(|byte: char| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (exponent, unit) = rest.split_at(sign + end);
    Some((exponent.parse().ok()?, unit))
}
