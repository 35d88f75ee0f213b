//! Numbers, shares and times in the text of a fault plan.

use std::fmt;

/// Units of time with their decimal exponents relative to nanoseconds, in ascending order.
const UNITS: [(&str, u32); 4] = [("ns", 0), ("us", 3), ("ms", 6), ("s", 9)];

pub(super) fn number(text: &str) -> Option<u32> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` alone would accept "+1".
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// Parts per billion, displayed as a percentage.
pub(super) struct Percent(pub(super) u32);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 10_000_000, self.0 % 10_000_000);
        if fraction == 0 {
            return write!(f, "{whole}%");
        }
        let fraction = format!("{fraction:07}");
        write!(f, "{whole}.{}%", fraction.trim_end_matches('0'))
    }
}

/// Nanoseconds, displayed in the largest unit that needs no decimals.
pub(super) struct DurationText(pub(super) u64);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, decimals) in UNITS.iter().rev() {
            let scale = 10_u64.pow(*decimals);
            if self.0 != 0 && self.0.is_multiple_of(scale) {
                return write!(f, "{}{unit}", self.0 / scale);
            }
        }
        write!(f, "{}ns", self.0)
    }
}
