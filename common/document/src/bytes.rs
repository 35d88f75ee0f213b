//! Parses hexadecimal digits in many formats.

use std::fmt;

/// The reason why a text cannot be parsed as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BytesError {
    /// The text has no digits.
    Empty,
    /// A character that is neither a digit nor a separator.
    BadCharacter {
        /// The character.
        character: char,
        /// Its line, from 1.
        line: usize,
        /// Its position in the line, from 1.
        column: usize,
    },
    /// A group with an odd number of digits.
    HalfByte {
        /// The digits.
        digits: String,
        /// Their line, from 1.
        line: usize,
        /// Position of the first one in the line, from 1.
        column: usize,
    },
    /// A line of a dump whose offset differs from the number of bytes before it.
    BadOffset {
        /// The line, from 1.
        line: usize,
        /// Number of bytes before it.
        expected: usize,
        /// Its first word.
        found: String,
    },
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the input has no bytes; give hexadecimal digits, such as 4502003c"),
            Self::BadCharacter { character, line, column } => write!(
                f,
                "line {line}, character {column}: {character:?} is not a hexadecimal digit (0-9, a-f); \
                 remove everything but the bytes"
            ),
            Self::HalfByte { digits, line, column } => write!(
                f,
                "line {line}, character {column}: `{digits}` has an odd number of digits, but each byte has \
                 two"
            ),
            Self::BadOffset { line, expected, found } => write!(
                f,
                "line {line}: expected offset {expected:04x} because {expected} bytes precede this line, \
                 found `{found}`; give the complete dump of one packet"
            ),
        }
    }
}

impl std::error::Error for BytesError {}

/// Parses a text as bytes: digits with or without separators, or a dump of tshark, tcpdump, xxd or hexdump.
///
/// # Errors
///
/// Returns an error that names the line and the place of the first problem, or says that there are no digits.
pub fn parse(text: &str) -> Result<Vec<u8>, BytesError> {
    let first = text.lines().find(|line| !line.trim().is_empty()).ok_or(BytesError::Empty)?;
    let is_dump = split_offset(first).is_some_and(|(offset, _)| offset == 0);
    let bytes = if is_dump { parse_dump(text)? } else { parse_plain(text)? };
    if bytes.is_empty() { Err(BytesError::Empty) } else { Ok(bytes) }
}

/// Parses digits with separators between them.
fn parse_plain(text: &str) -> Result<Vec<u8>, BytesError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for (index, line) in text.lines().enumerate() {
        let mut group = Group { digits: String::new(), line: index + 1, column: 1 };
        let mut characters = line.chars().enumerate().peekable();
        while let Some((column, character)) = characters.next() {
            match character {
                // Each group may have a prefix.
                '0' if group.digits.is_empty()
                    && characters.next_if(|(_, next)| matches!(next, 'x' | 'X')).is_some() => {}
                '\\' if characters.next_if(|(_, next)| *next == 'x').is_some() => group.end(&mut bytes)?,
                digit if digit.is_ascii_hexdigit() => {
                    if group.digits.is_empty() {
                        group.column = column + 1;
                    }
                    group.digits.push(digit);
                }
                separator if separator.is_whitespace() || ":,;-_.\"'|{}[]".contains(separator) => {
                    group.end(&mut bytes)?;
                }
                character => {
                    return Err(BytesError::BadCharacter { character, line: index + 1, column: column + 1 });
                }
            }
        }
        group.end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Consecutive digits.
struct Group {
    digits: String,
    line: usize,
    column: usize,
}

impl Group {
    /// Converts the digits to bytes and starts a new group.
    fn end(&mut self, bytes: &mut Vec<u8>) -> Result<(), BytesError> {
        let Self { line, column, .. } = *self;
        let digits = std::mem::take(&mut self.digits);
        match hex_bytes(&digits) {
            Some(group) => {
                bytes.extend(group);
                Ok(())
            }
            None => Err(BytesError::HalfByte { digits, line, column }),
        }
    }
}

/// Parses a dump: lines that start with an offset and may end with a text column.
fn parse_dump(text: &str) -> Result<Vec<u8>, BytesError> {
    let mut bytes: Vec<u8> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (expected, number) = (bytes.len(), index + 1);
        let rest = match split_offset(line) {
            Some((offset, rest)) if offset == expected => rest,
            _ => {
                let found = line.split_whitespace().next().unwrap_or_default().to_owned();
                return Err(BytesError::BadOffset { line: number, expected, found });
            }
        };
        let column = line.len() - rest.len();
        dump_line(rest, &mut bytes).map_err(|(at, digits)| BytesError::HalfByte {
            digits,
            line: number,
            column: column + at + 1,
        })?;
    }
    Ok(bytes)
}

