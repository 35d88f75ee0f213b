//! Answers of students: their forms, and their comparison with the expected ones.

use serde::Serialize;

/// The judgement of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Whether the answer is right.
    pub right: bool,
    /// What to try next, if the answer is wrong. Never contains the right answer.
    pub hint: String,
    /// How the program computed the right answer: plain text of several lines. Empty if the answer is wrong.
    pub shows: String,
}

/// An answer that a task expects, right or wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// An integer. Students may write it in decimal, or in hexadecimal after `0x`, with a unit behind it.
    Number(u64),
    /// A decimal number, and how far from it an answer may be.
    Near(f64, f64),
    /// Bytes in their order on the wire, as hexadecimal digits. Students may separate them.
    Bytes(Vec<u8>),
    /// A word, or the text of a choice. Upper and lower case are equal.
    Text(String),
}

impl Expected {
    /// Returns a word or a choice.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns whether a student wrote this.
    #[must_use]
    pub fn matches(&self, answer: &str) -> bool {
        match self {
            Self::Number(expected) => integer(answer) == Some(*expected),
            Self::Near(expected, distance) => {
                decimal(answer).is_some_and(|number| (number - expected).abs() <= *distance)
            }
            Self::Bytes(expected) => digits(answer).is_some_and(|found| found == hex(expected)),
            Self::Text(expected) => words(answer) == words(expected),
        }
    }

    /// Returns the advice for an answer that does not have this form, or `None` if it has this form.
    fn advice(&self, answer: &str) -> Option<String> {
        match self {
            Self::Number(_) if integer(answer).is_none() => {
                Some("Write an integer, such as 1042 or 0x412.".to_owned())
            }
            Self::Near(..) if decimal(answer).is_none() => {
                Some("Write a decimal number, such as 12.5.".to_owned())
            }
            Self::Bytes(bytes) => {
                let need = bytes.len() * 2;
                let found = digits(answer).map(|digits| digits.len());
                (found != Some(need)).then(|| {
                    format!(
                        "Write {need} hexadecimal digits, in the order in which the bytes are on the wire."
                    )
                })
            }
            Self::Text(_) if words(answer).is_empty() => Some("Write or choose an answer.".to_owned()),
            _ => None,
        }
    }
}

/// The right answer to a task, and the wrong answers with a hint of their own.
#[derive(Clone, Debug)]
pub struct AnswerKey {
    right: Expected,
    shows: String,
    hints: Vec<(Expected, String)>,
    otherwise: String,
}

impl AnswerKey {
    /// Creates a key. `shows` says how the right answer was computed.
    pub fn new(right: Expected, shows: impl Into<String>) -> Self {
        Self { right, shows: shows.into(), hints: Vec::new(), otherwise: "Try again.".to_owned() }
    }

    /// Adds a wrong answer and its hint. Of several hints that match, the first one counts.
    #[must_use]
    pub fn hint(mut self, wrong: Expected, hint: impl Into<String>) -> Self {
        self.hints.push((wrong, hint.into()));
        self
    }

    /// Sets the hint for every other wrong answer.
    #[must_use]
    pub fn otherwise(mut self, hint: impl Into<String>) -> Self {
        self.otherwise = hint.into();
        self
    }

    /// Judges an answer.
    #[must_use]
    pub fn judge(&self, answer: &str) -> Outcome {
        if self.right.matches(answer) {
            return Outcome { right: true, hint: String::new(), shows: self.shows.clone() };
        }
        let known = self.hints.iter().find(|(wrong, _)| wrong.matches(answer)).map(|(_, hint)| hint.clone());
        let hint = known.or_else(|| self.right.advice(answer)).unwrap_or_else(|| self.otherwise.clone());
        Outcome { right: false, hint, shows: String::new() }
    }
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that hexadecimal digits mean, up to the first that is not a digit.
pub(super) fn from_hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map_while(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Reads an integer, in decimal or in hexadecimal after `0x`. Ignores separators and a unit behind it.
fn integer(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(&digits.replace(['_', ' '], ""), 16).ok();
    }
    numeral(&text)?.parse().ok()
}

/// Reads a decimal number. Ignores separators and a unit behind it.
fn decimal(text: &str) -> Option<f64> {
    numeral(text.trim())?.parse().ok()
}

/// Returns the number at the start of a text without its separators. A unit may follow it, nothing else.
fn numeral(text: &str) -> Option<String> {
    let is_part = |char: char| char.is_ascii_digit() || ".,_ ".contains(char);
    let end = text.find(|char: char| !is_part(char)).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let is_unit = unit.chars().all(|char: char| char.is_alphabetic() || "%/ ".contains(char));
    let number: String = number.chars().filter(|char: &char| !",_ ".contains(*char)).collect();
    (is_unit && !number.is_empty()).then_some(number)
}

/// Returns the hexadecimal digits of a text without prefix and separators, or `None` if it contains others.
pub(super) fn digits(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase().replace("0x", "");
    let digits: String = text.chars().filter(|char: &char| !" :-_".contains(*char)).collect();
    digits.chars().all(|char: char| char.is_ascii_hexdigit()).then_some(digits)
}

/// Returns the words of a text in lower case, without marks around it.
fn words(text: &str) -> String {
    let text = text.trim().trim_matches(['`', '"', '.', '\'']).to_lowercase();
    text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for text in ["1042", " 1,042 ", "1 042", "0x412", "0X0412", "1042 bytes", "1_042"] {
            assert!(Expected::Number(1042).matches(text), "{text}");
        }
        for text in ["", "bytes", "10 42 4", "-1042", "1042.5", "0x", "1042 5x"] {
            assert!(!Expected::Number(1042).matches(text), "{text}");
        }
        assert!(Expected::Near(12.5, 0.1).matches("12.45 Gb/s"));
        assert!(!Expected::Near(12.5, 0.1).matches("12.7"));
    }

    #[test]
    fn bytes_may_be_separated() {
        let expected = Expected::Bytes(vec![0x0a, 0xbc]);
        for text in ["0abc", "0A BC", "0a:bc", "0x0a 0xbc", "0x0abc"] {
            assert!(expected.matches(text), "{text}");
        }
        assert!(!expected.matches("abc") && !expected.matches("0abg"));
        assert_eq!(from_hex("0abcx0ff"), [0x0a, 0xbc]);
    }

    #[test]
    fn an_answer_of_another_form_gets_advice() {
        let key = AnswerKey::new(Expected::Bytes(vec![1, 2]), "shown")
            .hint(Expected::Bytes(vec![2, 1]), "reversed")
            .otherwise("no");
        let hint = |answer: &str| key.judge(answer).hint;
        assert_eq!(hint("0201"), "reversed");
        assert_eq!(hint("0202"), "no");
        assert!(hint("1").starts_with("Write 4 hexadecimal digits"), "{}", hint("1"));
        assert_eq!(key.judge("01 02"), Outcome { right: true, hint: String::new(), shows: "shown".into() });
    }
}
