//! `xtask install`: copies the files of an installation.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::build::{self, Build};
use crate::layout::{self, Content, File};

/// Builds with a profile of cargo. Returns the folder with the results.
///
/// # Errors
///
/// The build fails.
pub fn build(profile: &str) -> anyhow::Result<PathBuf> {
    build::run(build::cargo().args([
        "build",
        "--locked",
        "--profile",
        profile,
        "--features",
        build::FEATURES,
    ]))?;
    let metadata = build::metadata(&build::host()?)?;
    let results = metadata["target_directory"].as_str().context("cargo metadata has no target_directory")?;
    // The folder of a profile that cargo has itself is not always its name.
    let name = match profile {
        "dev" | "test" => "debug",
        "bench" => "release",
        own => own,
    };
    Ok(Path::new(results).join(name))
}

/// Installs the results of a build below a folder. Returns the number of files.
///
/// # Errors
///
/// A result is missing, or a file cannot be written.
pub fn install_built(results: &Path, folder: &Path) -> anyhow::Result<usize> {
    let files = layout::files(&Build { folder: results.to_owned(), target: build::host()? })?;
    install(&files, folder)?;
    Ok(files.len())
}

/// Returns the folder of an installation below a prefix. `destdir` is put before the prefix, for packages.
///
/// # Errors
///
/// The prefix begins with `~`, which only a shell expands.
pub fn destination(prefix: &Path, destdir: &Path) -> anyhow::Result<PathBuf> {
    // A shell expands it only at the beginning of a word, so not in --prefix=~/.local.
    ensure!(!prefix.starts_with("~"), "the shell did not expand ~; write --prefix ~/.local with a space");
    let prefix = std::path::absolute(prefix).context("--prefix")?;
    if destdir.as_os_str().is_empty() {
        return Ok(prefix);
    }
    let destdir = std::path::absolute(destdir).context("--destdir")?;
    Ok(destdir.join(prefix.strip_prefix("/").unwrap_or(&prefix)))
}

/// Installs files below a folder. Running programs keep the files that they have open, because each file is
/// written under another name and then renamed.
///
/// # Errors
///
/// A file cannot be read or written.
pub fn install(files: &[File], folder: &Path) -> anyhow::Result<()> {
    for file in files {
        let path = folder.join(&file.destination);
        install_one(file, &path).with_context(|| format!("cannot install {}", path.display()))?;
    }
    Ok(())
}

fn install_one(file: &File, path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("not the path of a file"));
    };
    make_folder(parent)?;
    let new = parent.join(format!(".{}.new", name.to_string_lossy()));
    // From an installation that did not end.
    if new.symlink_metadata().is_ok() {
        fs::remove_file(&new)?;
    }
    match &file.content {
        Content::Link(target) => symlink(target, &new)?,
        Content::Bytes(bytes) => fs::write(&new, bytes)?,
        Content::Copy(from) => _ = fs::copy(from, &new)?,
    }
    if !matches!(file.content, Content::Link(_)) {
        fs::set_permissions(&new, fs::Permissions::from_mode(file.mode))?;
    }
    fs::rename(&new, path)
}

/// Creates a folder and those above it, readable for all users whatever the umask is.
fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    match fs::create_dir(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_built_in_a_folder_before_the_prefix() {
        let folder = |prefix: &str, destdir: &str| destination(Path::new(prefix), Path::new(destdir));
        assert_eq!(folder("/usr", "").unwrap(), Path::new("/usr"));
        assert_eq!(folder("/usr", "/tmp/package").unwrap(), Path::new("/tmp/package/usr"));
        assert!(folder("here", "").unwrap().is_absolute());
        assert!(folder("~/.local", "").unwrap_err().to_string().contains("with a space"));
    }

    #[test]
    fn files_links_and_modes_are_installed_over_earlier_ones() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/b");
        let package = layout::Package::Run;
        let file = |content, mode| File { package, destination: "lib/file".into(), content, mode };
        install(&[file(Content::Bytes(b"old".to_vec()), 0o644)], &place).unwrap();
        // A program that has the old file open keeps it.
        let mut open = fs::File::open(place.join("lib/file")).unwrap();
        fs::write(place.join("lib/.file.new"), "from an installation that did not end").unwrap();
        install(&[file(Content::Bytes(b"new".to_vec()), 0o755)], &place).unwrap();
        assert_eq!(fs::read(place.join("lib/file")).unwrap(), b"new");
        assert_eq!(io::read_to_string(&mut open).unwrap(), "old");
        let mode = |path: &str| place.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("lib/file"), mode("lib"), mode("")), (0o755, 0o755, 0o755));
        install(&[file(Content::Link("other"), 0o777)], &place).unwrap();
        assert_eq!(fs::read_link(place.join("lib/file")).unwrap(), Path::new("other"));
        assert_eq!(fs::read_dir(place.join("lib")).unwrap().count(), 1);
    }
}
