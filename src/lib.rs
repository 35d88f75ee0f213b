//! Under construction.

pub mod observe;
