//! `xtask dist`: an archive with the files of an installation. Order, times and owners of the files do not
//! depend on the machine.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::binary::{self, Needs, Version};
use crate::build::{self, Build};
use crate::install;
use crate::layout::{self, Content, File, Source};

/// What `xtask dist` builds.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Target triple; by default that of this machine.
    pub target: Option<String>,
    /// Folder with the C library to link with, instead of the one of this machine.
    pub sysroot: Option<PathBuf>,
    /// Newest version of glibc that a file may need.
    pub glibc: Option<Version>,
}

/// The folder of sources in names of source files, which panics and backtraces print. The folder on this
/// machine would make each build different.
const SOURCES: &str = "/usr/src/roce";
/// The folder of cargo in names of source files of other crates.
const CRATES: &str = "/usr/src/cargo";

/// Builds, and writes `target/dist/roce-VERSION-TARGET.tar.gz` and `SHA256SUMS`. Returns the path of the
/// archive, and a line for each program and library.
///
/// # Errors
///
/// The build fails, a program or library needs a newer glibc than permitted, or a file cannot be written.
pub fn dist(options: &Options) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let (place, build) = compiled(options)?;
    let files = layout::files(&build)?;
    let lines = check(&files, &build, options.glibc.as_ref())?;
    let name = format!("roce-{}-{}", env!("CARGO_PKG_VERSION"), build.target);
    // An earlier archive may have had other files.
    let folder = place.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    install::install(&files, &folder)?;
    let archive = pack(&place, &name, &time_of_commit()?)?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    write_sums(&place)?;
    Ok((archive, lines))
}

/// Builds, and returns `target/dist` and the build.
pub(crate) fn compiled(options: &Options) -> anyhow::Result<(PathBuf, Build)> {
    let target = options.target.clone().map_or_else(build::host, Ok)?;
    let metadata = build::metadata(&target)?;
    let results = metadata["target_directory"].as_str().context("cargo metadata has no target_directory")?;
    let place = Path::new(results).join("dist");
    let build = compile(options, &target, &place.join("build"))?;
    Ok((place, build))
}

/// Builds the command and the libraries.
fn compile(options: &Options, target: &str, folder: &Path) -> anyhow::Result<Build> {
    let build = Build { folder: folder.join(target).join(build::PROFILE), target: target.to_owned() };
    let mut cargo = build::cargo();
    cargo.args(["build", "--locked", "--profile", build::PROFILE, "--features", build::FEATURES]);
    cargo.args(["--target", target, "--target-dir"]).arg(folder);
    if build.has_libraries() {
        cargo.args(build::PACKAGES.iter().flat_map(|name| ["-p", name]));
    } else {
        cargo.args(["-p", "roce-cli", "--bin", "roce"]);
    }
    let flags = flags(options.sysroot.as_deref(), target)?;
    // With --target, they do not apply to build scripts, which run here.
    build::run(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join(OsStr::new("\x1f"))))?;
    Ok(build)
}

/// Returns the options of the compiler.
fn flags(sysroot: Option<&Path>, target: &str) -> anyhow::Result<Vec<OsString>> {
    let mut flags = Vec::new();
    let mut add = |begin: &str, path: &Path, end: &str| {
        let mut flag = OsString::from(begin);
        flag.push(path);
        flag.push(end);
        flags.push(flag);
    };
    if let Some(sysroot) = sysroot {
        let sysroot = sysroot.canonicalize().with_context(|| sysroot.display().to_string())?;
        // The compiler searches its own folders first unless -L names one.
        let library = target.replace("-unknown-", "-");
        add("-Clink-arg=--sysroot=", &sysroot, "");
        add("-Clink-arg=-L", &sysroot.join("usr/lib").join(library), "");
    }
    add("--remap-path-prefix=", build::root(), &format!("={SOURCES}"));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    if let Some(home) = home {
        add("--remap-path-prefix=", &home, &format!("={CRATES}"));
    }
    Ok(flags)
}

/// Returns a line about each program and library.
///
/// # Errors
///
/// One needs a newer glibc than permitted, or a static build needs a shared library.
pub(crate) fn check(files: &[File], build: &Build, limit: Option<&Version>) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in layout::LAYOUT.iter().filter(|entry| matches!(entry.source, Source::Built(_))) {
        let file = files.iter().find(|file| file.destination == Path::new(entry.destination));
        let Some(File { content: Content::Copy(path), .. }) = file else { continue };
        let name = entry.destination;
        let needs = binary::needs(path)?;
        let of = match &needs {
            Needs::Nothing => "static".to_owned(),
            Needs::Glibc(version) => format!("needs glibc {version}"),
        };
        match needs {
            Needs::Glibc(_) if !build.has_libraries() => bail!("{name} is not linked statically"),
            Needs::Glibc(version) if limit.is_some_and(|limit| version > *limit) => bail!("{name} {of}"),
            Needs::Glibc(_) | Needs::Nothing => {}
        }
        lines.push(format!("{name}: {} bytes, {of}", path.metadata()?.len()));
    }
    Ok(lines)
}

