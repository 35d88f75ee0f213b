//! The program that the documents of the page name.

use roce_document::document::{Build, Program};

/// This program. `tools/web/build` sets the commit.
pub(crate) const PROGRAM: Program<'static> = Program {
    version: env!("CARGO_PKG_VERSION"),
    build: Build { commit: option_env!("BUILD_COMMIT"), features: &[], target: "wasm32-unknown-unknown" },
};

/// Returns the version and the commit: `0.1.0 (1a2b3c)`, or only the version if the build did not know the
/// commit.
#[must_use]
pub fn version() -> String {
    match PROGRAM.build.commit {
        Some(commit) => format!("{} ({commit})", PROGRAM.version),
        None => PROGRAM.version.to_owned(),
    }
}
