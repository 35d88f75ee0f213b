//! The answer of a responder as data.

use serde::Serialize;

/// The answer of a responder.
#[derive(Debug, Serialize)]
pub(in crate::frame) struct Answer {
    pub(super) verdict: Outcome,
    /// The counter of a dropped packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counter: Option<&'static str>,
    /// The reason in words.
    pub(super) why: String,
    /// The section of the specification.
    pub(super) rule: &'static str,
    /// The packets that the responder sends.
    pub(super) replies: Vec<Reply>,
}

/// The outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::frame) enum Outcome {
    Handled,
    Dropped,
    /// No responder gets the frame.
    None,
}

/// A packet of a responder.
#[derive(Debug, Serialize)]
pub(in crate::frame) struct Reply {
    /// The whole frame in hexadecimal digits, which the ICRC needs.
    pub(super) hex: String,
    /// The first header, as the page names it.
    pub(super) from: &'static str,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn none(why: impl Into<String>, rule: &'static str) -> Self {
        Self { verdict: Outcome::None, counter: None, why: why.into(), rule, replies: Vec::new() }
    }

    pub(super) fn dropped(counter: &'static str, why: String, rule: &'static str) -> Self {
        Self { verdict: Outcome::Dropped, counter: Some(counter), why, rule, replies: Vec::new() }
    }
}
