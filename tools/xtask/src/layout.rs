//! The files of an installation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::build::{self, Build};
use crate::licences;

/// Where the content of a file comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// File that cargo builds.
    Built(&'static str),
    /// File of the repository.
    Repository(&'static str),
    /// File below the root of the repository that a command there makes: its path, and the command. It is
    /// left out if it does not exist, because the command needs what not every machine has.
    Made(&'static str, &'static str),
    /// All files below a folder of the repository, except those with these paths in it.
    Folder(&'static str, &'static [&'static str]),
    /// What the command prints with these arguments.
    Printed(&'static [&'static str]),
    /// The manual pages, which the command writes into a folder.
    ManualPages,
    /// The licences of all crates whose code is in the command, the libraries or the page.
    Licences,
    /// Symbolic link to a file in the same folder.
    Link(&'static str),
}

use Source::{Built, Folder, Licences, Link, Made, ManualPages, Printed, Repository};

/// The package of a distribution that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// The command, the page of `roce explore`, manual pages and completions.
    Command,
    /// The libraries. A static build does not have them.
    Run,
    /// Pages and licences.
    Doc,
}

/// A row of [`LAYOUT`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The package of a distribution.
    pub package: Package,
    /// Where the content comes from.
    pub source: Source,
    /// Path below the prefix: of the file, or of the folder for a source with several files.
    pub destination: &'static str,
    /// Permissions of the file, or of each file.
    pub mode: u32,
}

const fn of(package: Package, source: Source, destination: &'static str, mode: u32) -> Entry {
    Entry { package, source, destination, mode }
}

/// All files of an installation. `roce run` looks for the libraries in `../lib/roce` beside the folder of the
/// command, and `roce explore` for the page in `../share/roce`.
pub const LAYOUT: &[Entry] = &[
    of(Package::Command, Built("roce"), "bin/roce", 0o755),
    of(Package::Run, Built("libibverbs.so"), "lib/roce/libibverbs.so.1", 0o644),
    of(Package::Run, Link("libibverbs.so.1"), "lib/roce/libibverbs.so", 0o777),
    of(Package::Run, Built("librdmacm.so"), "lib/roce/librdmacm.so.1", 0o644),
    of(Package::Run, Link("librdmacm.so.1"), "lib/roce/librdmacm.so", 0o777),
    of(Package::Run, Built("libroce_sysfs.so"), "lib/roce/libroce_sysfs.so", 0o644),
    of(Package::Run, Repository("tools/xtask/env"), "lib/roce/env", 0o755),
    of(Package::Run, Repository("tools/xtask/alternatives"), "lib/roce/alternatives", 0o755),
    of(Package::Command, Printed(&["completions", "bash"]), "share/bash-completion/completions/roce", 0o644),
    of(Package::Command, Printed(&["completions", "zsh"]), "share/zsh/site-functions/_roce", 0o644),
    of(
        Package::Command,
        Printed(&["completions", "fish"]),
        "share/fish/vendor_completions.d/roce.fish",
        0o644,
    ),
    of(Package::Command, ManualPages, "share/man/man1", 0o644),
    of(Package::Command, Made("target/web/roce.html", "tools/web/build"), "share/roce/explore.html", 0o644),
    of(Package::Doc, Folder("docs", &["book.toml", "build", "site.css"]), "share/doc/roce/docs", 0o644),
    of(Package::Doc, Repository("README.md"), "share/doc/roce/README.md", 0o644),
    of(Package::Doc, Repository("CHANGELOG.md"), "share/doc/roce/CHANGELOG.md", 0o644),
    of(Package::Doc, Repository("SECURITY.md"), "share/doc/roce/SECURITY.md", 0o644),
    of(Package::Doc, Repository("LICENSE-APACHE"), "share/doc/roce/LICENSE-APACHE", 0o644),
    of(Package::Doc, Repository("LICENSE-MIT"), "share/doc/roce/LICENSE-MIT", 0o644),
    of(Package::Doc, Licences, "share/doc/roce/THIRD-PARTY-LICENSES", 0o644),
];

/// A file to install.
#[derive(Clone, Debug)]
pub struct File {
    /// The package of a distribution.
    pub package: Package,
    /// Path below the prefix.
    pub destination: PathBuf,
    /// What it contains.
    pub content: Content,
    /// Permissions. Those of a link have no effect.
    pub mode: u32,
}

/// The content of a [`File`].
#[derive(Clone, Debug)]
pub enum Content {
    /// That of another file.
    Copy(PathBuf),
    /// These bytes.
    Bytes(Vec<u8>),
    /// A symbolic link with this target.
    Link(&'static str),
}

/// Returns the files of an installation of a build, in the order of [`LAYOUT`], without those that
/// [`left_out`] names. Runs the command for what it prints.
///
/// # Errors
///
/// A result of the build or a licence is missing, or the command does not run on this machine.
pub fn files(build: &Build) -> anyhow::Result<Vec<File>> {
    let entries = LAYOUT.iter().filter(|entry| build.has_libraries() || entry.package != Package::Run);
    let mut files = Vec::new();
    for entry in entries {
        let found = expand(entry, build, build::root()).with_context(|| entry.destination)?;
        let file = |(path, content): (PathBuf, Content)| {
            let below = Path::new(entry.destination);
            let destination = if path.as_os_str().is_empty() { below.to_owned() } else { below.join(path) };
            File { package: entry.package, destination, content, mode: entry.mode }
        };
        files.extend(found.into_iter().map(file));
    }
    Ok(files)
}

/// Returns a sentence for each file that an installation from the sources in `root` does not have, because it
/// was not made. The sentence names the command that makes it.
#[must_use]
pub fn left_out(root: &Path) -> Vec<String> {
    let sentence = |entry: &Entry| match entry.source {
        Made(path, command) if !root.join(path).is_file() => Some(format!(
            "without {}: {path} does not exist; {command} makes it, and then this command includes it",
            entry.destination
        )),
        _ => None,
    };
    LAYOUT.iter().filter_map(sentence).collect()
}

/// Returns the files of an entry, with their paths below its destination. The path of a single file is empty.
/// `root` is the folder of the sources.
fn expand(entry: &Entry, build: &Build, root: &Path) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let content = match entry.source {
        Built(name) => Content::Copy(build.find(name)?),
        Repository(path) => Content::Copy(root.join(path)),
        Made(path, _) if !root.join(path).is_file() => return Ok(Vec::new()),
        Made(path, _) => Content::Copy(root.join(path)),
        Printed(arguments) => Content::Bytes(build.printed(arguments)?),
        Licences => Content::Bytes(licences::of_target(&build.target)?.into_bytes()),
        Link(target) => Content::Link(target),
        Folder(path, except) => return below(&root.join(path), except),
        ManualPages => return manual_pages(build),
    };
    Ok(vec![(PathBuf::new(), content)])
}

/// Returns all files below a folder, sorted, with their paths in it.
pub(crate) fn below(folder: &Path, except: &[&str]) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("cannot read {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let inside = path.strip_prefix(folder)?.to_owned();
            if !except.iter().any(|name| inside == Path::new(name)) {
                found.push((inside, Content::Copy(path)));
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Returns the manual pages.
fn manual_pages(build: &Build) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_str().context("the name of the folder for temporary files is not UTF-8")?;
    build.printed(&["man", "--out", path])?;
    let mut pages = below(folder.path(), &[])?;
    for (_, content) in &mut pages {
        // The folder is removed at the end of this function.
        if let Content::Copy(path) = content {
            *content = Content::Bytes(fs::read(path)?);
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the entry of the page.
    fn page() -> &'static Entry {
        let entry = LAYOUT.iter().find(|entry| entry.destination == "share/roce/explore.html");
        entry.expect("the layout has the page")
    }

    #[test]
    fn a_page_that_was_made_is_installed_beside_the_command() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("target/web/roce.html");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "the page").unwrap();
        let build = Build { folder: root.path().to_owned(), target: "x86_64-unknown-linux-musl".to_owned() };
        let found = expand(page(), &build, root.path()).unwrap();
        let [(path, Content::Copy(from))] = &found[..] else { panic!("{found:?}") };
        assert_eq!((path.as_path(), from), (Path::new(""), &file));
        assert_eq!(left_out(root.path()), [""; 0]);
        // A static command serves it, too.
        assert_eq!(page().package, Package::Command);
    }

    #[test]
    fn a_page_that_was_not_made_is_left_out_with_the_command_that_makes_it() {
        let root = tempfile::tempdir().unwrap();
        let build = Build { folder: root.path().to_owned(), target: "x86_64-unknown-linux-gnu".to_owned() };
        assert!(expand(page(), &build, root.path()).unwrap().is_empty());
        let sentences = left_out(root.path());
        let [sentence] = &sentences[..] else { panic!("{sentences:?}") };
        assert!(sentence.starts_with("without share/roce/explore.html: target/web/roce.html"), "{sentence}");
        let Made(path, command) = page().source else { panic!("{:?}", page()) };
        assert!(sentence.contains(command), "{sentence}");
        // The command and what it makes are those of the sources.
        let script = fs::read_to_string(build::root().join(command)).unwrap();
        assert!(script.contains(path), "{script}");
    }
}
