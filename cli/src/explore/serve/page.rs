//! The file of the page.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::body::Bytes;

use crate::network::installation;

/// The page in an installation, below its prefix: the folder above that of the command.
const INSTALLED: &str = "share/roce/explore.html";
/// The page that `tools/web/build` writes, from the folder above that of a command that cargo built: of one
/// for this machine, and of one with `--target`.
const BUILT: [&str; 2] = ["web/roce.html", "../web/roce.html"];

/// Reads the page: the given file, or else the installed or built one.
pub(super) fn load(given: Option<&Path>) -> anyhow::Result<Bytes> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => find(&installation::own_folder()?)?,
    };
    let page = std::fs::read(&path).with_context(|| format!("cannot read the page {}", path.display()))?;
    Ok(page.into())
}

/// Returns the path of the page for a command in this folder.
fn find(folder: &Path) -> anyhow::Result<PathBuf> {
    let prefix = folder.parent().unwrap_or(folder);
    let mut places = std::iter::once(INSTALLED).chain(BUILT).map(|place| prefix.join(place));
    if let Some(path) = places.find(|path| path.is_file()) {
        return Ok(path);
    }
    let then = if installation::is_built(folder) {
        "roce explore --page target/web/roce.html".to_owned()
    } else {
        installation::install_command(folder)
    };
    bail!(
        "there is no page {}; run in the sources of roce: tools/web/build && {then}",
        prefix.join(INSTALLED).display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_page_comes_before_a_built_one() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("target/debug");
        std::fs::create_dir_all(&folder).unwrap();
        let built = root.path().join("target/web");
        std::fs::create_dir(&built).unwrap();
        std::fs::write(built.join("roce.html"), "built").unwrap();
        assert_eq!(std::fs::read(find(&folder).unwrap()).unwrap(), b"built");
        let for_target = root.path().join("target/x86_64-unknown-linux-gnu/release");
        std::fs::create_dir_all(&for_target).unwrap();
        assert_eq!(std::fs::read(find(&for_target).unwrap()).unwrap(), b"built");
        let share = root.path().join("target/share/roce");
        std::fs::create_dir_all(&share).unwrap();
        std::fs::write(share.join("explore.html"), "installed").unwrap();
        assert_eq!(std::fs::read(find(&folder).unwrap()).unwrap(), b"installed");
        // A given file counts alone.
        assert!(load(Some(&root.path().join("gone.html"))).is_err());
        assert_eq!(load(Some(&built.join("roce.html"))).unwrap().as_ref(), b"built");
    }

    #[test]
    fn a_missing_page_is_an_error_with_the_commands_that_make_it() {
        let root = tempfile::tempdir().unwrap();
        let error = |folder: &str| find(&root.path().join(folder)).unwrap_err().to_string();
        let prefix = root.path().display();
        let expected = format!(
            "there is no page {prefix}/share/roce/explore.html; run in the sources of roce: tools/web/build && \
             cargo run -p xtask -- install --prefix {prefix}"
        );
        assert_eq!(error("bin"), expected);
        std::fs::create_dir_all(root.path().join("target/release/deps")).unwrap();
        let built = error("target/release");
        assert!(built.ends_with("tools/web/build && roce explore --page target/web/roce.html"), "{built}");
    }
}
