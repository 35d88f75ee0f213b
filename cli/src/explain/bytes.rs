//! Hexadecimal digits in all the ways in which people have them.

use std::fmt;

/// Why a text is not a row of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BytesError {
    Empty,
    /// A character that has no business there.
    BadCharacter {
        character: char,
        line: usize,
        column: usize,
    },
    /// A group with an odd number of digits.
    HalfByte {
        digits: String,
        line: usize,
        column: usize,
    },
    /// A line of a dump does not begin with the number of bytes before it.
    BadOffset {
        line: usize,
        expected: usize,
        found: String,
    },
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("there are no bytes; give them as hexadecimal digits, such as 4502003c")
            }
            Self::BadCharacter { character, line, column } => write!(
                f,
                "line {line}, character {column}: {character:?} is not a hexadecimal digit (0-9, a-f); \
                 leave out everything but the bytes"
            ),
            Self::HalfByte { digits, line, column } => write!(
                f,
                "line {line}, character {column}: `{digits}` has an odd number of digits, and a byte \
                 has two; is one missing?"
            ),
            Self::BadOffset { line, expected, found } => write!(
                f,
                "line {line}: it should begin with offset {expected:04x}, as {expected} bytes stand \
                 before it, but begins with `{found}`; give the dump of one packet, whole"
            ),
        }
    }
}

impl std::error::Error for BytesError {}

/// The bytes that a text stands for.
pub(super) fn parse(text: &str) -> Result<Vec<u8>, BytesError> {
    let first = text.lines().find(|line| !line.trim().is_empty()).ok_or(BytesError::Empty)?;
    let is_dump = split_offset(first).is_some_and(|(offset, _)| offset == 0);
    let bytes = if is_dump { parse_dump(text)? } else { parse_plain(text)? };
    if bytes.is_empty() { Err(BytesError::Empty) } else { Ok(bytes) }
}

/// Digits with anything between them that people put there.
fn parse_plain(text: &str) -> Result<Vec<u8>, BytesError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for (index, line) in text.lines().enumerate() {
        let mut group = Group { digits: String::new(), line: index + 1, column: 1 };
        let mut characters = line.chars().enumerate().peekable();
        while let Some((column, character)) = characters.next() {
            match character {
                // Every group may have a prefix of its own.
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

/// Digits that stand together.
struct Group {
    digits: String,
    line: usize,
    column: usize,
}

impl Group {
    /// Turns the digits into bytes and begins anew.
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

/// Lines that begin with an offset and may end in the bytes as text.
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

/// Reads the bytes of one line up to the text column: 16 at most, and up to the first gap. Some dumps have
/// a gap of two after eight bytes, which is none. An error is the place and the digits.
fn dump_line(line: &str, bytes: &mut Vec<u8>) -> Result<(), (usize, String)> {
    let mut count = 0;
    let mut rest = line.trim_start();
    while count < 16 && !rest.is_empty() {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (digits, behind) = rest.split_at(end);
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            break;
        }
        let group = hex_bytes(digits).ok_or_else(|| (line.len() - rest.len(), digits.to_owned()))?;
        count += group.len();
        bytes.extend(group);
        let next = behind.trim_start();
        let gap = behind.len() - next.len();
        if gap > 2 || (gap == 2 && count != 8) {
            break;
        }
        rest = next;
    }
    Ok(())
}

/// The offset at the start of a line of a dump, and what follows it: at least four digits, perhaps with
/// `0x` before them, and a colon or two spaces behind them.
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

/// The bytes of an even number of digits.
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
    fn bytes_are_found_in_many_forms() {
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
            // hexdump -C, whose last line is the length alone
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
    fn the_text_column_of_a_dump_is_no_bytes() {
        let dump = "0000  61 62 20 63 64 20 65 66 20 61 62 20 63 64 20 61   ab cd ef ab cd a\n\
                    0010  61 62 20 63 64 20 65 66                           ab cd ef\n";
        assert_eq!(parse(dump).unwrap().len(), 24);
        let dump = "00000000: 6162 2063 6420 6566                      ab cd ef\n";
        assert_eq!(parse(dump).unwrap(), b"ab cd ef");
    }

    #[test]
    fn errors_say_where() {
        let text = |input: &str| parse(input).unwrap_err().to_string();
        assert!(text("").starts_with("there are no bytes"));
        assert!(text(" \n\t\n").starts_with("there are no bytes"));
        assert!(text("0x").starts_with("there are no bytes"));
        assert!(text("45 02 zz").starts_with("line 1, character 7: 'z' is not"), "{}", text("45 02 zz"));
        assert!(text("45\n0g").starts_with("line 2, character 2: 'g'"));
        assert!(text("45 0\u{e9}").starts_with("line 1, character 5: 'é'"));
        assert!(text("45 0 22").starts_with("line 1, character 4: `0` has an odd"), "{}", text("45 0 22"));
        assert!(text("450").starts_with("line 1, character 1: `450`"));
        assert!(text("0000  41 42\n0010  43").starts_with("line 2: it should begin with offset 0002"));
        assert!(text("0000  41 42\nhello").contains("begins with `hello`"));
        assert!(text("0000  41 4").contains("character 10: `4`"), "{}", text("0000  41 4"));
    }
}
