//! Errors on standard error.

use std::io::{self, Write as _};

/// Prints an error to standard error. A failure of that write is ignored, because it cannot be reported
/// anywhere. The text may come from a file or a peer, so characters that control the terminal are escaped.
pub(super) fn print_error(text: &str) {
    let mut shown = String::with_capacity(text.len());
    for sign in text.chars() {
        if sign == '\n' || roce::observe::is_harmless(sign) {
            shown.push(sign);
        } else {
            shown.extend(sign.escape_unicode());
        }
    }
    let _ = writeln!(io::stderr(), "roce: {shown}");
}

/// Formats an error and its causes. Omits causes that the text already contains.
pub(super) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
