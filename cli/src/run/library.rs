//! The location of the libraries, and a folder in which a program finds them under the requested names.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::network::{installation, temporary};

/// The environment variable that names the folder of the libraries.
const VARIABLE: &str = "ROCE_LIBRARY_PATH";

/// A library: the name of its file, and the names under which programs load it.
struct Library {
    file: &'static str,
    names: &'static [&'static str],
}

/// The library that is loaded before the program, to redirect it to the files of its devices.
const LOADED_BEFORE: &str = "libroce_sysfs.so";

/// The libraries of verbs, by the names that programs require.
const OF_VERBS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

const LIBRARIES: [Library; 3] = [
    Library { file: "libibverbs.so", names: &["libibverbs.so.1", "libibverbs.so"] },
    Library { file: "librdmacm.so", names: &["librdmacm.so.1", "librdmacm.so"] },
    Library { file: LOADED_BEFORE, names: &[LOADED_BEFORE] },
];

impl Library {
    /// Returns the common prefix of the names.
    fn stem(&self) -> &'static str {
        self.file.strip_suffix(".so").unwrap_or(self.file)
    }
}

/// Checks the name under which a program brings its own library.
pub(super) fn alias(name: &str) -> Result<String, String> {
    let is_plain = !name.contains(|character: char| "/: ".contains(character) || character.is_control());
    let is_known =
        LIBRARIES.iter().any(|library| library.file != LOADED_BEFORE && name.starts_with(library.stem()));
    if is_plain && is_known {
        Ok(name.to_owned())
    } else {
        Err("expected the name of a file, without its folder, that begins with libibverbs or librdmacm"
            .to_owned())
    }
}

/// A folder with links to the libraries, which is removed on drop.
pub(super) struct Folder {
    folder: tempfile::TempDir,
    aliases: Vec<String>,
}

impl Folder {
    pub(super) fn new(aliases: &[String]) -> anyhow::Result<Self> {
        let folder = temporary::create(|place| tempfile::Builder::new().prefix("roce-").tempdir_in(place))
            .context("cannot create a folder for the libraries; set TMPDIR to a folder that is yours")?;
        let places = places()?;
        for library in &LIBRARIES {
            let found = places.find(library)?;
            for name in library.names {
                symlink(&found, folder.path().join(name)).context("cannot create a link to the library")?;
            }
            for alias in aliases.iter().filter(|alias| alias.starts_with(library.stem())) {
                symlink(&found, folder.path().join(alias))
                    .with_context(|| format!("cannot create a link {alias} to the library"))?;
            }
        }
        Ok(Self { folder, aliases: aliases.to_vec() })
    }

    /// Returns the folder for the files of the devices.
    pub(super) fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    /// Returns the libraries that are loaded before the program: ours, also under the names of the program's
    /// own libraries, and then those in `others`. The loader searches the library path for a name without a
    /// folder. It uses a loaded library for all programs and libraries that need its name. That includes
    /// those with their own path (`DT_RPATH`, which comes before `LD_LIBRARY_PATH`).
    pub(super) fn preload(&self, others: Option<OsString>) -> OsString {
        let mut all = self.folder.path().join(LOADED_BEFORE).into_os_string();
        for name in OF_VERBS {
            all.push(":");
            all.push(self.folder.path().join(name));
        }
        for alias in &self.aliases {
            all.push(":");
            all.push(alias);
        }
        if let Some(others) = others.filter(|others| !others.is_empty()) {
            all.push(":");
            all.push(others);
        }
        all
    }

    /// Returns a library path with this folder first.
    pub(super) fn before(&self, path: Option<OsString>) -> anyhow::Result<OsString> {
        let others = path.filter(|path| !path.is_empty());
        let own = std::iter::once(self.folder.path().to_owned());
        let all: Vec<PathBuf> =
            own.chain(others.iter().flat_map(|path| std::env::split_paths(path))).collect();
        std::env::join_paths(all)
            .context("the name of the folder for temporary files contains a colon; set TMPDIR to another one")
    }
}

/// The folders in which the libraries may be.
struct Places {
    /// Best first.
    folders: Vec<PathBuf>,
    /// The remedy if a library is missing in all of them.
    remedy: String,
}

/// Returns the folders to search.
fn places() -> anyhow::Result<Places> {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        let remedy = format!("{VARIABLE} must name the folder with all three libraries: unset {VARIABLE}");
        return Ok(Places { folders: vec![folder.into()], remedy });
    }
    Ok(Places::beside(&installation::own_folder()?))
}

