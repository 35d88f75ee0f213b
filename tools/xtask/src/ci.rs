//! `xtask ci`: runs the steps of a workflow of GitHub, or a job of GitLab, on this machine.
//!
//! Every script of the workflow and of the action runs as a runner runs it: with its shell, environment,
//! folder and files for outputs. The few actions of others do here what their documentation says. Only the
//! parts of both languages that this repository uses are known; everything else is an error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use yaml_rust2::{Yaml, YamlLoader};

use crate::build;

mod expression;
pub mod github;
pub mod gitlab;

/// Names with values: environment variables, inputs or outputs.
pub type Values = BTreeMap<String, String>;

/// The folders of a runner, which a machine at GitHub or GitLab has at other places.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The folder that contains the others.
    pub home: PathBuf,
    /// Environment variables of every script, in addition to those of this process.
    pub environment: Values,
    /// The process groups of the scripts.
    groups: RefCell<Vec<u32>>,
}

/// The result of a job.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether every step succeeded.
    pub success: bool,
    /// Everything that the scripts printed on both streams.
    pub log: String,
    /// Artifacts that were uploaded: their folders, by name.
    pub artifacts: BTreeMap<String, PathBuf>,
}

impl Runner {
    /// Creates the folders below one of them.
    ///
    /// # Errors
    ///
    /// A folder cannot be created.
    pub fn new(home: &Path) -> anyhow::Result<Self> {
        let home = std::path::absolute(home).context("the folder of the runner")?;
        let runner = Self { home, environment: Values::new(), groups: RefCell::default() };
        for name in ["workspace", "temp", "cache", "artifacts"] {
            let folder = runner.folder(name);
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(runner)
    }

    /// Returns the path of a folder or file of this runner.
    #[must_use]
    pub fn folder(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Returns the file that receives what scripts print.
    fn log(&self) -> PathBuf {
        self.folder("log")
    }

    /// Runs a script in a folder with a shell. Returns whether it succeeded.
    fn script(
        &self,
        shell: &[&str],
        script: &str,
        folder: &Path,
        environment: &Values,
    ) -> anyhow::Result<bool> {
        let file = self.folder("script");
        fs::write(&file, script).context("cannot write a script")?;
        let log = fs::File::options().create(true).append(true).open(self.log()).context("the log")?;
        let (program, options) = shell.split_first().context("a shell has no name")?;
        let mut command = Command::new(program);
        command.args(options).arg(&file).current_dir(folder).stdin(Stdio::null());
        command.envs(&self.environment).envs(environment);
        // A file, because a background process of a script would keep a pipe open.
        command.stdout(log.try_clone()?).stderr(log);
        let mut child = command.process_group(0).spawn().with_context(|| format!("cannot run {program}"))?;
        self.groups.borrow_mut().push(child.id());
        Ok(child.wait()?.success())
    }

    /// Restores a folder from the cache. Returns whether the cache has the key.
    fn restore(&self, key: &str, path: &Path) -> anyhow::Result<bool> {
        let stored = self.folder("cache").join(file_name(key));
        let is_stored = stored.is_dir();
        if is_stored {
            copy(&stored, path)?;
        }
        Ok(is_stored)
    }

    /// Keeps a folder in the cache.
    fn save(&self, key: &str, path: &Path) -> anyhow::Result<()> {
        let stored = self.folder("cache").join(file_name(key));
        if stored.exists() {
            fs::remove_dir_all(&stored)?;
        }
        copy(path, &stored)
    }

    /// Keeps a folder as an artifact.
    fn upload(&self, name: &str, path: &Path) -> anyhow::Result<PathBuf> {
        ensure!(!name.is_empty(), "an artifact has no name");
        let stored = self.folder("artifacts").join(file_name(name));
        ensure!(!stored.exists(), "there are two artifacts with the name {name}");
        copy(path, &stored)?;
        Ok(stored)
    }

    /// Ends the processes that the scripts of a job left behind, and returns what the job did.
    fn outcome(&self, success: bool) -> anyhow::Result<Outcome> {
        for group in self.groups.take() {
            // Most groups do not exist any more.
            _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).output();
        }
        let log = fs::read(self.log()).unwrap_or_default();
        let mut artifacts = BTreeMap::new();
        for entry in fs::read_dir(self.folder("artifacts"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            artifacts.insert(name, path);
        }
        Ok(Outcome { success, log: String::from_utf8_lossy(&log).into_owned(), artifacts })
    }
}

/// Returns a name without slashes.
fn file_name(name: &str) -> String {
    name.replace('/', "_")
}

/// Copies a folder with links and permissions.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    ensure!(from.is_dir(), "{} is not a folder", from.display());
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    build::run(Command::new("cp").arg("-a").arg("--").arg(from.join(".")).arg(to))
}

/// Reads a file with one document.
fn read(file: &Path) -> anyhow::Result<Yaml> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let documents = YamlLoader::load_from_str(&text).with_context(|| file.display().to_string())?;
    let count = documents.len();
    let only = documents.into_iter().next().filter(|_| count == 1);
    only.with_context(|| format!("{} has {count} documents", file.display()))
}

/// Returns a plain value as text; that of a missing key is empty.
fn text(value: &Yaml) -> anyhow::Result<String> {
    Ok(match value {
        Yaml::BadValue | Yaml::Null => String::new(),
        Yaml::String(text) | Yaml::Real(text) => text.clone(),
        Yaml::Integer(number) => number.to_string(),
        Yaml::Boolean(truth) => truth.to_string(),
        other => anyhow::bail!("{other:?} is not a plain value"),
    })
}

/// Returns the names and plain values of a table; a missing one is empty.
fn table(value: &Yaml) -> anyhow::Result<Values> {
    let Some(hash) = value.as_hash() else {
        ensure!(value.is_badvalue(), "{value:?} is not a table");
        return Ok(Values::new());
    };
    hash.iter().map(|(name, value)| Ok((text(name)?, text(value)?))).collect()
}

/// Returns the values of a list; a missing one is empty.
fn list(value: &Yaml) -> &[Yaml] {
    value.as_vec().map_or(&[], Vec::as_slice)
}

/// Fails if a table has a key that this runner does not know, and would ignore.
fn check_keys(value: &Yaml, known: &[&str]) -> anyhow::Result<()> {
    for key in value.as_hash().into_iter().flatten().map(|(key, _)| key) {
        let key = text(key)?;
        ensure!(known.contains(&key.as_str()), "the key {key} is not one of {}", known.join(", "));
    }
    Ok(())
}
