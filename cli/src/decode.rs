//! Decodes packets and formats their parts, for `roce dissect`, `roce explain` and `roce inject`.

pub(super) use roce_analysis::walk;
pub(super) use roce_document::fields;
pub(super) use roce_document::packet::captured;

pub(super) mod text;
