//! Each packet of a capture in one line: what `roce dissect` prints.

pub mod columns;
pub mod filter;
mod flows;
mod json;
mod listed;
mod row;
mod shown;
mod summary;

pub use flows::{Flows, Mark};
pub use json::text;
pub use listed::Listed;
pub use row::{Row, Tone, ecn_name};
pub use shown::Shown;
pub use summary::Summary;
