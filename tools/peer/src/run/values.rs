//! Values of expressions.

use std::collections::BTreeMap;

use crate::script::{Expression, Operator, Piece};

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value}"),
            Self::Time(value) => write!(f, "{value}ns"),
        }
    }
}

/// Maximum number of bytes of a payload or of the contents of a memory.
const MOST_BYTES: usize = 1 << 20;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(i128),
    /// A time in nanoseconds.
    Time(i128),
}

/// The variables.
#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<String, i128>, BTreeMap<String, i128>);

impl Values {
    pub(super) fn set(&mut self, name: &str, value: impl Into<i128>) {
        self.set_value(name, Value::Number(value.into()));
    }

    fn set_value(&mut self, name: &str, value: Value) {
        let (values, others, value) = match value {
            Value::Number(value) => (&mut self.0, &mut self.1, value),
            Value::Time(value) => (&mut self.1, &mut self.0, value),
        };
        others.remove(name);
        values.insert(name.to_owned(), value);
    }

    pub(super) fn assign(&mut self, name: &str, expression: &Expression) -> Result<(), String> {
        let value = self.value(expression)?;
        self.set_value(name, value);
        Ok(())
    }

    pub(super) fn value(&self, expression: &Expression) -> Result<Value, String> {
        match expression {
            Expression::Number(value) => Ok(Value::Number(*value)),
            Expression::Time(value) => Ok(Value::Time(*value)),
            Expression::Name(name) => match (self.0.get(name), self.1.get(name)) {
                (Some(value), _) => Ok(Value::Number(*value)),
                (_, Some(value)) => Ok(Value::Time(*value)),
                (None, None) => Err(format!("`{name}` has no value here; set it on every path to this line")),
            },
            Expression::Negative(inner) => match self.value(inner)? {
                Value::Number(value) => Ok(Value::Number(value.wrapping_neg())),
                Value::Time(value) => Ok(Value::Time(value.wrapping_neg())),
            },
            Expression::Binary(left, operator, right) => {
                combine(self.value(left)?, *operator, self.value(right)?)
            }
        }
    }

    pub(super) fn number(&self, expression: &Expression) -> Result<i128, String> {
        match self.value(expression)? {
            Value::Number(value) => Ok(value),
            Value::Time(_) => Err("a number is expected, not a time; remove the unit".to_owned()),
        }
    }

    /// Returns a number in a range that starts at 0.
    pub(super) fn limited(&self, what: &str, expression: &Expression, most: u64) -> Result<u64, String> {
        let value = self.number(expression)?;
        let found = u64::try_from(value).ok().filter(|value| *value <= most);
        found.ok_or_else(|| format!("{what} is {value}; at most {most} and not negative is expected"))
    }

    /// Returns a time in nanoseconds.
    pub(super) fn time(&self, expression: &Expression) -> Result<u64, String> {
        match self.value(expression)? {
            Value::Time(value) => {
                u64::try_from(value).map_err(|_| format!("a time of {value} ns is negative or too long"))
            }
            Value::Number(value) => Err(format!("{value} is not a time; add a unit, such as {value}ms")),
        }
    }

    /// Returns a value of a field of `width` bits.
    pub(super) fn field(
        &self,
        name: &str,
        expression: &Expression,
        width: usize,
        is_circular: bool,
    ) -> Result<u64, String> {
        let value = self.number(expression)?;
        let size = 1_i128 << width;
        if is_circular {
            return Ok(value.rem_euclid(size) as u64);
        }
        let most = (size - 1) as u64;
        let found = u64::try_from(value).ok().filter(|value| *value <= most);
        found.ok_or_else(|| format!("{name} is {value}, but the field has {width} bits (0 to {most:#x})"))
    }

