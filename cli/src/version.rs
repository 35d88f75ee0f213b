//! What this program was built from: version, commit, features and target.

use std::sync::LazyLock;

use roce_document::document::{Build, Program};

use crate::platform::FEATURES;

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The build of this program. The variables are those of `build.rs`.
const BUILD: Build<'static> = Build {
    commit: match env!("BUILD_COMMIT").as_bytes() {
        [] => None,
        _ => Some(env!("BUILD_COMMIT")),
    },
    features: FEATURES,
    target: env!("BUILD_TARGET"),
};

/// This program, as documents name it.
pub(crate) const PROGRAM: Program<'static> = Program { version: VERSION, build: BUILD };

/// Returns the text of `--version` after the name of the program.
pub(crate) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{VERSION}\ncommit: {}\nfeatures: {}\ntarget: {}",
            BUILD.commit.unwrap_or("unknown"),
            BUILD.features.join(" "),
            BUILD.target
        )
    });
    &TEXT
}
