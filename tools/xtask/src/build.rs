//! Builds of the command and the libraries, and programs that this crate runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// The crates whose results belong to an installation.
pub const PACKAGES: [&str; 4] = ["roce-cli", "roce-ibverbs", "roce-rdmacm", "roce-sysfs"];

/// The profile of what is installed and packed: the fastest code.
pub const PROFILE: &str = "fast";

/// The features of what is installed and packed: all commands with all options.
pub const FEATURES: &str = "roce-cli/explore,roce-cli/live";

/// A finished build.
#[derive(Clone, Debug)]
pub struct Build {
    /// Folder with the results, such as `target/fast`.
    pub folder: PathBuf,
    /// Target triple.
    pub target: String,
}

impl Build {
    /// Returns whether programs can load the libraries. A build for musl is a static command without them.
    #[must_use]
    pub fn has_libraries(&self) -> bool {
        !self.target.contains("-musl")
    }

    /// Returns the path of a result.
    ///
    /// # Errors
    ///
    /// It was not built.
    pub fn find(&self, name: &str) -> anyhow::Result<PathBuf> {
        // If only the command is built, cargo updates the libraries in `deps` only.
        let places = [self.folder.join("deps").join(name), self.folder.join(name)];
        let found = places.into_iter().find(|path| path.is_file());
        found.with_context(|| format!("{name} is missing in {}", self.folder.display()))
    }

    /// Returns what the command prints.
    ///
    /// # Errors
    ///
    /// The command cannot run on this machine, or fails.
    pub fn printed(&self, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
        output(Command::new(self.find("roce")?).args(arguments))
    }
}

/// Returns the root of the repository.
#[must_use]
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// Returns cargo, which works in the root of the repository.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns the target triple of this machine.
///
/// # Errors
///
/// `rustc` cannot run.
pub fn host() -> anyhow::Result<String> {
    let version = text(Command::new("rustc").arg("-vV").current_dir(root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV prints no host")?.to_owned())
}

/// Returns what `cargo metadata` says about the crates for a target.
///
/// # Errors
///
/// cargo fails, for example because `Cargo.lock` is out of date.
pub fn metadata(target: &str) -> anyhow::Result<Value> {
    let arguments = ["metadata", "--format-version", "1", "--locked", "--features", FEATURES];
    Ok(serde_json::from_slice(&output(cargo().args(arguments).args(["--filter-platform", target]))?)?)
}

/// Runs a program to its end. What it prints is not read.
///
/// # Errors
///
/// The program is not installed, or fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

/// Returns what a program prints.
///
/// # Errors
///
/// The program is not installed, or fails.
pub fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}: {}", output.status, problem.trim());
    Ok(output.stdout)
}

/// Returns what a program prints, as text.
///
/// # Errors
///
/// The program is not installed, fails, or does not print text.
pub fn text(command: &mut Command) -> anyhow::Result<String> {
    let printed = output(command)?;
    String::from_utf8(printed).with_context(|| format!("{command:?} does not print text"))
}
