//! The files of the seeds.

use std::collections::BTreeMap;

/// Files by target and name.
pub type Seeds = BTreeMap<(&'static str, String), Vec<u8>>;
