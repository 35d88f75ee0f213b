//! `cargo run -p xtask -- install --prefix DIR`, and the other commands of its `--help`; see [`xtask`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use xtask::{build, ci, deb, dist, image, install, layout, packages};

const USAGE: &str = "\
Usage: cargo run -p xtask -- COMMAND

install --prefix DIR [--destdir DIR] [--profile NAME | --from DIR]
    Builds the command and the libraries, and installs them with completions,
    manual pages, documentation and licences. The page of roce explore is
    installed if tools/web/build made it before. --destdir puts a folder before
    the prefix, for packages; --profile is a profile of cargo [default: fast];
    --from installs what was built before, such as target/fast
dist [--target TRIPLE] [--sysroot DIR] [--glibc VERSION]
    Writes an archive with the files of an installation into target/dist.
    A target with musl gives a static command without the libraries. --sysroot
    links with the C library in this folder; --glibc fails if a file needs a
    newer version
deb --maintainer \"NAME <ADDRESS>\" [--sysroot DIR] [--glibc VERSION]
    Writes packages for Debian into target/dist: roce, roce-run with the
    libraries, and roce-doc
image [--target TRIPLE] [--sysroot DIR] [--glibc VERSION]
    Writes the folder target/dist/image, from which podman, buildah or docker
    builds a container image with the command and the libraries
packages [--out DIR] [--baseline DIR]
    Makes the package of every crate that is published, in the order of
    publication, builds the library and the command from these packages alone,
    without network, and runs both. --baseline compares the public interfaces
    with those of the --out of an earlier release [default: target/packages]

ci --home DIR (--github FILE | --gitlab FILE) [--checkout DIR]
    Runs the steps of a workflow that uses the action at the root of this
    repository, or of a job that extends its template, as a runner does.
    Caches, artifacts and the log are in the folder --home. --checkout is
    another folder with the action";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> anyhow::Result<()> {
    let Some((command, rest)) = words.split_first() else { bail!("no command\n\n{USAGE}") };
    match command.as_str() {
        "--help" | "-h" => println!("{USAGE}"),
        "install" => {
            let options = options(rest, &["prefix", "destdir", "profile", "from"])?;
            let of = |name: &str| options.get(name).map_or("", String::as_str);
            if of("prefix").is_empty() {
                bail!(
                    "--prefix is missing; --prefix ~/.local installs for you alone, /usr/local for all users"
                );
            }
            let (prefix, destdir) = (Path::new(of("prefix")), Path::new(of("destdir")));
            let folder = install::destination(prefix, destdir)?;
            let results = match (of("from"), of("profile")) {
                ("", "") => install::build(build::PROFILE)?,
                ("", profile) => install::build(profile)?,
                (from, "") => PathBuf::from(from),
                _ => bail!("--from installs what was built before, so it has no --profile"),
            };
            let count = install::install_built(&results, &folder)?;
            println!("installed {count} files in {}", folder.display());
            say_what_is_left_out();
            let bin = folder.join("bin");
            let path = std::env::var_os("PATH").unwrap_or_default();
            if destdir.as_os_str().is_empty() && !std::env::split_paths(&path).any(|one| one == bin) {
                println!("{} is not in PATH: export PATH={0}:$PATH", bin.display());
            }
        }
        "dist" => {
            let options = options(rest, &["target", "sysroot", "glibc"])?;
            let (archive, lines) = dist::dist(&dist_options(&options)?)?;
            lines.iter().for_each(|line| println!("{line}"));
            println!("{}: {} bytes", archive.display(), archive.metadata()?.len());
            say_what_is_left_out();
        }
        "deb" => {
            let options = options(rest, &["maintainer", "target", "sysroot", "glibc"])?;
            let maintainer = options.get("maintainer").context("--maintainer is missing")?;
            for package in deb::deb(&dist_options(&options)?, maintainer)? {
                println!("{}: {} bytes", package.display(), package.metadata()?.len());
            }
            say_what_is_left_out();
        }
        "image" => {
            let options = options(rest, &["target", "sysroot", "glibc"])?;
            let (folder, lines) = image::image(&dist_options(&options)?)?;
            lines.iter().for_each(|line| println!("{line}"));
            say_what_is_left_out();
            println!("podman build -t roce {}", folder.display());
        }
        "packages" => {
            let options = options(rest, &["out", "baseline"])?;
            let of = |name: &str| options.get(name).map(Path::new);
            let (folder, lines) = packages::packages(of("out"), of("baseline"))?;
            lines.iter().for_each(|line| println!("{line}"));
            println!("the packages are in {}", folder.join("target/package").display());
        }
        "ci" => run_ci(&options(rest, &["home", "github", "gitlab", "checkout"])?)?,
        other => bail!("there is no command {other}\n\n{USAGE}"),
    }
    Ok(())
}

/// Prints which files are missing because nobody made them.
fn say_what_is_left_out() {
    layout::left_out(build::root()).iter().for_each(|sentence| println!("{sentence}"));
}

/// Runs a workflow or a job, and prints what it did.
fn run_ci(options: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let runner = ci::Runner::new(Path::new(options.get("home").context("--home is missing")?))?;
    let checkout = options.get("checkout").map_or(build::root(), Path::new);
    let outcome = match (options.get("github"), options.get("gitlab")) {
        (Some(workflow), None) => {
            ci::github::check_out(checkout, &runner)?;
            ci::github::run(Path::new(workflow), &runner)?
        }
        (None, Some(job)) => ci::gitlab::run(Path::new(job), checkout, &runner)?,
        _ => bail!("expected --github or --gitlab\n\n{USAGE}"),
    };
    print!("{}", outcome.log);
    for (name, folder) in &outcome.artifacts {
        println!("artifact {name}: {}", folder.display());
    }
    if !outcome.success {
        bail!("a step failed");
    }
    Ok(())
}

/// Returns what to build.
fn dist_options(options: &BTreeMap<String, String>) -> anyhow::Result<dist::Options> {
    Ok(dist::Options {
        target: options.get("target").cloned(),
        sysroot: options.get("sysroot").map(PathBuf::from),
        glibc: options.get("glibc").map(|version| version.parse()).transpose()?,
    })
}

/// Returns the values of options, which are written `--name value` or `--name=value`.
fn options(words: &[String], known: &[&str]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").unwrap_or_default();
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if !known.contains(&name) {
            bail!("unknown argument {word}\n\n{USAGE}");
        }
        let value = value.or_else(|| words.next().map(String::as_str));
        let value = value.with_context(|| format!("--{name} needs a value"))?;
        if found.insert(name.to_owned(), value.to_owned()).is_some() {
            bail!("--{name} is given twice");
        }
    }
    Ok(found)
}
