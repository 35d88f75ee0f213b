//! Workflows and composite actions of GitHub.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use yaml_rust2::Yaml;

use super::{Outcome, Runner, Values, check_keys, copy, expression, list, read, table, text};
use crate::build;

/// The name under which workflows use the action of this repository.
const OWN_ACTION: &str = "OWNER/roce";

/// A job while its steps run.
struct Job<'a> {
    runner: &'a Runner,
    /// Values that steps have written for all later ones.
    environment: Values,
    /// Folders that steps have put before the search path, the last one first.
    paths: Vec<String>,
    /// Folders to keep in the cache if the job succeeds: keys and paths.
    to_save: Vec<(String, PathBuf)>,
}

/// A list of steps: of a job, or of a composite action, whose steps see only its inputs.
#[derive(Default)]
struct Steps {
    inputs: Values,
    /// The folder of the action, if these are the steps of one.
    action: Option<PathBuf>,
    outputs: BTreeMap<String, Values>,
    has_failed: bool,
}

impl expression::Context for Steps {
    fn value(&self, name: &str) -> anyhow::Result<String> {
        let words: Vec<&str> = name.split('.').collect();
        let found = match *words.as_slice() {
            ["inputs", name] => Some(self.inputs.get(name).with_context(|| format!("no input {name}"))?),
            ["steps", step, "outputs", name] => self.outputs.get(step).and_then(|values| values.get(name)),
            // As on a runner for a workflow in another repository.
            ["github", "action_repository"] => return Ok(OWN_ACTION.to_owned()),
            ["github", "repository"] => return Ok("somebody/project".to_owned()),
            ["runner", "os"] => return Ok("Linux".to_owned()),
            _ => bail!("this runner does not know {name}"),
        };
        Ok(found.cloned().unwrap_or_default())
    }

    fn is_successful(&self) -> bool {
        !self.has_failed
    }
}

/// Runs the only job of a workflow, which may use the action of this repository.
///
/// # Errors
///
/// The workflow or the action uses something that this runner does not know, or a file cannot be written. A
/// step that fails is part of the outcome.
pub fn run(workflow: &Path, runner: &Runner) -> anyhow::Result<Outcome> {
    let workflow = read(workflow)?;
    check_keys(&workflow, &["name", "on", "permissions", "jobs"])?;
    let jobs = workflow["jobs"].as_hash().context("the workflow has no jobs")?;
    let (Some((_, job)), 1) = (jobs.front(), jobs.len()) else { bail!("{} jobs", jobs.len()) };
    check_keys(job, &["runs-on", "timeout-minutes", "steps"])?;
    let (environment, paths, to_save) = (Values::new(), Vec::new(), Vec::new());
    let mut state = Job { runner, environment, paths, to_save };
    let mut steps = Steps::default();
    state.run_all(list(&job["steps"]), &mut steps)?;
    if !steps.has_failed {
        for (key, path) in &state.to_save {
            runner.save(key, path)?;
        }
    }
    runner.outcome(!steps.has_failed)
}

