//! The library under test, and programs of the distribution for it.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// What the programs need. The libraries of rdma-core among them are loaded together with ours.
const PACKAGES: &[&str] = &[
    "ibverbs-providers",
    "ibverbs-utils",
    "libibumad3",
    "libibverbs-dev",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpci3",
    "librdmacm1",
    "perftest",
    "qperf",
];

/// The longest that fetching and unpacking one package may take.
const FETCHING: Duration = Duration::from_secs(60);

/// The library, which cargo has built before this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let library = test.with_file_name("libibverbs.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// A folder that has the library under the name by which programs load it.
pub(crate) fn library_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["libibverbs.so.1", "libibverbs.so"] {
        std::os::unix::fs::symlink(library(), folder.path().join(name)).expect("a link");
    }
    folder
}

/// The distribution's packages, unpacked into a folder beside the results of cargo; `None` where they cannot be had.
pub(crate) fn distribution() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("distribution");
        let complete = root.join("complete");
        if complete.exists() {
            return Some(root);
        }
        std::fs::create_dir_all(&root).expect("a folder for packages");
        for package in PACKAGES {
            run(Command::new("apt-get").args(["download", "-qq", package]).current_dir(&root))?;
        }
        let entries = std::fs::read_dir(&root).expect("the packages").flatten();
        for package in
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "deb"))
        {
            run(Command::new("dpkg").arg("-x").arg(&package).arg(&root))?;
        }
        std::fs::write(complete, "").expect("a file");
        Some(root)
    })
    .as_deref()
}

/// Runs a program quietly; `None` if it is not there, fails, or takes too long.
fn run(command: &mut Command) -> Option<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let end = std::time::Instant::now() + FETCHING;
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return status.success().then_some(());
        }
        if std::time::Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the distribution's shared libraries are.
pub(crate) fn library_path(ours: &Path, root: &Path) -> std::ffi::OsString {
    let folders = ["usr/lib", "lib"].map(|folder| root.join(folder).join(triplet()));
    let folders = std::iter::once(ours.to_owned()).chain(folders);
    std::env::join_paths(folders).expect("paths without colons")
}

fn triplet() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// The distribution's own library.
pub(crate) fn distributions_library(root: &Path) -> PathBuf {
    root.join("usr/lib").join(triplet()).join("libibverbs.so.1")
}
