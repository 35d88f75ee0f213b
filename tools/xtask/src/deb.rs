//! `xtask deb`: packages for Debian with the files of an installation below `/usr`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::binary::{self, Needs, Version};
use crate::build;
use crate::dist::{self, Options};
use crate::install;
use crate::layout::{self, Content, File, Package};
use crate::licences;

/// A package for Debian.
struct Deb {
    name: &'static str,
    /// The files that it contains.
    part: Package,
    section: &'static str,
    /// Other packages, in the form of a line of the control file.
    related: &'static str,
    summary: &'static str,
    text: &'static str,
}

const DEBS: [Deb; 3] = [
    Deb {
        name: "roce",
        part: Package::Command,
        section: "net",
        related: "Recommends: roce-run\nSuggests: roce-doc",
        summary: "software RoCE v2 network adapter and RDMA tools",
        text: "Sends and receives RDMA packets over UDP without RDMA hardware, a kernel\n module or root; measures, simulates \
               and inspects RoCE traffic.",
    },
    Deb {
        name: "roce-run",
        part: Package::Run,
        section: "libs",
        related: "Enhances: roce",
        summary: "libraries for \"roce run\": RDMA programs without RDMA hardware",
        text: "With these replacements of libibverbs and librdmacm, unmodified programs\n use the software adapter of the \
               package roce. They are in a private\n folder, so other programs are not affected.",
    },
    Deb {
        name: "roce-doc",
        part: Package::Doc,
        section: "doc",
        related: "Suggests: roce",
        summary: "software RoCE v2 network adapter - documentation",
        text: "Tutorials, how-to guides and reference of the package roce.",
    },
];

/// Builds, and writes the packages to `target/dist`. `maintainer` is a name with an address.
///
/// # Errors
///
/// The build fails, `dpkg-deb` is not installed, or a file cannot be written.
pub fn deb(options: &Options, maintainer: &str) -> anyhow::Result<Vec<PathBuf>> {
    ensure!(
        maintainer.contains('<'),
        "--maintainer must be a name with an address: \"Name <name@example.org>\""
    );
    let (place, build) = dist::compiled(options)?;
    let architecture = match build.target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        other => other.unwrap_or_default(),
    };
    let files = layout::files(&build)?;
    dist::check(&files, &build, options.glibc.as_ref())?;
    let time = dist::time_of_commit()?;
    let date =
        build::text(Command::new("date").args(["-u", "-R", "-d", &format!("@{time}")]).env("LC_ALL", "C"))?;
    let licences = without_apache(&licences::of_target(&build.target)?);
    let mut packages = Vec::new();
    for deb in &DEBS {
        let architecture = if deb.part == Package::Doc { "all" } else { architecture };
        let name = format!("{}_{}_{architecture}", deb.name, env!("CARGO_PKG_VERSION"));
        let folder = place.join(&name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let mut of_deb = deb.files(&files);
        of_deb.extend(deb.notices(maintainer, date.trim(), &licences)?);
        install::install(&of_deb, &folder.join("usr"))?;
        compress(&folder.join("usr"), &of_deb)?;
        deb.write_control(&folder, architecture, maintainer)?;
        let package = place.join(format!("{name}.deb"));
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(&folder).arg(&package);
        build::output(pack.env("SOURCE_DATE_EPOCH", &time))?;
        fs::remove_dir_all(&folder)?;
        packages.push(package);
    }
    Ok(packages)
}

impl Deb {
    /// Returns the files of the package, at the paths of Debian.
    fn files(&self, all: &[File]) -> Vec<File> {
        // Each package has one file with all licences.
        let is_licence = |file: &File| {
            let name = file.destination.file_name().unwrap_or_default().to_string_lossy();
            name.contains("LICENSE")
        };
        let own = all.iter().filter(|file| file.package == self.part && !is_licence(file));
        let zsh = Path::new("share/zsh/site-functions");
        let of_debian = |file: &File| match file.destination.strip_prefix(zsh) {
            Ok(name) => {
                File { destination: Path::new("share/zsh/vendor-completions").join(name), ..file.clone() }
            }
            Err(_) => file.clone(),
        };
        own.map(of_debian).collect()
    }

    /// Returns the licences and the list of changes, which each package has.
    fn notices(&self, maintainer: &str, date: &str, licences: &str) -> anyhow::Result<Vec<File>> {
        let mit = fs::read_to_string(build::root().join("LICENSE-MIT"))?;
        let copyright = format!(
            "roce is under the MIT licence or the Apache License 2.0, at your option. The text of the second one is\n\
             in /usr/share/common-licenses/Apache-2.0.\n\n{mit}\n{licences}"
        );
        let changes = format!(
            "{} ({}) unstable; urgency=medium\n\n  * CHANGELOG.md in the package roce-doc lists the changes.\n\n -- {maintainer}  {date}\n",
            self.name,
            env!("CARGO_PKG_VERSION")
        );
        let file = |name: &str, text: String| File {
            destination: Path::new("share/doc").join(self.name).join(name),
            content: Content::Bytes(text.into_bytes()),
            mode: 0o644,
            package: self.part,
        };
        Ok(vec![file("copyright", copyright), file("changelog", changes)])
    }

