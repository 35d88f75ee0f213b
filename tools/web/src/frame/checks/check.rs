//! One rule and its result.

use serde::Serialize;

/// One rule and whether the frame follows it.
#[derive(Debug, Serialize)]
pub(in crate::frame) struct Check {
    /// A name for programs.
    pub(super) key: &'static str,
    /// The subject of the rule.
    pub(super) name: &'static str,
    pub(super) state: State,
    /// The finding in words.
    pub(super) text: String,
    /// The section of the specification.
    pub(super) rule: &'static str,
}

/// Whether a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::frame) enum State {
    Good,
    Bad,
    /// The frame does not show it.
    Unknown,
}

impl State {
    pub(super) const fn of(holds: bool) -> Self {
        if holds { Self::Good } else { Self::Bad }
    }
}

/// The key, the name and the rule of a check.
pub(super) type Subject = (&'static str, &'static str, &'static str);

impl Check {
    pub(super) fn new((key, name, rule): Subject, state: State, text: impl Into<String>) -> Self {
        Self { key, name, state, text: text.into(), rule }
    }
}