    /// Returns the bytes of contents.
    pub(super) fn bytes(&self, pieces: &[Piece]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Repeated(byte, count) => {
                    let byte = self.limited("the byte", byte, 0xff)? as u8;
                    let room = MOST_BYTES.saturating_sub(bytes.len()) as u64;
                    let count = match count {
                        Some(count) => self.limited("the number of bytes", count, room)?,
                        None => 1,
                    };
                    bytes.resize(bytes.len() + count as usize, byte);
                }
                Piece::Literal(literal) => bytes.extend_from_slice(literal),
                Piece::Pattern(from, to) => {
                    let most = MOST_BYTES as u64;
                    let from = self.limited("the start of the pattern", from, most)?;
                    let to = self.limited("the end of the pattern", to, most)?;
                    bytes.extend((from..to).map(pattern));
                }
                Piece::Word(value) => {
                    let value = self.field("u64", value, 64, true)?;
                    bytes.extend(value.to_ne_bytes());
                }
            }
            if bytes.len() > MOST_BYTES {
                return Err(format!("the contents have more than {MOST_BYTES} bytes"));
            }
        }
        Ok(bytes)
    }
}

/// Returns a byte of the pattern, which has no short period.
const fn pattern(position: u64) -> u8 {
    (position.wrapping_mul(7).wrapping_add(position / 251) + 1) as u8
}

fn combine(left: Value, operator: Operator, right: Value) -> Result<Value, String> {
    let calculate = |left: i128, right: i128| {
        match operator {
            Operator::Add => left.checked_add(right),
            Operator::Subtract => left.checked_sub(right),
            Operator::Multiply => left.checked_mul(right),
            Operator::Divide => left.checked_div(right),
            Operator::Remainder => left.checked_rem(right),
        }
        .ok_or_else(|| "the result is too large, or a divisor is 0".to_owned())
    };
    let is_scaling = matches!(operator, Operator::Multiply | Operator::Divide);
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => calculate(left, right).map(Value::Number),
        (Value::Time(left), Value::Number(right)) if is_scaling => calculate(left, right).map(Value::Time),
        (Value::Number(left), Value::Time(right)) if operator == Operator::Multiply => {
            calculate(left, right).map(Value::Time)
        }
        (Value::Time(left), Value::Time(right)) if !is_scaling => calculate(left, right).map(Value::Time),
        _ => Err("a time and a number cannot be combined with this operator".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Action, Files, Script};

    fn value(text: &str) -> Result<Value, String> {
        let script = Script::load("a", &Files::of([("a", format!("let x = {text}").as_str())])).unwrap();
        let Action::Let(_, expression) = &script.statements[0].action else { panic!("a variable") };
        Values::default().value(expression)
    }

    #[test]
    fn arithmetic() {
        assert_eq!(value("2 + 3 * 4"), Ok(Value::Number(14)));
        assert_eq!(value("(2 + 3) * -4"), Ok(Value::Number(-20)));
        assert_eq!(value("4096ns * 2 + 1us"), Ok(Value::Time(9192)));
        assert_eq!(value("7 / 2 % 2"), Ok(Value::Number(1)));
        for wrong in ["1 / 0", "1ms + 1", "0xffffffffffffffffffffffff * 0xffffffffffffffff"] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sequence_numbers_are_circular_and_other_fields_are_not() {
        let values = Values::default();
        let field = |value, is_circular| values.field("psn", &Expression::Number(value), 24, is_circular);
        assert_eq!(field(-1, true), Ok(0xff_ffff));
        assert_eq!(field(1 << 24, true), Ok(0));
        assert!(field(-1, false).is_err() && field(1 << 24, false).is_err());
        assert_eq!(values.field("va", &Expression::Number(-8), 64, true), Ok(u64::MAX - 7));
    }

    #[test]
    fn contents() {
        let values = Values::default();
        let number = |value| Expression::Number(value);
        let pieces = [
            Piece::Repeated(number(0x55), Some(number(2))),
            Piece::Literal(b"ab".to_vec()),
            Piece::Repeated(number(1), None),
        ];
        assert_eq!(values.bytes(&pieces), Ok(vec![0x55, 0x55, b'a', b'b', 1]));
        let whole = values.bytes(&[Piece::Pattern(number(0), number(600))]).unwrap();
        assert_eq!(values.bytes(&[Piece::Pattern(number(300), number(600))]).unwrap(), whole[300..]);
        assert_ne!(whole[..256], whole[256..512]);
        assert!(values.bytes(&[Piece::Repeated(number(0), Some(number(1 << 30)))]).is_err());
    }
}
