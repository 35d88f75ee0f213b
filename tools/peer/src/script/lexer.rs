//! Splits a line into words, numbers and signs.

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A name such as `send` or `remote.va`.
    Word(String),
    Number(i128),
    /// A time in nanoseconds.
    Time(i128),
    /// The content of a string.
    Text(String),
    Sign(&'static str),
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Number(number) => write!(f, "{number}"),
            Self::Time(nanos) => write!(f, "{nanos}ns"),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Sign(sign) => f.write_str(sign),
        }
    }
}

/// Signs, longer ones first.
const SIGNS: [&str; 18] =
    ["..", "==", "!=", "+=", "=", "+", "-", "*", "/", "%", "(", ")", "[", "]", "{", "}", ",", ";"];

/// Units of time, in nanoseconds.
const UNITS: [(&str, i128); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Returns the tokens of a line, without its comment.
pub(super) fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        if first == '#' {
            break;
        }
        let (token, behind) = if first.is_ascii_digit() {
            number(rest)?
        } else if first.is_ascii_alphabetic() || first == '_' {
            word(rest)
        } else if first == '"' {
            string(rest)?
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = sign.ok_or_else(|| format!("`{first}` has no meaning here"))?;
            (Token::Sign(sign), rest.get(sign.len()..).unwrap_or_default())
        };
        found.push(token);
        rest = behind.trim_start();
    }
    Ok(found)
}

/// Splits a text before its first character that is not in the given class.
fn split(text: &str, is_inside: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|sign: char| !is_inside(sign)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Reads a name. A dot belongs to it if a letter follows, so that `a..b` is a range.
fn word(text: &str) -> (Token, &str) {
    let mut word = String::new();
    let mut rest = text;
    loop {
        let (part, behind) = split(rest, |sign| sign.is_ascii_alphanumeric() || sign == '_');
        word.push_str(part);
        rest = behind;
        match behind.strip_prefix('.') {
            Some(next) if next.starts_with(|sign: char| sign.is_ascii_alphabetic()) => {
                word.push('.');
                rest = next;
            }
            _ => return (Token::Word(word), rest),
        }
    }
}

fn number(text: &str) -> Result<(Token, &str), String> {
    let (digits, behind) = split(text, |sign| sign.is_ascii_alphanumeric() || sign == '_');
    let plain = digits.replace('_', "");
    let wrong = || format!("`{digits}` is not a number; write for example 16, 0x10 or 10ms");
    if let Some(hex) = plain.strip_prefix("0x") {
        let value = u128::from_str_radix(hex, 16).ok().and_then(|value| i128::try_from(value).ok());
        return Ok((Token::Number(value.ok_or_else(wrong)?), behind));
    }
    let (count, unit) = split(&plain, |sign| sign.is_ascii_digit());
    let count: i128 = count.parse::<u64>().map_err(|_| wrong())?.into();
    if unit.is_empty() {
        return Ok((Token::Number(count), behind));
    }
    let (_, nanos) = UNITS.iter().find(|(known, _)| *known == unit).ok_or_else(wrong)?;
    Ok((Token::Time(count * nanos), behind))
}

fn string(text: &str) -> Result<(Token, &str), String> {
    let inside = text.strip_prefix('"').unwrap_or(text);
    let (content, behind) = inside.split_once('"').ok_or("the string has no end; add a `\"`")?;
    Ok((Token::Text(content.to_owned()), behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_tokens() {
        let word = |text: &str| Token::Word(text.to_owned());
        let found = tokens("send write_only psn=0x10 va=remote.va + 8 # comment").unwrap();
        let expected = [
            word("send"),
            word("write_only"),
            word("psn"),
            Token::Sign("="),
            Token::Number(16),
            word("va"),
            Token::Sign("="),
            word("remote.va"),
            Token::Sign("+"),
            Token::Number(8),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            tokens("a[0..16] 20ms \"#x\"").unwrap(),
            [
                word("a"),
                Token::Sign("["),
                Token::Number(0),
                Token::Sign(".."),
                Token::Number(16),
                Token::Sign("]"),
                Token::Time(20_000_000),
                Token::Text("#x".to_owned()),
            ]
        );
        assert_eq!(tokens("a..b").unwrap(), [word("a"), Token::Sign(".."), word("b")]);
        assert_eq!(tokens("# only a comment").unwrap(), []);
    }

    #[test]
    fn what_is_no_token_is_named() {
        for (line, part) in
            [("send ?", "`?`"), ("wait 5min", "`5min`"), ("psn=0xfg", "`0xfg`"), ("rule \"a", "no end")]
        {
            let error = tokens(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
