//! What this program was built from: version, commit, features and target.

use std::sync::LazyLock;

use serde::Serialize;

use crate::platform::FEATURES;

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The properties that distinguish builds of one version.
#[derive(Debug, Serialize)]
pub(crate) struct Build {
    /// The commit of the sources, if the build knew it. Changes that were not committed are not visible.
    commit: Option<&'static str>,
    /// The features of the devices.
    features: &'static [&'static str],
    /// The target triple.
    target: &'static str,
}

/// The build of this program. The variables are those of `build.rs`.
pub(crate) const BUILD: Build = Build {
    commit: match env!("BUILD_COMMIT").as_bytes() {
        [] => None,
        _ => Some(env!("BUILD_COMMIT")),
    },
    features: FEATURES,
    target: env!("BUILD_TARGET"),
};

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
