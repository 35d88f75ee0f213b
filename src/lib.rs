//! Under construction.

#[doc(hidden)]
pub mod cli;
pub mod observe;
