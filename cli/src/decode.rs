//! Decodes packets and formats their parts, for `roce dissect`, `roce explain` and `roce inject`.

pub(super) mod fields;
pub(super) mod json;
pub(super) mod text;
pub(super) mod walk;
