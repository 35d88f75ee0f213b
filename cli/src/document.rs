//! Prints the JSON documents of the commands.

use std::io::{self, Write};

use serde::Serialize;

use crate::version::PROGRAM;

/// Prints the document of a command; `body` is an object.
pub(crate) fn print(output: &mut impl Write, command: &str, body: &impl Serialize) -> io::Result<()> {
    write!(output, "{}", text(command, body)?)
}

/// Returns the document of a command, with a line break at its end; `body` is an object.
pub(crate) fn text(command: &str, body: &impl Serialize) -> io::Result<String> {
    Ok(roce_document::document::text(command, body, PROGRAM)?)
}

/// Returns the document of a command on one line, without a line break; `body` is an object.
pub(crate) fn line(command: &str, body: &impl Serialize) -> io::Result<String> {
    Ok(roce_document::document::line(command, body, PROGRAM)?)
}
