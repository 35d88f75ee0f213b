//! Where the libraries are, and a folder in which a program finds them under the names that it asks for.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The environment variable that names the folder of the libraries.
const VARIABLE: &str = "ROCE_LIBRARY_PATH";

/// A library: the name of its file, and the names under which programs load it.
struct Library {
    file: &'static str,
    names: &'static [&'static str],
}

/// What is loaded before the program, to show it the files of its devices.
const LOADED_BEFORE: &str = "libroce_sysfs.so";

const LIBRARIES: [Library; 3] = [
    Library { file: "libibverbs.so", names: &["libibverbs.so.1", "libibverbs.so"] },
    Library { file: "librdmacm.so", names: &["librdmacm.so.1", "librdmacm.so"] },
    Library { file: LOADED_BEFORE, names: &[LOADED_BEFORE] },
];

/// A folder with links to the libraries, which is removed when this is dropped.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub(super) fn new() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("roce-")
            .tempdir()
            .context("cannot create a folder for the libraries")?;
        let places = places()?;
        for library in &LIBRARIES {
            let found = find(library, &places)?;
            for name in library.names {
                symlink(&found, folder.path().join(name)).context("cannot create a link to the library")?;
            }
        }
        Ok(Self(folder))
    }

    /// Where the files of the devices are to be.
    pub(super) fn files(&self) -> PathBuf {
        self.0.path().join("files")
    }

    /// What is loaded before the program: our library, and then what was to be loaded anyway.
    pub(super) fn preload(&self, others: Option<OsString>) -> OsString {
        let mut all = self.0.path().join(LOADED_BEFORE).into_os_string();
        if let Some(others) = others.filter(|others| !others.is_empty()) {
            all.push(":");
            all.push(others);
        }
        all
    }

    /// A library path with this folder first.
    pub(super) fn before(&self, path: Option<OsString>) -> anyhow::Result<OsString> {
        let others = path.filter(|path| !path.is_empty());
        let own = std::iter::once(self.0.path().to_owned());
        let all: Vec<PathBuf> =
            own.chain(others.iter().flat_map(|path| std::env::split_paths(path))).collect();
        std::env::join_paths(all)
            .context("the name of the folder for temporary files contains a colon; set TMPDIR to another one")
    }
}

/// The folders to look into, best first.
fn places() -> anyhow::Result<Vec<PathBuf>> {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Ok(vec![folder.into()]);
    }
    let own = std::env::current_exe().context("cannot find out where this command is")?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    // Where cargo puts what the command depends on, which it renews also when it builds the command alone; beside the command; where
    // packages put libraries of their own.
    Ok(["deps", "", "../lib/roce"].map(|folder| beside.join(folder)).to_vec())
}

fn find(library: &Library, places: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let files = places.iter().flat_map(|place| [library.names[0], library.file].map(|name| place.join(name)));
    let found: Option<PathBuf> = files.into_iter().find(|file| file.is_file());
    match found {
        Some(file) => std::path::absolute(&file).with_context(|| file.display().to_string()),
        None => bail!(
            "{} is missing; looked in {}. Build it with `cargo build --release`, or name its folder with {VARIABLE}",
            library.file,
            places
                .iter()
                .map(|place| OsStr::to_string_lossy(place.as_os_str()))
                .collect::<Vec<_>>()
                .join(", "),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_under_both_names_and_linked_under_those_of_programs() {
        let place = tempfile::tempdir().unwrap();
        let error = find(&LIBRARIES[0], &[place.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("libibverbs.so is missing") && error.contains("cargo build"), "{error}");
        std::fs::write(place.path().join("libibverbs.so"), "").unwrap();
        let found = find(&LIBRARIES[0], &[place.path().to_owned()]).unwrap();
        assert!(found.is_absolute() && found.ends_with("libibverbs.so"), "{found:?}");
        std::fs::write(place.path().join("libibverbs.so.1"), "").unwrap();
        assert!(find(&LIBRARIES[0], &[place.path().to_owned()]).unwrap().ends_with("libibverbs.so.1"));
    }

    #[test]
    fn the_folder_comes_before_the_path_of_the_user() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let own = folder.0.path().to_str().unwrap();
        assert_eq!(folder.before(None).unwrap(), own);
        assert_eq!(folder.before(Some("".into())).unwrap(), own);
        assert_eq!(folder.before(Some("/a:/b".into())).unwrap().to_str().unwrap(), format!("{own}:/a:/b"));
    }
}