    /// Writes the description and the sums of the files below `usr`.
    fn write_control(&self, folder: &Path, architecture: &str, maintainer: &str) -> anyhow::Result<()> {
        let (mut sums, mut bytes, mut newest) = (Vec::new(), 0, None::<Version>);
        for (path, content) in layout::below(&folder.join("usr"), &[])? {
            let Content::Copy(file) = content else { continue };
            if file.is_symlink() {
                continue;
            }
            bytes += file.metadata()?.len();
            sums.push(Path::new("usr").join(&path));
            if is_binary(&path)
                && let Needs::Glibc(version) = binary::needs(&file)?
            {
                newest = newest.max(Some(version));
            }
        }
        let mut control = format!(
            "Package: {}\nVersion: {}\nArchitecture: {architecture}\nMaintainer: {maintainer}\nInstalled-Size: {}\n\
             Section: {}\nPriority: optional\n",
            self.name,
            env!("CARGO_PKG_VERSION"),
            bytes.div_ceil(1024),
            self.section
        );
        if let Some(version) = newest {
            let _ = writeln!(control, "Depends: libc6 (>= {version}), libgcc-s1");
        }
        let _ = write!(control, "{}\nDescription: {}\n {}\n", self.related, self.summary, self.text);
        let place = folder.join("DEBIAN");
        fs::create_dir(&place)?;
        fs::write(place.join("control"), control)?;
        let sums = build::output(Command::new("md5sum").args(&sums).current_dir(folder))?;
        fs::write(place.join("md5sums"), sums)?;
        Ok(())
    }
}

/// Returns whether a file is a program or a library that was built.
fn is_binary(path: &Path) -> bool {
    path.starts_with("bin") || path.to_string_lossy().contains(".so")
}

/// Replaces the terms of the Apache License 2.0, which each system has, by the path of their file. The lines
/// around them stay, because they may name holders of a copyright.
fn without_apache(text: &str) -> String {
    const END: &str = "END OF TERMS AND CONDITIONS";
    let mut parts = text.split("TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION");
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.split_once(END).map_or(part, |(_, rest)| rest);
        short.push_str("The terms are in /usr/share/common-licenses/Apache-2.0.");
        short.push_str(rest);
    }
    short
}

/// Removes symbols from programs and libraries, and compresses manual pages and changes, as Debian's policy
/// requires.
fn compress(usr: &Path, files: &[File]) -> anyhow::Result<()> {
    for File { destination, content, .. } in files {
        let path = usr.join(destination);
        if is_binary(destination) && !matches!(content, Content::Link(_)) {
            build::run(Command::new("strip").args(["--strip-unneeded", "-R", ".comment"]).arg(&path))?;
        }
        if destination.starts_with("share/man") || destination.ends_with("changelog") {
            build::run(Command::new("gzip").args(["-9", "-n"]).arg(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(package: Package, path: &str) -> File {
        File { package, destination: path.into(), content: Content::Bytes(b"x".to_vec()), mode: 0o644 }
    }

    #[test]
    fn each_file_is_in_one_package_at_the_path_of_debian() {
        let all = [
            file(Package::Command, "bin/roce"),
            file(Package::Command, "share/zsh/site-functions/_roce"),
            file(Package::Command, "share/roce/explore.html"),
            file(Package::Run, "lib/roce/env"),
            file(Package::Doc, "share/doc/roce/README.md"),
            file(Package::Doc, "share/doc/roce/LICENSE-MIT"),
        ];
        let paths = |deb: &Deb| -> Vec<String> {
            deb.files(&all).iter().map(|file| file.destination.display().to_string()).collect()
        };
        let expected = [
            vec!["bin/roce", "share/zsh/vendor-completions/_roce", "share/roce/explore.html"],
            vec!["lib/roce/env"],
            vec!["share/doc/roce/README.md"],
        ];
        assert_eq!(DEBS.each_ref().map(paths), expected);
        for entry in layout::LAYOUT {
            assert_eq!(DEBS.iter().filter(|deb| deb.part == entry.package).count(), 1, "{entry:?}");
        }
    }

    #[test]
    fn the_terms_of_the_apache_license_are_those_of_the_system() {
        let apache = fs::read_to_string(build::root().join("LICENSE-APACHE")).unwrap();
        let short = without_apache(&format!("first\n{apache}\nsecond\n{apache}\nlast"));
        assert_eq!(short.matches("/usr/share/common-licenses/Apache-2.0").count(), 2, "{short}");
        assert!(short.starts_with("first\n") && short.ends_with("\nlast") && short.contains("\nsecond\n"));
        assert!(short.len() < apache.len(), "{short}");
    }

    #[test]
    fn a_package_depends_on_the_glibc_of_its_programs() {
        let folder = tempfile::tempdir().unwrap();
        let usr = folder.path().join("usr");
        let copy = Content::Copy(std::env::current_exe().unwrap());
        let mut files = vec![File { content: copy, ..file(Package::Command, "bin/roce") }];
        files.extend(DEBS[0].notices("A <a@b>", "today", "licences of others").unwrap());
        install::install(&files, &usr).unwrap();
        compress(&usr, &files).unwrap();
        DEBS[0].write_control(folder.path(), "amd64", "A <a@b>").unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let control = read("DEBIAN/control");
        let begin = format!("Package: roce\nVersion: {}\nArchitecture: amd64\n", env!("CARGO_PKG_VERSION"));
        assert!(control.starts_with(&begin) && control.contains("\nDepends: libc6 (>= 2."), "{control}");
        let sums = read("DEBIAN/md5sums");
        for path in ["usr/bin/roce", "usr/share/doc/roce/copyright", "usr/share/doc/roce/changelog.gz"] {
            assert!(sums.contains(&format!("  {path}\n")), "{sums}");
        }
        assert!(read("usr/share/doc/roce/copyright").contains("licences of others"));
    }
}
