//! Escaping of text from peers or foreign files, for safe display.
//!
//! A terminal obeys escape sequences, and some characters change the order of others. Therefore all such text
//! must pass through [`Text`] before it is put into an error, logged or printed.

use core::fmt::{self, Write as _};

/// Maximum number of displayed characters: enough for an error of a `roce` command with both ends and its
/// advice.
const LONGEST: usize = 800;

/// Displays text or bytes from a peer. Escapes control characters, line breaks and characters that change the
/// writing direction, shows bytes that are not UTF-8 as `\xff`, and truncates after 800 characters.
///
/// ```
/// use roce_packet::foreign::Text;
///
/// assert_eq!(Text::new("mlx5_0").to_string(), "mlx5_0");
/// assert_eq!(Text::new("\x1b[2Jgone\n").to_string(), r"\u{1b}[2Jgone\u{a}");
/// assert_eq!(Text::new(b"6.20\0\xfe").to_string(), r"6.20\u{0}\xfe");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// Wraps text or bytes of a peer.
    #[must_use]
    pub fn new<T: AsRef<[u8]> + ?Sized>(text: &'a T) -> Self {
        Self(text.as_ref())
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only bytes that can be displayed are examined: a character has at most four.
        let some = self.0.get(..4 * LONGEST + 4).unwrap_or(self.0);
        let mut left = LONGEST;
        for chunk in some.utf8_chunks() {
            for sign in chunk.valid().chars() {
                let Some(less) = left.checked_sub(1) else { return f.write_str("…") };
                left = less;
                if is_harmless(sign) { f.write_char(sign) } else { write!(f, "{}", sign.escape_unicode()) }?;
            }
            for byte in chunk.invalid() {
                let Some(less) = left.checked_sub(1) else { return f.write_str("…") };
                left = less;
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Returns whether a character neither controls a terminal nor hides or moves other characters.
#[must_use]
pub fn is_harmless(sign: char) -> bool {
    !sign.is_control()
        && !matches!(sign,
            // Characters for the writing direction.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Line breaks and zero-width characters.
            | '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn what_controls_a_terminal_is_escaped() {
        for sign in ('\0'..='\u{10ffff}').filter(|sign| sign.is_control()) {
            let shown = Text::new(&sign.to_string()).to_string();
            assert!(shown.chars().all(|sign| sign.is_ascii_graphic()), "{shown}");
        }
        for text in
            ["\u{9b}31m", "a\u{202e}b", "\u{2066}x\u{2069}", "one\u{2028}two", "\u{e0041}", "\u{feff}"]
        {
            assert!(Text::new(text).to_string().contains(r"\u{"), "{text:?}");
        }
    }

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in ["", "mlx5_0", "198.18.0.2:18520", "Zürich 東京 – ok", r"C:\temp"] {
            assert_eq!(Text::new(text).to_string(), text);
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let text = "é".repeat(3 * LONGEST);
        assert_eq!(Text::new(&text).to_string().chars().count(), LONGEST + 1);
    }

    /// Bytes of an exchange can be recovered from a log.
    #[test]
    fn bytes_that_are_not_a_text_are_all_shown() {
        assert_eq!(Text::new(b"\xff\x1b[31m\0").to_string(), r"\xff\u{1b}[31m\u{0}");
        assert_eq!(Text::new(&[0xe6, 0x9d]).to_string(), r"\xe6\x9d");
        assert!(Text::new(&[0xff; LONGEST]).to_string().ends_with(r"\xff"));
        assert!(Text::new(&[0xff; 2 * LONGEST]).to_string().ends_with('…'));
    }
}
