//! `--live` in a build without the feature `live`.

use anyhow::bail;

use super::run::{Job, Ran};
use super::shipped::Source;

pub(super) fn run(_: &Job, _: &Source) -> anyhow::Result<Ran> {
    bail!(
        "this roce was built without --live; in the sources of roce, `cargo build --release --features live` \
         builds one with it, and --out DIR writes plots instead"
    )
}
