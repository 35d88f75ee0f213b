//! Error numbers of completions as programs print them, each with its meaning, its source, likely causes and
//! the next step: the statuses of libibverbs, the vendor errors of `roce`, and those of mlx5 with a public
//! source. `roce why` shows them on every system.
//!
//! The crate may use `roce-transport`, and reads and writes nothing.
#![forbid(unsafe_code)]

mod codes;
mod likely;

pub use codes::{CodeKind, ErrorCode, codes, look_up};
pub use likely::{Likely, likely};
