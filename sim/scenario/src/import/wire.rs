//! The wire format of protocol buffers: fields of a message, and messages behind their lengths.
//!
//! Ten fields of four messages are needed. The crate `prost` would add three crates and the code that its
//! macro writes, and its errors have no position in the file.

use crate::Wrong;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    /// Eight or four bytes in little-endian order.
    Fixed(u64),
    /// A text, a message, or a packed list.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the bytes, or no bytes if the field has another type.
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Varint(_) | Self::Fixed(_) => &[],
        }
    }

    /// Returns the text, in which � stands for bytes that are not UTF-8.
    pub(super) fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// Returns the number, or 0 if the field has another type.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Varint(number) | Self::Fixed(number) => number,
            Self::Bytes(_) => 0,
        }
    }
}

/// Reads bytes from left to right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// The number of the first byte in the file.
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of the next byte in the file.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn wrong(&self, reason: &str) -> Wrong {
        format!("byte {}: {reason}", self.at)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Wrong> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.bytes.len());
        let count = count.ok_or_else(|| {
            self.wrong(&format!("a field is longer than the {} bytes that are left", self.bytes.len()))
        })?;
        let (taken, rest) = self.bytes.split_at(count);
        (self.bytes, self.at) = (rest, self.at + count);
        Ok(taken)
    }

    /// Reads a number of up to ten bytes with seven bits each.
    pub(super) fn varint(&mut self) -> Result<u64, Wrong> {
        let mut number = 0;
        for (index, byte) in self.bytes.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.take(index as u64 + 1)?;
                return Ok(number);
            }
        }
        Err(self.wrong("a number has no end"))
    }

    /// Reads a length and the message behind it.
    pub(super) fn message(&mut self) -> Result<Self, Wrong> {
        let length = self.varint()?;
        let at = self.at;
        Ok(Self { bytes: self.take(length)?, at })
    }

    /// Reads a field: its number and its value. Returns `None` at the end of the message.
    pub(super) fn field(&mut self) -> Result<Option<(u64, Value<'a>)>, Wrong> {
        if self.is_empty() {
            return Ok(None);
        }
        let start = *self;
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed(fixed(self.take(8)?)),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed(fixed(self.take(4)?)),
            other => {
                return Err(start.wrong(&format!("a field has the type {other}; is this the right file?")));
            }
        };
        match key >> 3 {
            0 => Err(start.wrong("a field has the number 0; is this the right file?")),
            number => Ok(Some((number, value))),
        }
    }
}

/// Returns the numbers of a repeated field, which are packed or one.
pub(super) fn numbers(value: Value<'_>, list: &mut Vec<u64>) -> Result<(), Wrong> {
    let Value::Bytes(bytes) = value else {
        list.push(value.number());
        return Ok(());
    };
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        list.push(reader.varint().map_err(|_| "a list of numbers has no end".to_owned())?);
    }
    Ok(())
}

fn fixed(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_type() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 0, 0, 0x21, 1, 0, 0, 0, 0, 0, 0, 1];
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.field().unwrap(), Some((1, Value::Varint(150))));
        let (number, text) = reader.field().unwrap().unwrap();
        assert_eq!((number, text.text(), text.number()), (2, "hi".to_owned(), 0));
        assert_eq!(reader.field().unwrap(), Some((3, Value::Fixed(513))));
        assert_eq!(reader.field().unwrap(), Some((4, Value::Fixed((1 << 56) + 1))));
        assert_eq!((reader.field().unwrap(), reader.position()), (None, bytes.len()));
        let mut list = Vec::new();
        numbers(Value::Bytes(&[3, 0x80, 1]), &mut list).unwrap();
        numbers(Value::Varint(7), &mut list).unwrap();
        assert_eq!(list, [3, 128, 7]);
    }

    #[test]
    fn what_is_malformed_names_its_byte() {
        let error = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            loop {
                match reader.field() {
                    Ok(Some(_)) => {}
                    Ok(None) => return String::new(),
                    Err(reason) => return reason,
                }
            }
        };
        assert_eq!(error(&[0x08, 1, 0x12, 5, 1]), "byte 4: a field is longer than the 1 bytes that are left");
        assert_eq!(error(&[0x08]), "byte 1: a number has no end");
        assert_eq!(error(&[0xff; 12]), "byte 0: a number has no end");
        assert_eq!(error(&[0x0b]), "byte 0: a field has the type 3; is this the right file?");
        assert_eq!(error(&[0x00, 1]), "byte 0: a field has the number 0; is this the right file?");
        let length = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert!(error(&length).starts_with("byte 11: a field is longer"), "{}", error(&length));
    }
}
