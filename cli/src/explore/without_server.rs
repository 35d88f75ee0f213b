//! `roce explore` in a build without the feature `explore`.

use std::process::ExitCode;

use anyhow::bail;

use super::Args;
use crate::terminal::Output;

pub(in crate::network) fn run(_: &Args, _: &mut Output) -> anyhow::Result<ExitCode> {
    bail!(
        "this roce was built without the server of the page; in the sources of roce, `cargo build --release \
         --features explore` builds one with it"
    )
}
