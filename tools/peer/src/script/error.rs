//! Errors of scripts.

use std::fmt;
use std::sync::Arc;

/// A line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An error in a script: its line, the problem, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// The line.
    pub place: Place,
    /// The problem and the remedy.
    pub what: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for ScriptError {}