/// Returns the time of the files in the archive, in seconds since 1970: `SOURCE_DATE_EPOCH`, or the time of
/// the commit.
pub(crate) fn time_of_commit() -> anyhow::Result<String> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(time);
    }
    let mut git = Command::new("git");
    let time = build::text(git.args(["log", "-1", "--format=%ct"]).current_dir(build::root()));
    Ok(time.context("set SOURCE_DATE_EPOCH if these sources are not in a git repository")?.trim().to_owned())
}

/// Packs a folder into `NAME.tar.gz` beside it. Owner, time and order of the files do not depend on this
/// machine.
fn pack(place: &Path, name: &str, time: &str) -> anyhow::Result<PathBuf> {
    let archive = place.join(format!("{name}.tar"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--format=ustar", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{time}")).arg("-cf").arg(&archive).arg(name);
    build::run(tar.current_dir(place).env("LC_ALL", "C"))?;
    build::run(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&archive))?;
    Ok(place.join(format!("{name}.tar.gz")))
}

/// Writes the sums of all archives in a folder.
fn write_sums(place: &Path) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name();
        if name.to_string_lossy().ends_with(".tar.gz") {
            names.push(name);
        }
    }
    ensure!(!names.is_empty(), "{} has no archive", place.display());
    names.sort();
    let sums = build::output(Command::new("sha256sum").args(&names).current_dir(place))?;
    Ok(fs::write(place.join("SHA256SUMS"), sums)?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::layout::Package;

    /// Installs two files, with this time, and returns the archive.
    fn packed(seconds: u64, order: [&str; 2]) -> Vec<u8> {
        let place = tempfile::tempdir().unwrap();
        let content = || Content::Bytes(b"content".to_vec());
        let file = |name: &str| File {
            package: Package::Run,
            destination: name.into(),
            content: content(),
            mode: 0o755,
        };
        let files = order.map(file);
        install::install(&files, &place.path().join("roce")).unwrap();
        let file = fs::File::open(place.path().join("roce/bin/b")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        let archive = pack(place.path(), "roce", "1700000000").unwrap();
        write_sums(place.path()).unwrap();
        let sums = fs::read_to_string(place.path().join("SHA256SUMS")).unwrap();
        assert!(sums.len() > 64 && sums.ends_with("  roce.tar.gz\n"), "{sums}");
        fs::read(archive).unwrap()
    }

    #[test]
    fn an_archive_does_not_depend_on_the_times_and_the_order_of_its_files() {
        let [one, other] = [packed(1, ["bin/b", "bin/a"]), packed(2_000_000_000, ["bin/a", "bin/b"])];
        assert!(one == other && one.starts_with(b"\x1f\x8b"), "{} and {} bytes", one.len(), other.len());
    }

    #[test]
    fn a_file_that_needs_a_newer_glibc_is_an_error() {
        let own = std::env::current_exe().unwrap();
        let file = |path| File {
            package: Package::Command,
            destination: "bin/roce".into(),
            content: Content::Copy(path),
            mode: 0o755,
        };
        let build = |target: &str| Build { folder: PathBuf::new(), target: target.to_owned() };
        let gnu = build("x86_64-unknown-linux-gnu");
        let files = [file(own)];
        let lines = check(&files, &gnu, None).unwrap();
        assert!(lines.len() == 1 && lines[0].starts_with("bin/roce: "), "{lines:?}");
        assert!(lines[0].contains(" bytes, needs glibc 2."), "{lines:?}");
        let error = check(&files, &gnu, Some(&"2.3".parse().unwrap())).unwrap_err().to_string();
        assert!(error.starts_with("bin/roce needs glibc 2."), "{error}");
        let error = check(&files, &build("x86_64-unknown-linux-musl"), None).unwrap_err().to_string();
        assert_eq!(error, "bin/roce is not linked statically");
    }

    #[test]
    fn a_sysroot_is_linked_with_its_own_folder_of_libraries() {
        let sysroot = tempfile::tempdir().unwrap();
        let flags = flags(Some(sysroot.path()), "x86_64-unknown-linux-gnu").unwrap();
        let flags: Vec<String> = flags.into_iter().map(|flag| flag.into_string().unwrap()).collect();
        let path = sysroot.path().canonicalize().unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(flags[0], format!("-Clink-arg=--sysroot={path}"));
        assert_eq!(flags[1], format!("-Clink-arg=-L{path}/usr/lib/x86_64-linux-gnu"));
        assert!(flags[2].ends_with("=/usr/src/roce"), "{flags:?}");
    }
}
