//! `roce explore`: serves the page of roce to a browser on this machine, with a capture and live data. The
//! server is in builds with the feature `explore`; it has crates that no other command needs.

#[cfg(feature = "explore")]
mod serve;
#[cfg(not(feature = "explore"))]
mod without_server;

use std::path::PathBuf;

#[cfg(feature = "explore")]
pub(super) use self::serve::run;
#[cfg(not(feature = "explore"))]
pub(super) use self::without_server::run;

/// Show frames, captures, simulations and running processes in a browser
///
/// Serves a page on 127.0.0.1 until Ctrl-C, and prints its link. The page explains frames, opens captures,
/// shows two hosts with the packets between them, and simulates congestion. CAPTURE is open in it from the
/// start. The page also shows what running `roce` processes publish: the counters of `roce stat`, their
/// rates, and the queue pairs of `roce why`.
///
/// Only who has the link can read anything: it contains a random token. The page loads nothing from the
/// network. docs/how-to/explore.md describes it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file that the page opens
    #[arg(value_name = "CAPTURE")]
    file: Option<PathBuf>,

    /// Show the new packets of CAPTURE, which another program still writes
    #[arg(long, requires = "file")]
    follow: bool,

    /// TCP port of the page [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// File of the page, which tools/web/build writes [default: the installed one, or target/web/roce.html]
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}