/// Parses the bytes of one line up to the text column: at most 16, and up to the first wide gap. A gap of two
/// spaces after eight bytes is allowed. An error contains the position and the digits.
fn dump_line(line: &str, bytes: &mut Vec<u8>) -> Result<(), (usize, String)> {
    let mut count = 0;
    let mut rest = line.trim_start();
    while count < 16 && !rest.is_empty() {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            break;
        }
        let group = hex_bytes(digits).ok_or_else(|| (line.len() - rest.len(), digits.to_owned()))?;
        count += group.len();
        bytes.extend(group);
        let next = after.trim_start();
        let gap = after.len() - next.len();
        if gap > 2 || (gap == 2 && count != 8) {
            break;
        }
        rest = next;
    }
    Ok(())
}

/// Splits a line of a dump into its offset and the rest. An offset has four to eight digits, an optional `0x`
/// before them, and a colon or two spaces after them.
fn split_offset(line: &str) -> Option<(usize, &str)> {
    let line = line.trim_start();
    let digits_and_rest = line.strip_prefix("0x").unwrap_or(line);
    let end = digits_and_rest.find(|c: char| !c.is_ascii_hexdigit())?;
    let (digits, rest) = digits_and_rest.split_at_checked(end)?;
    if !(4..=8).contains(&digits.len()) || !(rest.starts_with(':') || rest.starts_with("  ")) {
        return None;
    }
    Some((usize::from_str_radix(digits, 16).ok()?, rest.trim_start_matches(':')))
}

/// Converts an even number of digits to bytes.
fn hex_bytes(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let value = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |[high, low]: &[u8; 2]| Some(value(high)? << 4 | value(low)?);
    if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_formats_are_parsed() {
        let expected: Vec<u8> = (0x41..0x41 + 20).collect();
        let forms = [
            "4142434445464748494a4b4c4d4e4f5051525354",
            "41 42 43 44 45 46 47 48 49 4A 4B 4C 4D 4E 4F 50\n51 52 53 54\n",
            "41:42:43:44:45:46:47:48:49:4a:4b:4c:4d:4e:4f:50:51:52:53:54",
            "0x41424344 0x45464748,0x494a4b4c,0x4d 0x4e 0x4f50 51-52-53-54",
            r"\x41\x42\x43\x44\x45\x46\x47\x48\x49\x4a\x4b\x4c\x4d\x4e\x4f\x50\x51\x52\x53\x54",
            // tshark -x
            "0000  41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f 50   ABCDEFGHIJKLMNOP\n\
             0010  51 52 53 54                                       QRST\n",
            // hexdump -C without its last line, which contains only the length
            "00000000  41 42 43 44 45 46 47 48  49 4a 4b 4c 4d 4e 4f 50  |ABCDEFGHIJKLMNOP|\n\
             00000010  51 52 53 54                                       |QRST|\n",
            // xxd
            "00000000: 4142 4344 4546 4748 494a 4b4c 4d4e 4f50  ABCDEFGHIJKLMNOP\n\
             00000010: 5152 5354                                QRST\n",
            // tcpdump -xx
            "\t0x0000:  4142 4344 4546 4748 494a 4b4c 4d4e 4f50\n\t0x0010:  5152 5354",
        ];
        for form in forms {
            assert_eq!(parse(form), Ok(expected.clone()), "{form}");
        }
    }

    #[test]
    fn the_text_column_of_a_dump_is_ignored() {
        let dump = "0000  61 62 20 63 64 20 65 66 20 61 62 20 63 64 20 61   ab cd ef ab cd a\n\
                    0010  61 62 20 63 64 20 65 66                           ab cd ef\n";
        assert_eq!(parse(dump).unwrap().len(), 24);
        let dump = "00000000: 6162 2063 6420 6566                      ab cd ef\n";
        assert_eq!(parse(dump).unwrap(), b"ab cd ef");
    }

    #[test]
    fn errors_name_line_and_column() {
        let text = |input: &str| parse(input).unwrap_err().to_string();
        assert!(text("").starts_with("the input has no bytes"));
        assert!(text(" \n\t\n").starts_with("the input has no bytes"));
        assert!(text("0x").starts_with("the input has no bytes"));
        assert!(text("45 02 zz").starts_with("line 1, character 7: 'z' is not"), "{}", text("45 02 zz"));
        assert!(text("45\n0g").starts_with("line 2, character 2: 'g'"));
        assert!(text("45 0\u{e9}").starts_with("line 1, character 5: 'é'"));
        assert!(text("45 0 22").starts_with("line 1, character 4: `0` has an odd"), "{}", text("45 0 22"));
        assert!(text("450").starts_with("line 1, character 1: `450`"));
        assert!(text("0000  41 42\n0010  43").starts_with("line 2: expected offset 0002"));
        assert!(text("0000  41 42\nhello").contains("found `hello`"));
        assert!(text("0000  41 4").contains("character 10: `4`"), "{}", text("0000  41 4"));
    }
}
