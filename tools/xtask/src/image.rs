//! `xtask image`: the files of a container image, from which an engine builds it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::binary::{self, Needs};
use crate::build;
use crate::dist::{self, Options};
use crate::install;
use crate::layout::{self, Content, File, Package};

/// The instructions for the engine, which copy the folder `root` beside them.
const DOCKERFILE: &str = "docs/how-to/containers/Dockerfile";
/// The user of the image, for programs that look for its name or its home folder.
const PASSWD: &str = "roce:x:65534:65534:roce:/work:/usr/bin/roce\n";
/// Names are looked up in `/etc/hosts` first, which engines write, and then in DNS.
const NSSWITCH: &str = "hosts: files dns\n";

/// Builds, and writes `target/dist/image` with a Dockerfile and the folder `root`. Returns its path, and a
/// line for each program and library.
///
/// # Errors
///
/// The build fails, a program or library needs a newer glibc than permitted or a library that this machine
/// does not have, or a file cannot be written.
pub fn image(options: &Options) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let (place, build) = dist::compiled(options)?;
    let files = layout::files(&build)?;
    let lines = dist::check(&files, &build, options.glibc.as_ref())?;
    let folder = place.join("image");
    // An earlier image may have had other files.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    write_root(&files, &folder.join("root"))?;
    fs::copy(build::root().join(DOCKERFILE), folder.join("Dockerfile")).context(DOCKERFILE)?;
    Ok((folder, lines))
}

/// Writes the root folder of the image: the command, the page of `roce explore` and the libraries of
/// `roce run`, the libraries of this machine that they load, licences, and the files that resolving names
/// needs. It has no shell.
///
/// # Errors
///
/// A library is missing, `ldd` is not installed, or a file cannot be written.
pub fn write_root(files: &[File], root: &Path) -> anyhow::Result<()> {
    let mut chosen: Vec<File> = files.iter().filter(|file| is_in_image(file)).cloned().collect();
    for file in &mut chosen {
        file.destination = Path::new("usr").join(&file.destination);
    }
    for (path, text) in [("etc/passwd", PASSWD), ("etc/nsswitch.conf", NSSWITCH)] {
        let content = Content::Bytes(text.as_bytes().to_vec());
        chosen.push(File { package: Package::Command, destination: path.into(), content, mode: 0o644 });
    }
    install::install(&chosen, root)?;
    // `roce demo` writes its capture into the working folder. Engines mount something at the last two, also
    // if the root folder is read-only.
    for (name, mode) in [("work", 0o1777), ("tmp", 0o1777), ("dev", 0o755), ("proc", 0o755)] {
        let path = root.join(name);
        let result =
            fs::create_dir(&path).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        result.with_context(|| path.display().to_string())?;
    }
    for file in chosen.iter().filter(|file| matches!(&file.content, Content::Copy(path) if is_elf(path))) {
        copy_libraries(&root.join(&file.destination), root)?;
    }
    Ok(())
}

/// Returns whether the image contains a file of an installation. It has no documentation and no completions.
fn is_in_image(file: &File) -> bool {
    let name = file.destination.file_name().unwrap_or_default().to_string_lossy();
    let is_of_command = ["bin", "share/roce"].iter().any(|folder| file.destination.starts_with(folder));
    file.package == Package::Run || is_of_command || name.contains("LICENSE")
}

fn is_elf(path: &Path) -> bool {
    let mut head = [0; 4];
    fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut head)).is_ok()
        && head == *b"\x7fELF"
}

/// Copies the loader and the libraries of this machine that a program or library loads, to the paths where it
/// looks for them.
fn copy_libraries(file: &Path, root: &Path) -> anyhow::Result<()> {
    if binary::needs(file)? == Needs::Nothing {
        return Ok(());
    }
    // The libraries of `roce run` need each other, and must not be found elsewhere on this machine.
    let own = root.join("usr/lib/roce");
    let printed = build::text(Command::new("ldd").arg(file).env("LD_LIBRARY_PATH", &own).env("LC_ALL", "C"))?;
    for library in libraries(&printed).with_context(|| file.display().to_string())? {
        let Ok(inside) = library.strip_prefix("/") else { continue };
        let copy = root.join(inside);
        if library.starts_with(root) || copy.exists() {
            continue;
        }
        // Follows links: the name is that of the link, the content that of its target.
        let content = Content::Copy(library.canonicalize().with_context(|| library.display().to_string())?);
        let file = File { package: Package::Command, destination: inside.to_owned(), content, mode: 0o755 };
        install::install(&[file], root)?;
    }
    Ok(())
}

/// Returns the paths that `ldd` printed.
fn libraries(printed: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in printed.lines().map(str::trim) {
        ensure!(!line.ends_with("=> not found"), "{line}");
        // "name => path (address)", or "path (address)" for the loader.
        let target = line.split_once("=> ").map_or(line, |(_, target)| target);
        let path = target.split_once(" (").map_or(target, |(path, _)| path);
        if path.starts_with('/') {
            found.push(path.into());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_libraries_are_read_and_a_missing_one_is_an_error() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/a b/libc.so.6 (0x00007f2c)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f2d)\n";
        let paths = ["/lib/a b/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(printed).unwrap(), paths);
        let missing = format!("{printed}\tlibibverbs.so.1 => not found\n");
        assert_eq!(libraries(&missing).unwrap_err().to_string(), "libibverbs.so.1 => not found");
    }

    /// The command of this image is this test program.
    #[test]
    fn an_image_has_the_command_its_page_libraries_and_licences_without_documentation() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let file =
            |package, path: &str, content| File { package, destination: path.into(), content, mode: 0o755 };
        let own = || Content::Copy(std::env::current_exe().unwrap());
        let text = || Content::Bytes(b"text".to_vec());
        let files = [
            file(Package::Command, "bin/roce", own()),
            file(Package::Run, "lib/roce/env", text()),
            file(Package::Command, "share/roce/explore.html", text()),
            file(Package::Command, "share/man/man1/roce.1", text()),
            file(Package::Doc, "share/doc/roce/README.md", text()),
            file(Package::Doc, "share/doc/roce/LICENSE-MIT", text()),
        ];
        write_root(&files, &root).unwrap();
        let has = |path: &str| root.join(path).exists();
        assert!(has("usr/bin/roce") && has("usr/lib/roce/env") && has("usr/share/doc/roce/LICENSE-MIT"));
        assert!(has("usr/share/roce/explore.html"));
        assert!(!has("usr/share/man") && !has("usr/share/doc/roce/README.md"));
        let mode = |path: &str| root.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(""), mode("work"), mode("etc/passwd")), (0o755, 0o1777, 0o644));
        // The loader and the C library of this machine, wherever they are.
        let paths: Vec<PathBuf> =
            layout::below(&root, &[]).unwrap().into_iter().map(|(path, _)| path).collect();
        let named = |name: &str| paths.iter().any(|path| path.to_string_lossy().contains(name));
        assert!(named("libc.so.6") && named("ld-linux"), "{paths:?}");
    }
}