impl Places {
    /// Returns the places for a command in this folder.
    fn beside(folder: &Path) -> Self {
        // The folder of dependencies of cargo, which cargo also updates when it builds only the command; the
        // folder of the command; the folder in which packages put private libraries.
        let folders = ["deps", "", "../lib/roce"].map(|place| folder.join(place)).to_vec();
        let command = if installation::is_built(folder) {
            let profile = folder.file_name().map_or_else(Default::default, OsStr::to_string_lossy);
            let option = match &*profile {
                "debug" => String::new(),
                "release" => " --release".to_owned(),
                own => format!(" --profile {}", installation::quoted(own)),
            };
            format!("cargo build{option}")
        } else {
            installation::install_command(folder)
        };
        Self { folders, remedy: format!("run in the sources of roce: {command}") }
    }

    /// Returns the path of a library.
    fn find(&self, library: &Library) -> anyhow::Result<PathBuf> {
        let of_folder = |folder: &PathBuf| [library.names[0], library.file].map(|name| folder.join(name));
        let found = self.folders.iter().flat_map(of_folder).find(|file| file.is_file());
        if let Some(file) = found {
            return std::path::absolute(&file).with_context(|| file.display().to_string());
        }
        let folders: Vec<_> =
            self.folders.iter().map(|folder| OsStr::to_string_lossy(folder.as_os_str())).collect();
        bail!("{} is missing in {}; {}", library.file, folders.join(", "), self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_under_both_names_and_linked_under_those_of_programs() {
        let place = tempfile::tempdir().unwrap();
        let places = Places { folders: vec![place.path().to_owned()], remedy: "do this".to_owned() };
        let error = places.find(&LIBRARIES[0]).unwrap_err().to_string();
        assert_eq!(error, format!("libibverbs.so is missing in {}; do this", place.path().display()));
        std::fs::write(place.path().join("libibverbs.so"), "").unwrap();
        let found = places.find(&LIBRARIES[0]).unwrap();
        assert!(found.is_absolute() && found.ends_with("libibverbs.so"), "{found:?}");
        std::fs::write(place.path().join("libibverbs.so.1"), "").unwrap();
        assert!(places.find(&LIBRARIES[0]).unwrap().ends_with("libibverbs.so.1"));
    }

    #[test]
    fn the_missing_command_depends_on_the_folder_of_this_command() {
        let root = tempfile::tempdir().unwrap();
        let remedy = |folder: &str| Places::beside(&root.path().join(folder)).remedy;
        let of = |prefix: &str| {
            format!("run in the sources of roce: cargo run -p xtask -- install --prefix {prefix}")
        };
        let prefix = root.path().display();
        assert_eq!(remedy(".cargo/bin"), of(&format!("{prefix}/.cargo")));
        assert_eq!(remedy("downloads"), of("~/.local"));
        for (folder, option) in [("release", " --release"), ("debug", ""), ("fast", " --profile fast")] {
            std::fs::create_dir_all(root.path().join(folder).join("deps")).unwrap();
            assert_eq!(remedy(folder), format!("run in the sources of roce: cargo build{option}"));
        }
    }

    #[test]
    fn the_folder_comes_before_the_path_of_the_user() {
        let folder =
            Folder { folder: tempfile::tempdir().unwrap(), aliases: vec!["libibverbs-1.so.1".to_owned()] };
        let own = folder.folder.path().to_str().unwrap();
        assert_eq!(folder.before(None).unwrap(), own);
        assert_eq!(folder.before(Some("".into())).unwrap(), own);
        assert_eq!(folder.before(Some("/a:/b".into())).unwrap().to_str().unwrap(), format!("{own}:/a:/b"));
        let before =
            format!("{own}/{LOADED_BEFORE}:{own}/libibverbs.so.1:{own}/librdmacm.so.1:libibverbs-1.so.1");
        assert_eq!(folder.preload(None).to_str().unwrap(), before);
        assert_eq!(folder.preload(Some("/c.so".into())).to_str().unwrap(), format!("{before}:/c.so"));
    }

    #[test]
    fn an_alias_is_the_name_of_one_of_the_two_libraries() {
        for good in ["libibverbs-1de1263b.so.1.14.48.0", "librdmacm.so.1.3"] {
            assert_eq!(alias(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "libroce_sysfs.so",
            "libc.so.6",
            "/usr/lib/libibverbs.so.1",
            "libibverbs.so.1:x",
            "libibverbs 1",
        ] {
            assert!(alias(bad).is_err(), "{bad}");
        }
    }
}
