//! The explanation of one packet: what `roce explain` prints.

mod explanation;
mod json;

pub use explanation::{Explanation, Origin, is_masked};
pub use json::{Document, text};
