//! Jobs of GitLab that extend the template of this repository.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use yaml_rust2::Yaml;

use super::{Outcome, Runner, Values, check_keys, list, read, table, text};

/// The template of this repository.
const TEMPLATE: &str = "tools/ci-action/gitlab.yml";

/// Runs the only job of a file, which extends `.roce` of the template below `root`.
///
/// # Errors
///
/// The file or the template uses something that this runner does not know, or a file cannot be written. A
/// script that fails is part of the outcome.
pub fn run(file: &Path, root: &Path, runner: &Runner) -> anyhow::Result<Outcome> {
    let (file, template) = (read(file)?, read(&root.join(TEMPLATE))?);
    let template = &template[".roce"];
    let keys = ["image", "variables", "cache", "before_script", "script", "artifacts"];
    check_keys(template, &keys)?;
    let top = file.as_hash().context("the file is not a table")?;
    let mut jobs = top.iter().filter(|(name, _)| !["include", "stages"].map(Some).contains(&name.as_str()));
    let (Some((name, job)), None) = (jobs.next(), jobs.next()) else { bail!("the file has not one job") };
    check_keys(job, &["extends", "variables", "before_script"])?;
    ensure!(job["extends"].as_str() == Some(".roce"), "the job does not extend .roce");

    let workspace = runner.folder("workspace");
    let mut variables = predefined(&workspace, &text(name)?);
    for table_of in [&template["variables"], &job["variables"]] {
        variables.extend(table(table_of)?);
    }
    // Those of the runner stand for settings of the project, which come before those of the file.
    variables.extend(runner.environment.clone());
    let known = variables.clone();
    for value in variables.values_mut() {
        *value = expand(value, &known);
    }

    let cache = &template["cache"];
    check_keys(cache, &["key", "paths"])?;
    let key = expand(&text(&cache["key"])?, &variables);
    let cached = workspace.join(text(&cache["paths"][0])?);
    runner.restore(&key, &cached)?;
    let before = if job["before_script"].is_badvalue() { template } else { job };
    // GitLab runs both in one shell.
    let mut lines = lines(&before["before_script"], template)?;
    lines.extend(self::lines(&template["script"], template)?);
    let shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"];
    let success = runner.script(&shell, &lines.join("\n"), &workspace, &variables)?;
    if success && cached.is_dir() {
        runner.save(&key, &cached)?;
    }
    let artifacts = &template["artifacts"];
    check_keys(artifacts, &["name", "when", "expire_in", "paths", "reports"])?;
    ensure!(artifacts["when"].as_str() == Some("on_failure"), "{artifacts:?}");
    let kept = workspace.join(text(&artifacts["paths"][0])?);
    if !success && kept.is_dir() {
        runner.upload(&expand(&text(&artifacts["name"])?, &variables), &kept)?;
    }
    runner.outcome(success)
}

/// Returns the variables that GitLab sets.
fn predefined(workspace: &Path, job: &str) -> Values {
    let values = [
        ("CI", "true".to_owned()),
        ("GITLAB_CI", "true".to_owned()),
        ("CI_PROJECT_DIR", workspace.display().to_string()),
        ("CI_JOB_NAME_SLUG", job.to_owned()),
        ("CI_RUNNER_EXECUTABLE_ARCH", "linux/amd64".to_owned()),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Returns the lines of a script. A list in it is a reference to lines of the template: `[.roce, script]`.
fn lines(script: &Yaml, template: &Yaml) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for line in list(script) {
        match list(line) {
            [] => found.push(text(line)?),
            [job, key] if job.as_str() == Some(".roce") => {
                found.extend(lines(&template[text(key)?.as_str()], template)?);
            }
            other => bail!("{other:?} is not a reference to .roce"),
        }
    }
    Ok(found)
}

/// Replaces `$NAME` by the value of each known name. The longest name is found first.
fn expand(text: &str, variables: &Values) -> String {
    let mut names: Vec<&String> = variables.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let mut expanded = text.to_owned();
    for name in names {
        expanded = expanded.replace(&format!("${name}"), &variables[name]);
    }
    expanded
}
