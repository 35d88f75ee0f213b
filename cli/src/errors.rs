//! Errors on standard error.

use std::io::{self, Write as _};

use roce_packet::foreign::is_harmless;

use super::platform;

/// Prints an error to standard error. A failure of that write is ignored, because it cannot be reported
/// anywhere. The text may come from a file or a peer, so characters that control the terminal are escaped.
pub(super) fn print_error(text: &str) {
    let mut shown = String::with_capacity(text.len());
    for sign in text.chars() {
        if sign == '\n' || is_harmless(sign) {
            shown.push(sign);
        } else {
            shown.extend(sign.escape_unicode());
        }
    }
    let _ = writeln!(io::stderr(), "roce: {shown}");
}

/// Prints the explanation of a failed work request below its error, if the error contains one.
pub(super) fn print_explanation(error: &anyhow::Error) {
    let Some(text) = platform::explanation(error) else { return };
    // The first line is the error.
    if let Some((_, lines)) = text.split_once('\n') {
        let _ = writeln!(io::stderr(), "{lines}");
    }
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
