//! Standard output, with optional color.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use clap::ValueEnum;
use terminal_size::{Width, terminal_size};

/// When to color the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    Auto,
    Always,
    Never,
}

/// A color, as the number of its escape sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint(&'static str);

impl Paint {
    pub(crate) const BOLD: Self = Self("1");
    pub(crate) const DIM: Self = Self("2");
    pub(crate) const RED: Self = Self("1;31");
    pub(crate) const YELLOW: Self = Self("33");
    pub(crate) const GREEN: Self = Self("32");
    pub(crate) const REVERSE: Self = Self("7");
    /// Colors that only need to differ between neighboring items.
    pub(crate) const CYCLE: [Self; 6] =
        [Self("36"), Self("33"), Self("35"), Self("32"), Self("34"), Self("31")];
}

/// Whether output is colored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) color: bool,
}

impl Style {
    /// Returns `text` with a color, ready to be printed.
    pub(crate) fn paint<T: fmt::Display>(self, paint: Paint, text: T) -> Painted<T> {
        Painted { paint: self.color.then_some(paint), text }
    }
}

/// A text with a color; see [`Style::paint`].
#[derive(Debug)]
pub(crate) struct Painted<T> {
    paint: Option<Paint>,
    text: T,
}

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.paint {
            Some(Paint(code)) => write!(f, "\x1b[{code}m{}\x1b[0m", self.text),
            None => write!(f, "{}", self.text),
        }
    }
}

/// Standard output, buffered.
#[derive(Debug)]
pub(crate) struct Output {
    inner: BufWriter<StdoutLock<'static>>,
    pub(crate) style: Style,
    /// Number of columns of the terminal; `None` if the output is not a terminal.
    pub(crate) terminal_width: Option<usize>,
}

impl ColorChoice {
    /// Returns whether to color output, given whether it goes to a terminal.
    pub(crate) fn colors(self, is_terminal: bool) -> bool {
        // NO_COLOR applies if it is set and not empty: https://no-color.org
        let wanted = || {
            std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && std::env::var_os("TERM").is_none_or(|value| value != "dumb")
        };
        match self {
            Self::Auto => is_terminal && wanted(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

impl Output {
    pub(crate) fn stdout(choice: ColorChoice) -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        let color = choice.colors(is_terminal);
        let terminal_width = is_terminal.then(|| match terminal_size() {
            Some((Width(columns), _)) if columns > 0 => columns.into(),
            _ => 100,
        });
        let inner = BufWriter::with_capacity(1 << 16, stdout.lock());
        Self { inner, style: Style { color }, terminal_width }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Wraps a text; indents all lines but the first.
pub(crate) fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut lines = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let len = word.chars().count();
        if column > indent && column + 1 + len > width {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += len;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 2, 12), "one two\n  three");
        assert_eq!(wrapped("averyveryverylongword x", 2, 12), "averyveryverylongword\n  x");
        assert_eq!(wrapped("", 2, 12), "");
    }
}
