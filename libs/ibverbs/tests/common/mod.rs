//! The library under test, and programs of the distribution for it.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::path::{Path, PathBuf};

/// Returns the path of the library, which cargo has built before this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let library = test.with_file_name("libibverbs.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// Returns a folder that contains the library under the name by which programs load it.
pub(crate) fn library_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["libibverbs.so.1", "libibverbs.so"] {
        std::os::unix::fs::symlink(library(), folder.path().join(name)).expect("a link");
    }
    folder
}

/// Returns the packages of the distribution; see [`roce_testing::distribution`].
pub(crate) fn distribution() -> Option<&'static Path> {
    roce_testing::distribution(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns the search path with the distribution's shared libraries, after `ours`.
pub(crate) fn library_path(ours: &Path, root: &Path) -> std::ffi::OsString {
    let folders = ["usr/lib", "lib"].map(|folder| root.join(folder).join(triplet()));
    let folders = std::iter::once(ours.to_owned()).chain(folders);
    std::env::join_paths(folders).expect("paths without colons")
}

fn triplet() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// Returns the path of the distribution's own library.
pub(crate) fn distributions_library(root: &Path) -> PathBuf {
    root.join("usr/lib").join(triplet()).join("libibverbs.so.1")
}