impl Job<'_> {
    fn run_all(&mut self, all: &[Yaml], steps: &mut Steps) -> anyhow::Result<()> {
        ensure!(!all.is_empty(), "there are no steps");
        for step in all {
            let name = text(&step["name"])? + &text(&step["uses"])?;
            self.run_one(step, steps).with_context(|| format!("step {name}"))?;
        }
        Ok(())
    }

    fn run_one(&mut self, step: &Yaml, steps: &mut Steps) -> anyhow::Result<()> {
        check_keys(step, &["name", "id", "if", "uses", "with", "run", "shell", "working-directory", "env"])?;
        if !expression::holds(&text(&step["if"])?, steps)? {
            return Ok(());
        }
        let (uses, script) = (text(&step["uses"])?, text(&step["run"])?);
        ensure!(uses.is_empty() != script.is_empty(), "a step has either `uses` or `run`");
        let (success, outputs) = if uses.is_empty() {
            self.script(step, &script, steps)?
        } else {
            self.action(step, &uses, steps)?
        };
        steps.has_failed |= !success;
        let id = text(&step["id"])?;
        if !id.is_empty() {
            steps.outputs.insert(id, outputs);
        }
        Ok(())
    }

    /// Runs a script with the files of a step. Returns whether it succeeded, and its outputs.
    fn script(&mut self, step: &Yaml, script: &str, steps: &Steps) -> anyhow::Result<(bool, Values)> {
        ensure!(!script.contains("${{"), "an expression in a script lets its value run as a command");
        let shell: &[&str] = match (text(&step["shell"])?.as_str(), &steps.action) {
            ("sh", _) => &["sh", "-e"],
            ("bash", _) => &["bash", "--noprofile", "--norc", "-eo", "pipefail"],
            ("", None) => &["bash", "-e"],
            (other, _) => bail!("the shell is {other:?}"),
        };
        let workspace = self.runner.folder("workspace");
        let folder = workspace.join(expression::expand(&text(&step["working-directory"])?, steps)?);
        let mut environment = self.environment.clone();
        let mut set = |name: &str, value: &Path| {
            environment.insert(name.to_owned(), value.display().to_string());
        };
        set("GITHUB_WORKSPACE", &workspace);
        set("RUNNER_TEMP", &self.runner.folder("temp"));
        if let Some(action) = &steps.action {
            set("GITHUB_ACTION_PATH", action);
        }
        // All steps of a job share the summary here; GitHub joins those of the steps.
        set("GITHUB_STEP_SUMMARY", &self.runner.folder("summary.md"));
        for name in ["GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH"] {
            let file = self.runner.folder(name);
            fs::write(&file, "")?;
            set(name, &file);
        }
        for (name, value) in [("GITHUB_ACTIONS", "true"), ("GITHUB_JOB", "rdma"), ("RUNNER_OS", "Linux")] {
            environment.insert(name.to_owned(), value.to_owned());
        }
        let own = self.runner.environment.get("PATH").cloned();
        let path = own.or_else(|| std::env::var("PATH").ok()).unwrap_or_default();
        environment.insert("PATH".to_owned(), [&self.paths[..], &[path]].concat().join(":"));
        for (name, value) in table(&step["env"])? {
            environment.insert(name, expression::expand(&value, steps)?);
        }
        let success = self.runner.script(shell, script, &folder, &environment)?;
        self.environment.extend(self.assignments("GITHUB_ENV")?);
        let paths = fs::read_to_string(self.runner.folder("GITHUB_PATH"))?;
        for path in paths.lines() {
            self.paths.insert(0, path.to_owned());
        }
        Ok((success, self.assignments("GITHUB_OUTPUT")?))
    }

    /// Returns what a script has written to a file with a line `NAME=VALUE` for each value.
    fn assignments(&self, name: &str) -> anyhow::Result<Values> {
        let lines = fs::read_to_string(self.runner.folder(name))?;
        let split = |line: &str| {
            let (name, value) = line.split_once('=').with_context(|| format!("{name}: {line}"))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        lines.lines().map(split).collect()
    }

    /// Does what an action does. Returns whether it succeeded, and its outputs.
    fn action(&mut self, step: &Yaml, uses: &str, steps: &Steps) -> anyhow::Result<(bool, Values)> {
        let mut with = table(&step["with"])?;
        for value in with.values_mut() {
            *value = expression::expand(value, steps)?;
        }
        let (name, revision) = uses.split_once('@').context("an action without a revision")?;
        if name == OWN_ACTION {
            return self.own_action(with);
        }
        let is_commit = revision.len() == 40 && revision.chars().all(|sign| sign.is_ascii_hexdigit());
        ensure!(is_commit, "{revision} is not a commit, so its owner may change what it is");
        let of = |name: &str| with.get(name).cloned().unwrap_or_default();
        let mut outputs = Values::new();
        match name {
            "actions/checkout" => {}
            "actions/cache" => {
                let (key, path) = (of("key"), PathBuf::from(of("path")));
                ensure!(!key.is_empty() && path.is_absolute(), "{with:?}");
                let is_hit = self.runner.restore(&key, &path)?;
                outputs.insert("cache-hit".to_owned(), is_hit.to_string());
                if !is_hit {
                    self.to_save.push((key, path));
                }
            }
            "actions/upload-artifact" => {
                let stored = self.runner.upload(&of("name"), Path::new(&of("path")))?;
                outputs.insert("artifact-url".to_owned(), stored.display().to_string());
            }
            other => bail!("this runner does not know the action {other}"),
        }
        Ok((true, outputs))
    }

    /// Runs the steps of the action of this repository, with these inputs.
    fn own_action(&mut self, with: Values) -> anyhow::Result<(bool, Values)> {
        let checkout = self.runner.folder(CHECKOUT);
        let folder = if checkout.is_dir() { checkout } else { build::root().to_owned() };
        let action = read(&folder.join("action.yml"))?;
        let mut inputs = Values::new();
        for (name, input) in action["inputs"].as_hash().context("the action has no inputs")? {
            check_keys(input, &["description", "default"])?;
            inputs.insert(text(name)?, text(&input["default"])?);
        }
        for (name, value) in with {
            let known = inputs.get_mut(&name).with_context(|| format!("the action has no input {name}"))?;
            *known = value;
        }
        ensure!(action["runs"]["using"].as_str() == Some("composite"), "the action is not a composite one");
        let mut steps = Steps { inputs, action: Some(folder), ..Steps::default() };
        self.run_all(list(&action["runs"]["steps"]), &mut steps)?;
        let mut outputs = Values::new();
        for (name, output) in action["outputs"].as_hash().into_iter().flatten() {
            outputs.insert(text(name)?, expression::expand(&text(&output["value"])?, &steps)?);
        }
        Ok((!steps.has_failed, outputs))
    }
}

/// The folder of a runner with the action.
const CHECKOUT: &str = "roce-action";

/// Copies the action to the folder in which a runner of GitHub would put it, so that nothing else of this
/// checkout is used. Replaces an earlier copy.
///
/// # Errors
///
/// A file cannot be removed or copied.
pub fn check_out(from: &Path, runner: &Runner) -> anyhow::Result<()> {
    let to = runner.folder(CHECKOUT);
    if to.exists() {
        fs::remove_dir_all(&to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    copy(from, &to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the second job of a runner failed, because git writes files that cannot be written again.
    #[test]
    fn a_second_job_has_the_action_as_it_is_now() {
        let folder = tempfile::tempdir().unwrap();
        let (from, runner) = (folder.path().join("from"), Runner::new(&folder.path().join("home")).unwrap());
        fs::create_dir(&from).unwrap();
        for name in ["first", "second"] {
            let file = from.join(name);
            fs::write(&file, name).unwrap();
            let mut permissions = file.metadata().unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(&file, permissions).unwrap();
            check_out(&from, &runner).unwrap();
            let names =
                fs::read_dir(runner.folder(CHECKOUT)).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(names.collect::<Vec<_>>(), [name]);
            fs::remove_file(file).unwrap();
        }
    }
}
