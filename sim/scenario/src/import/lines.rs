//! Lines of text formats, and the numbers in them.

use std::fmt::Display;
use std::str::FromStr;

use crate::Wrong;

/// The words of a line. They are read from left to right.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// The number of the line, from 1.
    pub(super) number: usize,
    words: std::vec::IntoIter<&'a str>,
}

/// Returns the lines that have words. A number sign starts a comment.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let lines = (1..).zip(text.lines()).map(|(number, line)| {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        Line { number, words: words.into_iter() }
    });
    lines.filter(|line| !line.words.as_slice().is_empty())
}

impl<'a> Line<'a> {
    /// Returns the next word, if there is one.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        self.words.next()
    }

    /// Returns the words that were not read.
    pub(super) fn rest(&self) -> &[&'a str] {
        self.words.as_slice()
    }

    /// Returns an error of this line.
    pub(super) fn wrong(&self, reason: impl Display) -> Wrong {
        at(self.number, reason)
    }

    /// Returns the next word as a number from 0 to `most`.
    pub(super) fn number<T: FromStr + PartialOrd + Display>(
        &mut self,
        what: &str,
        most: T,
    ) -> Result<T, Wrong> {
        let word =
            self.words.next().ok_or_else(|| self.wrong(format!("the number after {what} is missing")))?;
        number(word, most).map_err(|reason| self.wrong(format!("{what}: {reason}")))
    }

    /// Checks that all words were read.
    pub(super) fn end(&self) -> Result<(), Wrong> {
        match self.rest().first() {
            None => Ok(()),
            Some(word) => Err(self.wrong(format!("\"{word}\" is not expected here"))),
        }
    }
}

/// Returns an error of a line.
pub(super) fn at(line: usize, reason: impl Display) -> Wrong {
    format!("line {line}: {reason}")
}

/// Parses a whole number from 0 to `most`.
pub(super) fn number<T: FromStr + PartialOrd + Display>(word: &str, most: T) -> Result<T, Wrong> {
    let is_plain = word.starts_with(|sign: char| sign.is_ascii_digit());
    let number = word.parse::<T>().ok().filter(|number| is_plain && *number <= most);
    number.ok_or_else(|| format!("\"{word}\" is not a whole number from 0 to {most}"))
}
