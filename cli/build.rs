//! Tells the command the commit and the target that it is built from and for.
//!
//! The commit is unknown if the sources are not in a git repository, and git is not installed or does not
//! trust its owner. Cargo writes the commit of a published package into the package.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo::rustc-env=BUILD_TARGET={target}");
    let commit = of_package().or_else(of_repository).unwrap_or_default();
    println!("cargo::rustc-env=BUILD_COMMIT={commit}");
}

/// The commit that cargo has written into a published package.
fn of_package() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    Some(rest.split('"').nth(1)?.to_owned())
}

/// The commit of the repository, whose changes run this script again.
fn of_repository() -> Option<String> {
    // The package may be in a folder that somebody keeps in a repository for other reasons.
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    // Every change of the commit is in the log, if the repository has one.
    for name in ["HEAD", "logs/HEAD", &branch] {
        let path = git(&["rev-parse", "--git-path", name])?;
        // Cargo would run this script each time for a file that does not exist.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"])
}

/// Returns what git prints, or `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(text).ok()?.trim().to_owned())
}
